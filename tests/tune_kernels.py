"""Helper of test_tune_compile.py: copied to a folder as test_it.py and run there under the host device.

Each test tunes kernels. events.jsonl gets a line per compilation and per launch, a tuner's trials too: ["compiled" or
"launched", kernel, BLOCK, by the main thread or how many threads there were]. BLOCK 512 never compiles.
"""
import json
import threading

import torch
import triton
import triton.language as tl
from flag_gems.utils import libentry, libtuner
from triton.tools.tensor_descriptor import TensorDescriptor

BLOCKS = (512, 16, 32, 64)
CONFIGS = [triton.Config({"BLOCK": block}, num_warps=2) for block in BLOCKS]


def note(*event):
    with open("events.jsonl", "a") as file:
        print(json.dumps(event), file=file)


def listen(src, previous=triton.knobs.compilation.listener, **more):
    previous(src=src, **more)
    block = next(value for path, value in src.constants.items() if src.fn.arg_names[path[0]] == "BLOCK")
    note("compiled", src.fn.__name__, block, threading.current_thread() is threading.main_thread())


triton.knobs.compilation.listener = listen


def make_grid(name):
    """Triton asks for it at a launch, also at one that a trial makes."""
    return lambda meta: (note("launched", name, meta["BLOCK"], threading.active_count()), (1,))[1]


def set_block(arguments):
    arguments["descriptor"].block_shape = [arguments["BLOCK"], arguments["BLOCK"]]


@libentry()
@libtuner(configs=CONFIGS, key=["n"])
@triton.heuristics({"EVEN": lambda arguments: arguments["n"] % 2 == 0})
@triton.jit
def dot_kernel(x, y, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK < 512)
    rows, columns = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    a = tl.load(x + rows * n + columns)
    total = tl.sum(tl.dot(a, tl.trans(a)), axis=1)
    tl.store(y + tl.arange(0, BLOCK), total)


@triton.autotune(configs=[triton.Config({"BLOCK": block}, pre_hook=set_block) for block in BLOCKS[1:]], key=["n"])
@triton.jit
def descriptor_kernel(descriptor, y, n, BLOCK: tl.constexpr):
    block = descriptor.load([0, 0])
    tl.store(y + tl.arange(0, BLOCK), tl.sum(block.to(tl.float32), axis=1))


@triton.autotune(configs=[triton.Config({"BLOCK": block}, pre_hook=set_block if block == 16 else None) for block in BLOCKS[1:]],
                 key=["n"])
@triton.jit
def mixed_kernel(descriptor, y, n, BLOCK: tl.constexpr):
    tl.store(y + tl.arange(0, BLOCK), 1.0)


@triton.autotune(configs=CONFIGS[1:2], key=["n"])
@triton.jit
def single_kernel(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 1.0)


def test_dot():
    x, y = torch.zeros(64, 64, dtype=torch.float16), torch.zeros(64)
    for _ in range(2):
        dot_kernel[make_grid("dot")](x, y, 64)


def test_descriptor():
    x, y = torch.zeros(64, 64, dtype=torch.float16), torch.zeros(64)
    for name, kernel in (("descriptor", descriptor_kernel), ("mixed", mixed_kernel)):
        kernel[make_grid(name)](TensorDescriptor.from_tensor(x, [8, 8]), y, 64)


def test_single():
    single_kernel[make_grid("single")](torch.zeros(64), 64)
