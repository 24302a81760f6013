"""inventory_tree.py - a tree with every way in which a benchmark and a test can be written, for ops/rebuild_inventory.py."""

BASE = '''
from . import consts
class Benchmark:
    DEFAULT_DTYPES = consts.FLOAT_DTYPES
    def __init__(self, op_name, torch_op, dtypes=None, is_backward=False, **kwargs): pass
    def set_shapes(self, path): pass
    def run(self): pass
class GenericBenchmark(Benchmark):
    def __init__(self, *args, input_fn=None, **kwargs):
        super().__init__(*args, **kwargs)
class BlasBenchmark(Benchmark): pass
'''
CONSTS = '''
import torch
FLOAT_DTYPES = [torch.float16, torch.float32]
INT_DTYPES = [torch.int16, torch.int32]
HALF = [torch.half]
'''
TREE = {
    "conf/operators.yaml": '''
ops:
  - id: relu
    for: [relu]
  - id: to_copy
    for: [_to_copy]
  - id: silu_and_mul
''',
    "benchmark/__init__.py": "",
    "benchmark/conftest.py": "",
    "benchmark/base.py": BASE,
    "benchmark/consts.py": CONSTS,
    "benchmark/core_shapes.yaml": "BlasBenchmark:\n  shapes: [[1, 2, 3, 4]]\nrelu:\n  shapes: [[64]]\n",
    "benchmark/helpers.py": "def test_data(): return 1\n",
    "benchmark/test_nothing.py": "import pytest\n@pytest.fixture\ndef test_tensor(): return 1\n",
    # Plain marks, guards, in place, backward, two operators in one file.
    "benchmark/test_relu.py": '''
import pytest
from . import base, consts
REASON = "Issue #1: not working"
@pytest.mark.relu
@pytest.mark.skipif(1 > 2, reason=REASON)
def test_relu():
    bench = base.GenericBenchmark(op_name="relu", torch_op=None, dtypes=consts.FLOAT_DTYPES + consts.HALF)
    bench.run()
@pytest.mark.relu_
@pytest.mark.skip("never")
def test_relu_inplace():
    base.GenericBenchmark("relu_", None, consts.INT_DTYPES).run()
@pytest.mark.relu_out
def test_relu_out():
    dtypes = consts.INT_DTYPES
    if base:
        dtypes = consts.FLOAT_DTYPES
    base.Benchmark(op_name="relu_out", torch_op=None, dtypes=dtypes).run()
@pytest.mark.relu_backward
def test_relu_backward():
    if not base:
        pytest.skip("no base")
    base.Benchmark(op_name="relu", torch_op=None, is_backward=True).run()
''',
    # Marks that pytest refuses to make by attribute, and by getattr; two marks on one function.
    "benchmark/test_to_copy.py": '''
import pytest
from _pytest.mark.structures import Mark, MarkDecorator
from . import base
setattr(pytest.mark, "_to_copy", MarkDecorator(Mark("_to_copy", (), {}, _ispytest=True), _ispytest=True))
@pytest.mark._to_copy
def test_to_copy():
    base.Benchmark(op_name="_to_copy", torch_op=None, dtypes=None).run()
@getattr(pytest.mark, "to_copy_out")
def test_to_copy_out():
    base.Benchmark(op_name="to_copy_out", torch_op=None).run()
@pytest.mark.second
@pytest.mark.performance
@pytest.mark.first
def test_both():
    base.Benchmark(op_name="both", torch_op=None).run()
''',
    # A module's mark, a class's mark, a class of its own for shapes.
    "benchmark/test_silu.py": '''
import pytest
from . import base
pytestmark = [pytest.mark.silu, pytest.mark.filterwarnings("ignore")]
class OwnShapes(base.GenericBenchmark):
    def set_shapes(self, path):
        self.shapes = [(1,)]
def run(name, dtypes):
    OwnShapes(op_name=name, torch_op=None, dtypes=dtypes).run()
def test_silu():
    run("silu", [base.consts.torch.float32])
@pytest.mark.silu_and_mul
class TestGroup:
    def test_forward(self):
        run(name="silu_and_mul", dtypes=None)
''',
    # Cases of one function that belong to different operators.
    "benchmark/test_blas.py": '''
import pytest
from . import base
@pytest.mark.parametrize("name", [
    pytest.param("mm", marks=pytest.mark.mm, id="mm"),
    pytest.param("bmm", marks=[pytest.mark.bmm], id="b mm"),
])
def test_blas(name):
    base.BlasBenchmark(op_name=name, torch_op=None).run()
''',
    # What only pytest can know: a computed mark, functions made in a loop, no mark at all.
    "benchmark/test_dynamic.py": '''
import pytest
from . import base
NAME = "".join(["dyn", "amic"])
@getattr(pytest.mark, NAME)
def test_dynamic():
    base.Benchmark(op_name="dynamic_op", torch_op=None).run()
def make(name):
    @getattr(pytest.mark, name)
    @pytest.mark.skipif(False, reason="made")
    def test():
        pass
    return test
for name in ("made_a", "made_b"):
    globals()[f"test_{name}"] = make(name)
if False:
    @pytest.mark.never
    def test_never():
        pass
def test_perf_unmarked_benchmark():
    pass
''',
    # A module that skips itself: pytest collects nothing of it.
    "benchmark/test_vendor.py": '''
import pytest
pytest.skip("no vendor library", allow_module_level=True)
@pytest.mark.vendor_op
def test_vendor(): pass
''',
    # The same file name as above, in a folder that is no package.
    "benchmark/extra/test_more.py": "import pytest\n@pytest.mark.more_one\ndef test_more(): pass\n",
    "benchmark/other/test_more.py": "import pytest\n@pytest.mark.more_two\ndef test_more(): pass\n",
    "tests/__init__.py": "",
    "tests/test_relu.py": '''
import pytest
pytestmark = pytest.mark.relu
@pytest.mark.parametrize("n", [1, 2])
def test_accuracy(n): pass
class TestMore:
    def test_inside(self): pass
''',
    "tests/test_blas.py": '''
import pytest
@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.mm), pytest.param(2, marks=pytest.mark.bmm)])
def test_blas(n): pass
@pytest.mark.orphan
def test_orphan(): pass
''',
}


def write_tree(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
