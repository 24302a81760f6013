"""What needs more shared memory than the device has is not compiled to its end, and its tuner and caller hear what Triton would say."""
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from warm_parent import ROOT

KERNELS = """
import torch
import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=8) for block in (256, 64)]


def listen(src, cache_hit, **_):
    print("\\ncompiled", next(iter(src.constants.values())), "from the cache" if cache_hit else "anew")


triton.knobs.compilation.listener = listen


@triton.jit
def square(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(y + at, tl.dot(tl.load(x + at), tl.load(x + at + 1)))


tuned = triton.autotune(CONFIGS, key=[])(square)


def test_tuned():
    x, y = torch.ones(1 << 17, dtype=torch.float16), torch.zeros(1 << 16)
    tuned[(1,)](x, y)
    print("\\nchosen", tuned.best_config.kwargs["BLOCK"])


def test_direct():
    x, y = torch.ones(1 << 17, dtype=torch.float16), torch.zeros(1 << 16)
    try:
        square[(1,)](x, y, BLOCK=256, num_warps=8)
    except triton.runtime.errors.OutOfResources as error:
        print(f"\\n{error}")
"""
REFUSED = "out of resource: shared memory, Required: {}, Hardware limit: 232448. Reducing block sizes or `num_stages` may help."


@pytest.fixture
def place(tmp_path):
    (tmp_path / "test_it.py").write_text(KERNELS)
    return tmp_path


def run_kernels(place, *names, plugin=True, **environ):
    """The lines that the tests `names` print, and the files of the compile cache by suffix."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "plugins"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TRITON_CACHE_DIR": str(place / "cache"),
           "HOST_TARGET": "cuda:90", "HOST_MODE": "compile", "COMPILE_PASS": "1", **environ}
    plugins = ["_host_device_plugin", *["_shared_memory_plugin"] * plugin, "_compile_ahead_plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *(word for name in plugins for word in ("-p", name))]
    done = subprocess.run([*command, *(f"test_it.py::{name}" for name in names)], cwd=place, env=env, text=True, capture_output=True, timeout=300)
    assert "Traceback" not in done.stdout + done.stderr, done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith(("compiled", "chosen", "out of"))]
    cache = place / "cache"
    return SimpleNamespace(lines=lines, cubins=len(list(cache.rglob("*.cubin"))), sizes=[path.read_text() for path in cache.rglob("shared_bytes")],
                           files=list(cache.rglob("shared_bytes")))


def test_a_sweep_goes_on_without_it_and_a_second_process_knows(place):
    first = run_kernels(place, "test_tuned", "test_direct")
    assert first.lines == ["compiled 64 anew", "chosen 64", REFUSED.format(262144)]
    assert (first.cubins, first.sizes) == (1, ["262144"])
    first.files[0].write_text("262145")
    assert run_kernels(place, "test_direct").lines == [REFUSED.format(262145)]      # so it was read
    first.files[0].write_text("26214x")
    again = run_kernels(place, "test_direct")
    assert (again.lines, again.cubins, again.sizes) == ([REFUSED.format(262144)], 1, ["262144"])


@pytest.mark.parametrize("environ", [{"plugin": False}, {"IR_META": "1"}, {"GEMS_VENDOR": "mthreads"}, {"COMPILE_PASS": ""}],
                         ids=lambda environ: "-".join(environ))
def test_else_it_is_compiled_to_its_end_and_refused_alike(place, environ):
    done = run_kernels(place, "test_direct", **environ)
    assert (done.lines, done.cubins, done.sizes) == (["compiled 256 anew", REFUSED.format(262144)], 1, [])
