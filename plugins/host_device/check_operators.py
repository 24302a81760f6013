"""FlagGems operators against torch, for check.py: one small case per family, in fp32, fp16 and bf16.

The reference is torch on float64 copies of the same inputs. Outputs that the operators allocate start as NaN.
"""

import contextlib

import torch
import torch.nn.functional as F

from .check_kernels import poison

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
ALLOCATORS = ("empty", "empty_like", "empty_strided")


@contextlib.contextmanager
def poisoned_allocations():
    """Within, torch.empty and its kin return memory full of 0xFF bytes (NaN): stale right answers would otherwise come
    back from the allocator and prove nothing."""
    originals = {name: getattr(torch, name) for name in ALLOCATORS}

    def poisoning(allocate):
        def call(*args, **kwargs):
            return poison_storage(allocate(*args, **kwargs))

        return call

    for name, allocate in originals.items():
        setattr(torch, name, poisoning(allocate))
    try:
        yield
    finally:
        for name, allocate in originals.items():
            setattr(torch, name, allocate)


def poison_storage(tensor):
    if tensor.device.type == "cpu" and tensor.numel() and tensor.is_contiguous():
        poison(tensor)
    return tensor


def make_inputs():
    """Named float64 tensors: odd sizes, so that every block has masked lanes."""
    generator = torch.Generator().manual_seed(1234)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    shapes = {
        "x": (7, 67),
        "y": (7, 67),
        "w": (67, 33),
        "gain": (67,),
        "bias": (67,),
        "row": (33,),
        "batch": (2, 7, 67),
        "weights": (2, 67, 5),
        "image": (2, 4, 3, 5),
    }
    return {name: normal(*shape) for name, shape in shapes.items()}


INDEX = torch.tensor([3, 1, 6, 1])
COLUMNS = torch.arange(7 * 5).reshape(7, 5) % 67

# name -> function of the named inputs (as attributes of `t`)
OPERATORS = {
    "abs": lambda t: torch.abs(t.x),
    "add (alpha, broadcast)": lambda t: torch.add(t.x, t.gain, alpha=0.3),
    "mul (scalar)": lambda t: t.x * 0.1,
    "div": lambda t: t.x / (t.y.abs() + 1),
    "pow (scalar)": lambda t: torch.pow(t.x.abs(), 1.5),
    "clamp": lambda t: torch.clamp(t.x, -0.5, 0.5),
    "gelu": lambda t: F.gelu(t.x),
    "silu": lambda t: F.silu(t.x),
    "gt": lambda t: t.x > t.y,
    "where": lambda t: torch.where(t.x > 0, t.x, t.y),
    "masked_fill": lambda t: t.x.masked_fill(t.y > 0, 7.0),
    "any (mask and)": lambda t: (t.x > 2).any(1),
    "sum (all)": lambda t: t.x.sum(),
    "sum (dim)": lambda t: t.x.sum(1),
    "mean": lambda t: t.x.mean(0),
    "max": lambda t: t.x.max(1).values,
    "argmax": lambda t: t.x.argmax(1),
    "var_mean": lambda t: torch.var_mean(t.x, 1)[0],
    "cumsum": lambda t: t.x.cumsum(1),
    "softmax": lambda t: torch.softmax(t.x, -1),
    "log_softmax": lambda t: torch.log_softmax(t.x, -1),
    "layer_norm": lambda t: F.layer_norm(t.x, (67,), t.gain, t.bias),
    "group_norm": lambda t: F.group_norm(t.image, 2),
    "mm": lambda t: t.x @ t.w,
    "addmm": lambda t: torch.addmm(t.row, t.x, t.w, beta=0.5, alpha=2.0),
    "bmm": lambda t: torch.bmm(t.batch, t.weights),
    "topk": lambda t: torch.topk(t.x, 5).values,
    "index_select": lambda t: torch.index_select(t.x, 0, INDEX),
    "gather": lambda t: torch.gather(t.x, 1, COLUMNS),
    "tril": lambda t: torch.tril(t.x),
    "flip (strided)": lambda t: t.x.flip(1),
    "cat": lambda t: torch.cat([t.x, t.y], 1),
}


class Inputs:
    """The named inputs in one dtype."""

    def __init__(self, tensors, dtype):
        for name, tensor in tensors.items():
            setattr(self, name, tensor.to(dtype))


def run_operator(name, dtype, use_gems):
    """(computed by FlagGems, computed by torch from the same rounded inputs in float64)."""
    narrow = Inputs(make_inputs(), dtype)
    wide = Inputs(vars(narrow), torch.float64)
    wanted = OPERATORS[name](wide)
    with poisoned_allocations(), use_gems():
        got = OPERATORS[name](narrow)
    return got, wanted


def check_seeds(use_gems):
    """torch.manual_seed is honoured, also with the same seed again; states can be saved and set; seeds differ.

    Returns (facts, all ones)."""
    generator = torch.cpu.default_generators[0]

    def draw(seed=None):
        if seed is not None:
            torch.manual_seed(seed)
        with poisoned_allocations(), use_gems():
            return torch.rand(50)

    first, second, again, other = draw(7), draw(), draw(7), draw(8)
    state = generator.get_state()
    before = draw()
    draw(9)
    generator.set_state(state)
    after = draw()
    facts = [
        torch.equal(first, again),
        not torch.equal(first, second),
        not torch.equal(first, other),
        torch.equal(before, after),
        bool(((first >= 0) & (first < 1)).all()),
    ]
    return torch.tensor(facts).float(), torch.ones(len(facts))


def check_own_generator(use_gems):
    """A generator that the caller made and seeded is honoured in the same way. Returns (facts, all ones)."""
    generator = torch.Generator()

    def draw(seed=None):
        if seed is not None:
            generator.manual_seed(seed)
        with use_gems():
            return poison(torch.empty(50)).uniform_(generator=generator)

    first, second, again, other = draw(7), draw(), draw(7), draw(8)
    state = generator.get_state()
    before = draw()
    generator.manual_seed(9)
    generator.set_state(state)
    after = draw()
    facts = [
        torch.equal(first, again),
        not torch.equal(first, second),
        not torch.equal(first, other),
        torch.equal(before, after),
        bool(((first >= 0) & (first < 1)).all()),
    ]
    return torch.tensor(facts).float(), torch.ones(len(facts))
