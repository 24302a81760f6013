"""Helper of autotune_runs.py: copied to a folder as test_it.py and run there under the host device.

Each case launches one tuned kernel and appends {"case": [BLOCK of every launch]} to launched.jsonl: the grid function sees
what really is launched. BLOCK 512 never compiles.
"""
import json
import os

import pytest
import torch
import triton
import triton.language as tl
from flag_gems.utils import libtuner
from other_package import other_tuner

BLOCKS = (512, 64, 128)
HOOKED = []


def hook(arguments):
    HOOKED.append(arguments["BLOCK"])


PLAIN = [triton.Config({"BLOCK": b}, num_warps=2) for b in BLOCKS]
WITH_HOOK = [triton.Config({"BLOCK": b}, num_warps=2, pre_hook=hook if b == 128 else None) for b in BLOCKS]


@libtuner(configs=PLAIN, key=["n"])
@triton.jit
def lib_kernel(x, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK < 512)
    tl.store(x + tl.arange(0, BLOCK), 1.0, mask=tl.arange(0, BLOCK) < n)


@libtuner(configs=WITH_HOOK, key=["n"])
@triton.jit
def lib_hook_kernel(x, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK < 512)
    tl.store(x + tl.arange(0, BLOCK), 1.0, mask=tl.arange(0, BLOCK) < n)


@triton.autotune(configs=PLAIN, key=["n"])
@triton.jit
def plain_kernel(x, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK < 512)
    tl.store(x + tl.arange(0, BLOCK), 1.0, mask=tl.arange(0, BLOCK) < n)


@triton.autotune(configs=WITH_HOOK, key=["n"])
@triton.jit
def plain_hook_kernel(x, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK < 512)
    tl.store(x + tl.arange(0, BLOCK), 1.0, mask=tl.arange(0, BLOCK) < n)


@other_tuner(configs=PLAIN, key=["n"])
@triton.jit
def other_kernel(x, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK < 512)
    tl.store(x + tl.arange(0, BLOCK), 1.0, mask=tl.arange(0, BLOCK) < n)


@libtuner(configs=[triton.Config({"BLOCK": b, "ON": on}, num_warps=2) for b in (64, 128) for on in (True, False)], key=["n"])
@triton.jit
def lib_bool_kernel(x, n, BLOCK: tl.constexpr, ON: tl.constexpr):
    tl.static_assert(ON is True)
    tl.store(x + tl.arange(0, BLOCK), 1.0, mask=tl.arange(0, BLOCK) < n)


@triton.autotune(configs=PLAIN, key=["flag"])
@triton.jit
def typed_kernel(x, n, flag: tl.constexpr, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK < 512)
    tl.store(x + tl.arange(0, BLOCK), 1.0, mask=tl.arange(0, BLOCK) < n)


@libtuner(configs=[triton.Config({"BLOCK": 512}, num_warps=w) for w in (1, 2)], key=["n"])
@triton.jit
def hopeless_kernel(x, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK < 512)
    tl.store(x, 1.0)


def make_kernel(key, block):
    """One kernel name and source for tuners that differ: what they may choose, and by which argument."""
    only = {"early_config_prune": lambda configs, *_, **__: [c for c in configs if c.kwargs["BLOCK"] == block]}

    @triton.autotune(configs=PLAIN, key=key, prune_configs_by=only)
    @triton.jit
    def made_kernel(x, n, m, BLOCK: tl.constexpr):
        tl.store(x + tl.arange(0, BLOCK), 1.0, mask=tl.arange(0, BLOCK) < n)

    made_kernel.base_fn.__module__ = f"generated_pid_{os.getpid()}"
    return made_kernel


CASES = {f"{name}-{n}": (kernel, (n,)) for name, kernel, sizes in (
    ("lib", lib_kernel, (64, 100)), ("lib_hook", lib_hook_kernel, (64,)), ("plain", plain_kernel, (64, 100)),
    ("plain_hook", plain_hook_kernel, (64,)), ("other", other_kernel, (64,))) for n in sizes}
TYPED = (True, 1, 1.0, 0.0, -0.0, None)


def launch(kernel, *arguments):
    """Two launches; the BLOCK of each. The second one must choose nothing new."""
    launched, x = [], torch.zeros(128, device="cpu")
    for _ in range(2):
        kernel[lambda meta: (launched.append(meta["BLOCK"]), (1,))[1]](x, *arguments)
    return launched


@pytest.mark.parametrize("case", CASES)
def test_case(case):
    del HOOKED[:]
    kernel, arguments = CASES[case]
    launched = launch(kernel, *arguments)
    with open("launched.jsonl", "a") as file:
        print(json.dumps({case: launched[-2:], "hooked": HOOKED[-2:]}), file=file)


@pytest.mark.skipif("BOOL" not in os.environ, reason="asked for by BOOL=1")
def test_config_with_a_bool():
    launch(lib_bool_kernel, 64)


@pytest.mark.skipif("TYPED" not in os.environ, reason="asked for by TYPED=1")
def test_typed_keys():
    for flag in TYPED:
        launch(typed_kernel, 64, flag)


@pytest.mark.skipif("MADE" not in os.environ, reason="asked for by MADE=1")
def test_tuners_of_one_kernel():
    print("MADE", launch(make_kernel(["n"], 64), 64, 32)[-1], launch(make_kernel(["m"], 128), 32, 64)[-1],
          launch(make_kernel(["n"], 128), 16, 32)[-1], launch(make_kernel(["n"], 128), 16, 32)[-1])


@pytest.mark.skipif("HOPELESS" not in os.environ, reason="asked for by HOPELESS=1")
def test_no_config_compiles():
    launch(hopeless_kernel, 64)


@pytest.mark.skipif("FORKS" not in os.environ, reason="asked for by FORKS=8")
def test_many_processes():
    """FORKS processes tune one key of their own and one that all of them tune; the database is opened after the fork."""
    children = []
    open(os.environ["HELD"], "w").close()  # the lock's holder counts its seconds from here
    for number in range(int(os.environ["FORKS"])):
        pid = os.fork()
        if not pid:
            status = 1
            try:
                launch(lib_kernel, 1000 + number)
                launch(lib_kernel, 999)
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * len(children)
    launch(plain_kernel, 64)  # the host device counts what this process launches
