"""Small kernels with literal results: what the interpreter has been, or could be, silently wrong about.

Used by check.py. Each case takes no argument and returns (what was computed, what is right); outputs start as
NaN (floats), -1 or True, so that a launch that computes nothing cannot look right.
"""

import ctypes

import torch
import triton
import triton.language as tl

NAN = float("nan")


def poison(tensor):
    """Fill with 0xFF bytes: NaN in every float format. Through ctypes, so that no dispatched fill_ is involved."""
    ctypes.memset(tensor.data_ptr(), 0xFF, tensor.numel() * tensor.element_size())
    return tensor


def poisoned(*shape, dtype=torch.float32):
    return poison(torch.empty(shape, dtype=dtype))


@triton.jit
def masked_store_kernel(out, JOIN: tl.constexpr):
    rows = tl.arange(0, 4)[:, None]
    cols = tl.arange(0, 4)[None, :]
    if JOIN == "and":
        mask = rows < 2 and cols < 3
    elif JOIN == "or":
        mask = rows < 1 or cols < 1
    else:
        mask = not (rows < 2)
    tl.store(out + rows * 4 + cols, (rows * 4 + cols).to(tl.float32), mask=mask & (cols >= 0))


def masked_store(join):
    out = poisoned(4, 4)
    masked_store_kernel[(1,)](out, join)
    return out


def mask_and():
    """Python's `and` on blocks is its right operand."""
    n = NAN
    return masked_store("and"), torch.tensor([[0, 1, 2, n], [4, 5, 6, n], [n, n, n, n], [n, n, n, n]])


def mask_or():
    """Python's `or` on blocks is its left operand."""
    n = NAN
    return masked_store("or"), torch.tensor([[0, 1, 2, 3], [4, n, n, n], [8, n, n, n], [12, n, n, n]])


def mask_not():
    """Python's `not` of a block is False."""
    n = NAN
    return masked_store("not"), torch.tensor([[n, n, n, n], [n, n, n, n], [8, 9, 10, 11], [12, 13, 14, 15]])


@triton.jit
def scale_kernel(x, out, n, SCALE: tl.constexpr = 2, SHIFT: tl.constexpr = 100, BLOCK: tl.constexpr = 8):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * SCALE + SHIFT, mask=i < n)


def constexpr_defaults():
    x, out = torch.arange(8.0), poisoned(8)
    scale_kernel[(1,)](x, out, 6, SCALE=3)
    return out, torch.tensor([100, 103, 106, 109, 112, 115, NAN, NAN])


def constexpr_left_out():
    """LibEntry on Triton 3.7 and later launches the compiled kernel without its constexpr arguments: what it was
    compiled with counts, not the defaults."""
    x, out = torch.arange(8.0), poisoned(8)
    compiled = scale_kernel.warmup(x, out, 6, SCALE=3, SHIFT=7, grid=(1,))
    compiled[(1, 1, 1)](x, out, 6)
    return out, torch.tensor([7, 10, 13, 16, 19, 22, NAN, NAN])


@triton.jit
def add_kernel(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) + tl.load(y + i))


def bfloat16_add():
    """On the bits of bfloat16, 1 + 1 is 1.7e38."""
    x = torch.tensor([1.0, 1.0, -2.0, 256.0], dtype=torch.bfloat16)
    y = torch.tensor([1.0, 0.0078125, 0.5, 1.0], dtype=torch.bfloat16)
    out = poisoned(4, dtype=torch.bfloat16)
    add_kernel[(1,)](x, y, out, 4)
    return out, torch.tensor([2.0, 1.0078125, -1.5, 256.0], dtype=torch.bfloat16)


@triton.jit
def copy_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(out.dtype.element_ty))


def bfloat16_rounding():
    """float32 -> bfloat16 to nearest even: upstream truncates."""
    x = torch.tensor([1.00390625, 1.01171875, 1.0078, -3.14159265])
    out = poisoned(4, dtype=torch.bfloat16)
    copy_kernel[(1,)](x, out, 4)
    return out.float(), torch.tensor([1.0, 1.015625, 1.0078125, -3.140625])


def float8_rounding():
    """float32 -> float8 e4m3 to nearest even, saturating: upstream truncates and wraps."""
    x = torch.tensor([1.0625, 1.1875, -0.3, 1000.0])
    out = poisoned(4, dtype=torch.float8_e4m3fn)
    copy_kernel[(1,)](x, out, 4)
    return out.float(), torch.tensor([1.0, 1.25, -0.3125, 448.0])


@triton.jit
def compare_kernel(x, y, out, threshold, N: tl.constexpr):
    i = tl.arange(0, N)
    less = tl.load(x + i) < tl.load(y + i)
    tl.store(out + i, less.to(tl.float32), mask=threshold > 2.5)


def compare_dtype():
    """A comparison keeps the left operand's dtype upstream, so its truth values are read as bits of a bfloat16."""
    x = torch.tensor([-2.0, -1.0, 3.0, 1.0], dtype=torch.bfloat16)
    y = torch.tensor([-1.0, -2.0, 4.0, 1.0], dtype=torch.bfloat16)
    out = poisoned(4)
    compare_kernel[(1,)](x, y, out, 3.0, 4)
    return out, torch.tensor([1.0, 0.0, 1.0, 0.0])


@triton.jit
def flag_kernel(out, flag):
    tl.store(out, tl.where(~flag, 10.0, 20.0))


def bool_argument():
    """Widened to int32, ~True is -2: true."""
    out = poisoned(2)
    flag_kernel[(1,)](out, True)
    flag_kernel[(1,)](out[1:], False)
    return out, torch.tensor([20.0, 10.0])


@triton.jit
def shift_kernel(x, out, shift, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, (tl.load(x + i) + shift).to(tl.float32))


def float_argument():
    """A float argument is fp32, so fp16 + argument is computed in fp32; a raw Python float keeps fp16."""
    x, out = torch.tensor([2048.0, 1.0], dtype=torch.float16), poisoned(2)
    shift_kernel[(1,)](x, out, 0.5, 2)
    return out, torch.tensor([2048.5, 1.5])


def specialized_one():
    """An int argument of 1 is compiled as a constant and does not promote int8; 2 is an int32 and does."""
    x = torch.tensor([127, 5], dtype=torch.int8)
    one, two = poisoned(2), poisoned(2)
    shift_kernel[(1,)](x, one, 1, 2)
    shift_kernel[(1,)](x, two, 2, 2)
    return torch.cat([one, two]), torch.tensor([-128.0, 6.0, 129.0, 7.0])


@triton.jit
def min_max_kernel(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, min(a, b))
    tl.store(out + N + i, max(a, b))


def min_max():
    """Python's min and max on blocks return one whole operand; np.minimum returns NaN where the GPU does not."""
    x, y = torch.tensor([1.0, 5.0, NAN, 2.0]), torch.tensor([4.0, 2.0, 3.0, NAN])
    out = poisoned(8)
    min_max_kernel[(1,)](x, y, out, 4)
    return out, torch.tensor([1.0, 2.0, 3.0, 2.0, 4.0, 5.0, 3.0, 2.0])


@triton.jit
def loop_kernel(x, out, n):
    value = tl.load(x)
    for i in range(n):
        tl.store(out + i, value + i)


def loop_index():
    """A loop index is an int32 in compiled code; a Python int would leave int8 + index in int8."""
    x, out = torch.tensor([126], dtype=torch.int8), poisoned(4, dtype=torch.int32)
    loop_kernel[(1,)](x, out, 4)
    return out, torch.tensor([126, 127, 128, 129], dtype=torch.int32)


@triton.jit
def random_kernel(out, seed, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.randint(seed, i))


def philox_words():
    """Philox 4x32-10: the first words for key 42 and counters 0 to 3, from the algorithm's definition."""
    out = poisoned(4, dtype=torch.int32)
    random_kernel[(1,)](out, 42, 4)
    return out, torch.tensor(PHILOX_42, dtype=torch.int32)


PHILOX_42 = [-1662324653, -52747993, -747896283, -1161362315]

LANGUAGE_CASES = (
    mask_and,
    mask_or,
    mask_not,
    constexpr_defaults,
    constexpr_left_out,
    bfloat16_add,
    bfloat16_rounding,
    compare_dtype,
    bool_argument,
    float_argument,
    specialized_one,
    min_max,
    loop_index,
    philox_words,
)
FLOAT8_CASES = (float8_rounding,)  # not in sm_80's language
