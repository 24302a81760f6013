#!/usr/bin/env python3
"""bench_tune.py - how much faster a sweep is compiled on threads (plugins/_tune_compile_plugin.py).

USAGE    bench_tune.py      (make bench; never part of the tests)
WHAT     A matmul and a kernel like a layer norm, of 16 configurations each, tuned on the host device in HOST_MODE=compile, all of
         them tried, with an empty compile cache for each number of threads. A trial times nothing there, and no launcher is
         built. Figures of a machine whose cores others use too say nothing.
OUTPUT   kernel        threads   seconds   ratio
         matmul              1      3.59    1.00
         matmul              2      1.71    2.11
EXIT     0               REQUIRES torch, triton, flag_gems; Linux
"""
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "plugins"))

from bench_kernels_on_host import load_kernels  # noqa: E402

KERNELS = '''
import triton, triton.language as tl

def make_matmul():
    @triton.autotune(configs=[triton.Config({"M": m, "N": n, "K": k}, num_warps=w, num_stages=3)
                              for m in (64, 128) for n in (64, 128) for k in (32, 64) for w in (4, 8)], key=["size"])
    @triton.jit
    def matmul(x, y, z, size, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
        rows, columns, depth = tl.program_id(0) * M + tl.arange(0, M), tl.program_id(1) * N + tl.arange(0, N), tl.arange(0, K)
        total = tl.zeros((M, N), tl.float32)
        for start in range(0, size, K):
            inside = start + depth < size
            a = tl.load(x + rows[:, None] * size + (start + depth)[None, :], mask=inside[None, :], other=0.0)
            b = tl.load(y + (start + depth)[:, None] * size + columns[None, :], mask=inside[:, None], other=0.0)
            total = tl.dot(a, b, total)
        tl.store(z + rows[:, None] * size + columns[None, :], total, mask=(rows < size)[:, None] & (columns < size)[None, :])
    return matmul

def make_norm():
    @triton.autotune(configs=[triton.Config({"N": n}, num_warps=w) for n in (512, 1024, 2048, 4096) for w in (2, 4, 8, 16)],
                     key=["size"])
    @triton.jit
    def norm(x, y, z, size, N: tl.constexpr):
        total, squares = tl.zeros((N,), tl.float32), tl.zeros((N,), tl.float32)
        for start in range(0, size, N):
            at = start + tl.arange(0, N)
            value = tl.load(x + at, mask=at < size, other=0.0).to(tl.float32)
            total, squares = total + value, squares + value * value
        mean = tl.sum(total) / size
        scale = tl.rsqrt(tl.sum(squares) / size - mean * mean + 1e-5)
        for start in range(0, size, N):
            at = start + tl.arange(0, N)
            value, weight = tl.load(x + at, mask=at < size, other=0.0), tl.load(y + at, mask=at < size, other=0.0)
            tl.store(z + at, tl.exp((value - mean) * scale) * weight, mask=at < size)
    return norm
'''


def main():
    """Print the table; the exit status."""
    with load_kernels(KERNELS) as (bench_kernels, folder):
        from host_device import autotune_shim
        autotune_shim.tuning_session = lambda tuner: {"winner_found": False}    # every configuration is tried
        tune(bench_kernels.make_norm)       # what the first compilation of a process costs
        counts = [1] + [count for count in (2, 4, 8, 16) if count <= len(os.sched_getaffinity(0))]
        print(f"{'kernel':12}{'threads':>9}{'seconds':>10}{'ratio':>8}")
        for name, make in (("matmul", bench_kernels.make_matmul), ("norm", bench_kernels.make_norm)):
            seconds = {}
            for count in counts:
                os.environ["TRITON_CACHE_DIR"] = f"{folder}/{name}-{count}"
                seconds[count] = tune_on(count, make)
                print(f"{name:12}{count:9}{seconds[count]:10.2f}{seconds[1] / seconds[count]:8.2f}", flush=True)
    return 0


def tune_on(threads, make):
    """Seconds of one tuned launch of a new kernel, with that many threads."""
    from _tune_compile_plugin import SweepCompiler
    from _tuner_sweep import watch_sweeps
    from triton.runtime import _async_compile
    from triton.runtime.autotuner import Autotuner

    before = Autotuner.prune_configs, Autotuner._bench
    if threads > 1:
        watch_sweeps(SweepCompiler(threads, _async_compile).compile_sweep)
    try:
        return tune(make)
    finally:
        Autotuner.prune_configs, Autotuner._bench = before


def tune(make):
    import torch

    kernel, data = make(), [torch.zeros(1 << 12, dtype=torch.float16) for _ in range(3)]
    start = time.perf_counter()
    kernel[(1, 1)](*data, 64)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
