"""_kernel_key_plugin: a kernel that names a tl.constexpr function is compiled once, not once in each process."""
import os
import subprocess
import sys

import pytest

from warm_parent import ROOT

KERNEL = """
import torch, triton
import triton.language as tl

@tl.constexpr
def choose_type(dtype):
    return tl.float32{change}

@triton.jit
def widen(x, y, BLOCK: tl.constexpr):
    kind: tl.constexpr = choose_type(x.type.element_ty)
    tl.store(y + tl.arange(0, BLOCK), tl.load(x + tl.arange(0, BLOCK)).to(kind))

def test_widen():
    x = torch.ones(16)
    widen[(1,)](x, torch.empty(16), BLOCK=16)
"""

TWINS = """
import os, pytest, torch, triton
import triton.language as tl
FACTOR = int(os.environ["FACTOR"])

def make(function):
    choose = tl.constexpr(function)
    @triton.jit
    def widen(y, BLOCK: tl.constexpr):
        tl.store(y + tl.arange(0, BLOCK), choose(BLOCK))
    return widen

def close(n):
    return lambda size: size + n

@pytest.mark.parametrize("function", [lambda n: n + 1, lambda n: n + 2, close(3), close(4),
                                      lambda n, more=5: n + more, lambda n: n + FACTOR])
def test_each(function):
    make(function)[(1,)](torch.empty(16, dtype=torch.int32), BLOCK=16)
"""


def run_kernel(folder, plugins, text=KERNEL.format(change=""), **environ):
    """How many compiled kernels the shared cache of `folder` holds after one more process."""
    (folder / "test_it.py").write_text(text)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "plugins"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "HOST_TARGET": "cuda:90",
           "HOST_MODE": "compile", "TRITON_CACHE_DIR": str(folder / "cache"), **environ}
    options = [word for name in plugins for word in ("-p", name)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py", *options]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return len(list(folder.rglob("widen.cubin")))


@pytest.mark.parametrize("plugins, kernels", [
    (("_host_device_plugin",), [1, 2]), (("_kernel_key_plugin", "_host_device_plugin"), [1, 1])])
def test_a_second_process_finds_the_kernel(tmp_path, plugins, kernels):
    assert [run_kernel(tmp_path, plugins) for _ in range(2)] == kernels


def test_another_function_is_another_kernel(tmp_path):
    plugins = ("_kernel_key_plugin", "_host_device_plugin")
    assert [run_kernel(tmp_path, plugins), run_kernel(tmp_path, plugins, KERNEL.format(change="  # as ever"))] == [1, 2]


def test_functions_that_differ_in_anything_have_kernels_of_their_own(tmp_path):
    plugins = ("_kernel_key_plugin", "_host_device_plugin")
    assert run_kernel(tmp_path, plugins, TWINS, FACTOR="6") == 6
    # The two lambdas are found again; a closure's, a default's and a global's value are not in the key: those are compiled anew.
    assert run_kernel(tmp_path, plugins, TWINS, FACTOR="7") == 6 + 4
