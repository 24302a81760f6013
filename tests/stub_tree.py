"""stub_tree.py - a small upstream-shaped tree that needs neither torch nor triton nor flag_gems, for fast tests.

make_tree(path)        path/benchmark/{conftest,base,consts}.py are the sample tree's own files; path/stubs holds just
                       enough of torch, triton and flag_gems for them. An operator's function returns its latency in ms.
add_benchmark(...)     a test file in it
run_script(...)        run_pytest.sh on it; run_plugin(...) pytest itself, with single plugins
"""
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "samples" / "flaggems"

TORCH = '''
class dtype:
    def __init__(self, name): self.name = name
    def __repr__(self): return "torch." + self.name
    @property
    def is_floating_point(self): return "float" in self.name
    is_complex = False

for _name in ("float16 float32 bfloat16 int8 uint8 int16 int32 int64 bool complex64 float8_e4m3fn").split():
    globals()[_name] = dtype(_name)
cfloat, half = complex64, float16

class Size(tuple):
    def __repr__(self): return f"torch.Size({list(self)})"

class Tensor:
    def __init__(self, shape, dtype): self.shape, self.dtype = Size(shape), dtype
    def size(self): return self.shape

def manual_seed(seed): pass

def is_tensor(value): return isinstance(value, Tensor)

class version:
    hip = None

class cuda:
    is_available = staticmethod(lambda: True)
    get_device_name = staticmethod(lambda index: "NVIDIA Stub")
    mem_get_info = staticmethod(lambda index: (3 * 2**30, 4 * 2**30))
    empty_cache = synchronize = staticmethod(lambda: None)

__version__ = "2.0.0+stub"
'''

# As the real one: without GEMS_VENDOR, vendor commands are started and waited for.
FLAG_GEMS = '''
import contextlib, os, subprocess, torch
if not os.environ.get("GEMS_VENDOR"):
    for _command in ("nvidia-smi", "mthreads-gmi"):
        subprocess.run([_command], capture_output=True)
device, vendor_name = "cuda", os.environ.get("GEMS_VENDOR")

class runtime:
    torch_device_fn = torch.cuda

@contextlib.contextmanager
def use_gems(include=None, exclude=None):
    yield
'''

STUBS = {
    "torch.py": TORCH,
    "triton/__init__.py": "from . import testing\n",
    "triton/testing.py": "def do_bench(fn, **options): return fn()\n",
    "flag_gems/__init__.py": FLAG_GEMS,
    "flag_gems/utils/__init__.py": "",
    "flag_gems/utils/shape_utils.py": "",
}

# A benchmark whose inputs are `shapes`; the candidate raises, or the input does, where a test says so.
HEAD = '''
import pytest, torch
from . import base, consts

class Shapes(base.Benchmark):
    SHAPES = [(8, 8), (16, 16), (32, 32)]

    def set_shapes(self, path=None):
        self.shapes = list(self.SHAPES)

    def get_input_iter(self, dtype):
        for shape in self.shapes:
            yield torch.Tensor(shape, dtype), torch.Tensor((4, 4), dtype), {"alpha": 0.5}

def make(op_name, gems=lambda *inputs, **options: 0.005, cls=Shapes, dtypes=(torch.float16, torch.float32), **kwargs):
    bench = cls(op_name, lambda *inputs, **options: 0.006, dtypes=list(dtypes), **kwargs)
    bench.set_gems(gems)
    return bench
'''

PASSES = """
@pytest.mark.one
def test_one():
    make("one").run()
"""


def make_tree(path):
    """A tree in `path` (a Path); returns it."""
    (path / "benchmark").mkdir(parents=True)
    for name in ("__init__.py", "conftest.py", "base.py", "consts.py", "utils.py", "core_shapes.yaml"):
        shutil.copy(SAMPLES / "benchmark" / name, path / "benchmark" / name)
    (path / "pytest.ini").write_text("[pytest]\nfilterwarnings =\n    ignore::pytest.PytestUnknownMarkWarning\n")
    for name, text in STUBS.items():
        (path / "stubs" / name).parent.mkdir(parents=True, exist_ok=True)
        (path / "stubs" / name).write_text(text)
    return path


def add_benchmark(tree, name, text):
    """benchmark/test_NAME.py with HEAD and `text`; returns its path relative to the tree."""
    node = f"benchmark/test_{name}.py"
    (tree / node).write_text(HEAD + textwrap.dedent(text))
    return node


# Those that need no real Triton: the stub one has no tuner to record.
STUB_PLUGINS = "_device_guard_plugin _host_device_plugin _pretty_report_plugin"


def make_env(tree, **changes):
    """The caller's environment without what could reach pytest, plus `changes` (None removes)."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "GEMS_", "FLAGGEMS_"))}
    for name in ("FORCE_COLOR", "NO_COLOR", "PY_COLORS", "PPU_SDK", "PYTHONPATH"):
        env.pop(name, None)
    env.update(PYTHONPATH=str(tree / "stubs"), PYTHONDONTWRITEBYTECODE="1", PYTHON=sys.executable)
    env.update(PLUGINS=STUB_PLUGINS)
    env.update(changes)
    return {k: str(v) for k, v in env.items() if v is not None}


def script_command(op, *nodes):
    return [str(ROOT / "run_pytest.sh"), op, *nodes]


def run_script(tree, op, *nodes, timeout=60, **changes):
    """./run_pytest.sh OP NODE... on `tree`; RUN_DIR is tree/run unless changed. Returns the CompletedProcess."""
    changes = {"FLAGGEMS_DIR": tree, "DEVICE": "0", "RUN_DIR": tree / "run", **changes}
    return subprocess.run(script_command(op, *nodes), env=make_env(tree, **changes), cwd=tree, text=True,
                          capture_output=True, timeout=timeout, check=False)


def run_plugin(tree, plugins, *args, timeout=60, **changes):
    """python -m pytest -s -p PLUGIN... ARGS in `tree`, with plugins/ on PYTHONPATH."""
    env = make_env(tree, **changes)
    env.update(PYTHONPATH=f"{ROOT / 'plugins'}{os.pathsep}{env['PYTHONPATH']}", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    flags = [flag for plugin in plugins for flag in ("-p", plugin)]
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", *flags, *args]
    return subprocess.run(command, env=env, cwd=tree, text=True, capture_output=True, timeout=timeout, check=False)


def read_log(run_dir):
    return (run_dir / "run.log").read_text()


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.05)
