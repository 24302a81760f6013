"""shapes_tree.py - a small tree whose benchmarks take their shapes in all the ways that upstream's do; for test_shapes.py."""
BASE = '''
class Benchmark:
    DEFAULT_SHAPES = DEFAULT_SHAPES
    def set_shapes(self, shape_file_path=None): ...
    def init_user_config(self): self.set_shapes(None)

class GenericBenchmark(Benchmark):
    def __init__(self, *args, input_fn, **kwargs):
        super().__init__(*args, **kwargs)
    def get_input_iter(self, dtype):
        for shape in self.shapes:
            yield from self.input_fn(shape, dtype, self.device)

class GenericBenchmark2DOnly(GenericBenchmark):
    pass

class UnaryPointwiseBenchmark(Benchmark):
    def get_input_iter(self, dtype):
        for shape in self.shapes:
            yield generate(shape, dtype)

class BlasBenchmark(Benchmark):
    def get_input_iter(self, dtype):
        for b, m, n, k in self.shapes:
            yield from self.input_fn(b, m, n, k, dtype)

def generate(shape, dtype): return torch.randn(shape, dtype=dtype)
def unary_input_fn(shape, dtype, device): yield generate(shape, dtype),
'''
BLAS = '''
from . import base

class BaddbmmBenchmark(base.BlasBenchmark):
    def set_more_shapes(self): return []

class LinearBenchmark(base.BlasBenchmark):
    def get_input_iter(self, dtype):
        for shape in self.shapes:
            batch, m, n, k = shape
            yield batch * m, n, k

class GroupmmBenchmark(base.BlasBenchmark):
    def get_input_iter(self, dtype):
        for groups, n, k in self.shapes:
            yield groups

class AddrBenchmark(base.BlasBenchmark):
    def get_input_iter(self, dtype):
        for shape in self.shapes:
            m, n = shape[0], shape[1]
            yield m, n

class VdotBenchmark(base.BlasBenchmark):
    def get_input_iter(self, dtype):
        for i, shape in enumerate(self.shapes):
            yield from self.input_fn(*shape)

class MvBenchmark(base.GenericBenchmark2DOnly):
    def get_input_iter(self, dtype):
        for m, n in self.shapes:
            yield m, n

def vdot_input(m): yield m
def outer_input(shape, dtype, device):
    m, n = shape
    yield m

def test_mm(): base.BlasBenchmark(op_name="mm", input_fn=None)
def test_baddbmm(): BaddbmmBenchmark(op_name="baddbmm", input_fn=None)
def test_linear(): LinearBenchmark(op_name="linear", input_fn=None)
def test_grouped_mm(): GroupmmBenchmark(op_name="grouped_mm", input_fn=None)
def test_addr(): AddrBenchmark(op_name="addr", input_fn=None)
def test_vdot(): VdotBenchmark(op_name="vdot", input_fn=vdot_input)
def test_mv(): MvBenchmark(op_name="mv", input_fn=None)
def test_outer(): base.GenericBenchmark2DOnly(op_name="outer", input_fn=outer_input)
def test_bmm_backward(): base.BlasBenchmark(op_name="bmm", input_fn=None, is_backward=True)
'''
OTHERS = '''
import pytest
from functools import partial
from . import base
from .base import unary_input_fn

class Conv2DBenchmark(base.GenericBenchmark):
    pass

class AttentionBenchmark(base.GenericBenchmark):
    pass

class TopKBenchmark(base.GenericBenchmark2DOnly):
    def set_shapes(self, shape_file_path=None):
        self.shapes = [(4, 64, 2)]
    def get_input_iter(self, dtype):
        for m, n, k in self.shapes:
            yield m

class FilterBenchmark(base.GenericBenchmark):
    def set_shapes(self, shape_file_path=None):
        super().set_shapes(shape_file_path)
        self.shapes = [shape for shape in self.shapes if len(shape) < 4]

class FitBenchmark(base.GenericBenchmark):
    DEFAULT_SHAPES = [(1, 8, True)]
    def init_user_config(self):
        super().init_user_config()
        if any(len(shape) != 3 for shape in self.shapes):
            self.shapes = self.DEFAULT_SHAPES
    def get_input_iter(self, dtype):
        for tokens, heads, fp4 in self.shapes:
            yield tokens

def conv_input(shape, dtype, device):
    (batch, channels, h, w, out, kh, kw, stride, padding, groups) = shape
    yield batch

def make_input(accumulate):
    def inner(shapes, dtype, device):
        input_shape, indices_shape = shapes
        yield input_shape
    return inner

def offset_input(offset, shape, dtype, device):
    yield shape[2]

def by_length(shape, dtype, device):
    if len(shape) == 1: yield shape[0]
    else: m, n = shape

def test_conv2d(): Conv2DBenchmark(op_name="conv2d", input_fn=conv_input)
def test_sdpa(): AttentionBenchmark(op_name="sdpa", input_fn=base.unary_input_fn)
def test_abs(): base.UnaryPointwiseBenchmark(op_name="abs")
def test_topk(): TopKBenchmark(op_name="topk", input_fn=None)
def test_clip(): FilterBenchmark(op_name="clip", input_fn=unary_input_fn)
def test_fit(): FitBenchmark(op_name="fit", input_fn=None)
def test_index(): base.GenericBenchmark(op_name="index", input_fn=make_input(True))
def test_offset(): base.GenericBenchmark(op_name="offset", input_fn=partial(offset_input, 1))
def test_by_length(): base.GenericBenchmark(op_name="by_length", input_fn=by_length)
def test_lambda(): base.GenericBenchmark(op_name="lambda", input_fn=lambda shape, dtype, device: shape[3])

@pytest.mark.parametrize("name", ["eq", pytest.param("ne")])
def test_compare(name): base.UnaryPointwiseBenchmark(op_name=name)
'''
CORE = '''
shared: &shared
  shapes:
    - [64]
vdot:
  <<: *shared
Benchmark:
  shapes:
    - [1073741824]
    - [64, 64]
  shape_desc: "(B), M, N"
BlasBenchmark:
  shapes:
    - [2, 384, 384, 384]
  shape_desc: "B, M, N, K"
GenericBenchmark2DOnly:
  shapes:
    - [64, 64]
GroupmmBenchmark:
  shapes:
    - [16, 512, 2048]
AddrBenchmark:
  shapes:
    - [64, 64]
Conv2DBenchmark:
  shapes:
    - [32, 64, 128, 128, 32, 3, 3, 1, 1, 1]
AttentionBenchmark:
  shapes:
    - [4, 32, 1024, 64]
index:
  shapes:
    - [[32, 32], [[8], [2, 8]]]
offset:
  shapes:
    - [4, 4, 4]
lambda:
  shapes:
    - [4, 4, 4, 4]
'''


def make_tree(folder):
    """Write the tree below `folder`, which need not be there; returns `folder`."""
    files = {"conftest.py": "", "consts.py": "DEFAULT_SHAPES = [(1024 * 1024 * 1024,), (64, 64)]\n", "base.py": BASE,
             "core_shapes.yaml": CORE, "test_blas.py": BLAS, "test_others.py": OTHERS}
    (folder / "benchmark").mkdir(parents=True)
    for name, text in files.items():
        (folder / "benchmark" / name).write_text(text)
    return folder
