"""More literal kernels for check.py: reductions, scans, products, atomics, pointers, bad access, threads."""

import inspect
import threading

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .check_kernels import NAN, poisoned
from .errors import HostAccessError


@triton.jit
def affine_combine(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@triton.jit
def affine_kernel(a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(a + i), tl.load(b + i)
    scanned_a, scanned_b = tl.associative_scan((x, y), 0, affine_combine)
    total_a, total_b = tl.reduce((x, y), 0, affine_combine)
    tl.store(out + i, scanned_b)
    tl.store(out + N, total_a)
    tl.store(out + N + 1, total_b)


def scan_order():
    """A combine function that does not commute: x -> a x + b, composed from left to right."""
    a, b, out = torch.tensor([2.0, 3.0, 4.0, 5.0]), torch.tensor([1.0, 1.0, 1.0, 1.0]), poisoned(6)
    affine_kernel[(1,)](a, b, out, 4)
    return out, torch.tensor([1.0, 4.0, 17.0, 86.0, 120.0, 86.0])


@triton.jit
def reduce_kernel(x, out, ROWS: tl.constexpr, COLS: tl.constexpr):
    offsets = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    value = tl.load(x + offsets)
    rows = tl.arange(0, ROWS)
    tl.store(out + rows, tl.sum(value, axis=1).to(tl.float32))
    tl.store(out + ROWS + rows, tl.max(value, axis=1).to(tl.float32))
    tl.store(out + 2 * ROWS + rows, tl.argmax(value, axis=1).to(tl.float32))
    tl.store(out + 3 * ROWS, tl.sum(value).to(tl.float32))


def reduce_rows(dtype):
    """Ties go left in argmax; sums of bfloat16 are sums of numbers, not of bits."""
    x = torch.tensor([[1.0, 4.0, 4.0, -2.0], [0.5, -8.0, 0.25, 0.25]], dtype=dtype)
    out = poisoned(7)
    reduce_kernel[(1,)](x, out, 2, 4)
    return out, torch.tensor([7.0, -7.0, 4.0, 0.5, 1.0, 0.0, 0.0])


@triton.jit
def cumsum_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    tl.store(out + i, tl.cumsum(value, 0).to(tl.float32))
    tl.store(out + N + i, tl.cumsum(value, 0, reverse=True).to(tl.float32))


def cumsum_both_ways(dtype):
    x, out = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=dtype), poisoned(8)
    cumsum_kernel[(1,)](x, out, 4)
    return out, torch.tensor([1.0, 3.0, 6.0, 10.0, 10.0, 9.0, 7.0, 4.0])


@triton.jit
def dot_kernel(a, b, out, N: tl.constexpr):
    rows, cols = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    product = tl.dot(tl.load(a + rows * N + cols), tl.load(b + rows * N + cols), out_dtype=tl.float32)
    tl.store(out + rows * N + cols, product)


def dot_product(dtype):
    """256 + 1/128 + 14 is exact in fp32 only: the accumulator is not rounded to the operands' dtype."""
    a, b = torch.ones(16, 16, dtype=dtype), torch.ones(16, 16, dtype=dtype)
    a[0, :2] = torch.tensor([256.0, 0.0078125])
    out = poisoned(16, 16)
    dot_kernel[(1,)](a, b, out, 16)
    wanted = torch.full((16, 16), 16.0)
    wanted[0] = 270.0078125
    return out, wanted


@triton.jit
def atomic_kernel(cells, x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_add(cells + i % 2, tl.load(x + i), mask=i < N - 1)


def atomic_add(dtype):
    """Several lanes hit one cell; the last lane is masked off."""
    cells, x = torch.tensor([100.0, 0.5], dtype=dtype), torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=dtype)
    atomic_kernel[(1,)](cells, x, 4)
    return cells.float(), torch.tensor([104.0, 2.5])


@triton.jit
def block_pointer_kernel(x, out, rows, cols, BLOCK: tl.constexpr):
    source = tl.make_block_ptr(x, (rows, cols), (cols, 1), (0, 0), (BLOCK, BLOCK), (1, 0))
    target = tl.make_block_ptr(out, (BLOCK, BLOCK), (BLOCK, 1), (0, 0), (BLOCK, BLOCK), (1, 0))
    tl.store(target, tl.load(source, boundary_check=(0, 1), padding_option="zero"))


def block_pointer():
    x, out = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), poisoned(4, 4)
    block_pointer_kernel[(1,)](x, out, 2, 3, 4)
    return out, torch.tensor([[1.0, 2, 3, 0], [4, 5, 6, 0], [0, 0, 0, 0], [0, 0, 0, 0]])


@triton.jit
def libdevice_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    tl.store(out + i, libdevice.tanh(value))
    tl.store(out + N + i, libdevice.pow(value, value))


def libdevice_calls():
    x, out = torch.tensor([0.0, 0.5, 2.0, 3.0]), poisoned(8)
    libdevice_kernel[(1,)](x, out, 4)
    return out, torch.tensor([0.0, 0.46211716, 0.96402758, 0.99505475, 1.0, 0.70710678, 4.0, 27.0])


@triton.jit
def far_load_kernel(x, out, distance):
    tl.store(out, tl.load(x + distance))


@triton.jit
def far_store_kernel(out, distance):
    tl.store(out + distance, 1.0)


def bad_access(launch, kernel_name):
    """[1] if the launch raised an error that names the kernel, else [0]."""
    try:
        launch()
    except HostAccessError as error:
        return float(kernel_name in str(error))
    return 0.0


def out_of_bounds():
    """One element behind the tensor, one before it, and far away: each an error that names the kernel."""
    x, out = torch.zeros(4), poisoned(1)
    caught = [
        bad_access(lambda: far_load_kernel[(1,)](x, out, 4), "far_load_kernel"),
        bad_access(lambda: far_load_kernel[(1,)](x, out, -1), "far_load_kernel"),
        bad_access(lambda: far_store_kernel[(1,)](x, 1 << 40), "far_store_kernel"),
    ]
    return torch.tensor(caught + out.tolist()), torch.tensor([1.0, 1.0, 1.0, NAN])


@triton.jit
def fill_kernel(out, value, N: tl.constexpr):
    offset = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + offset, value)


def threads():
    """Four threads launch one kernel with their own value: the interpreter keeps one grid position for all."""
    outs = [poisoned(64) for _ in range(4)]

    def launch(i):
        fill_kernel[(16,)](outs[i], float(i), 4)

    workers = [threading.Thread(target=launch, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return torch.stack(outs), torch.arange(4.0)[:, None].expand(4, 64)


# Triton 3.9 took boundary_check, and with it this use of block pointers, out of the language.
HAS_BOUNDARY_CHECK = "boundary_check" in inspect.signature(tl.load).parameters
BLOCK_CASES = (scan_order, libdevice_calls, out_of_bounds, threads) + (block_pointer,) * HAS_BOUNDARY_CHECK
DTYPE_CASES = (reduce_rows, cumsum_both_ways, dot_product, atomic_add)
