"""COMPILE_AHEAD: a pass compiles what a measuring process will look up, on cores of its own or not at all."""
import os
import select
import subprocess
import sys

import pytest

from warm_parent import ROOT

FACTORIES = """
import sys, torch
import _compile_ahead_plugin as plugin
big, small = (1 << 12, 1 << 12), (4, 4)
for name, arguments in (("randn", ()), ("rand", ()), ("ones", ())):
    make = plugin.zeros_where_large(getattr(torch, name), name)
    for call in (lambda size: make(size, dtype=torch.float16), lambda size: make(*size, dtype=torch.float16)):
        assert call(big).shape == big and call(big).dtype == torch.float16 and not call(big)[0].any(), name
        assert call(small).shape == small and call(small).any(), name
make = plugin.zeros_where_large(torch.randint, "randint")
assert make(3, 9, big).dtype == torch.int64 and not make(3, 9, big)[0].any() and make(3, 9, small).min() >= 3
assert make(5, 6, size=big, dtype=torch.int32).dtype == torch.int32 and make(5, (2,)).shape == (2,)
assert plugin.zeros_where_large(torch.full, "full")(big, 7.0, dtype=torch.float16).shape == big
"""
CHOICE = """
import os, sys, host_device
host_device.install(host_device.read_target(os.environ))
import flag_gems
mm = sys.modules.get("hopper.ops.mm")
print("Hopper's own mm:", len(mm.matmul_get_configs()) if mm else "not chosen")
"""
LOCK = """
import sys
from pathlib import Path
import _compile_ahead_plugin as plugin
cores = sorted(Path(sys.argv[1]).iterdir())
for _ in range(3):
    print(Path(f"/proc/self/fd/{plugin.take_core(cores)}").readlink().name, flush=True)
"""
TWO_CORES = """
import runpy, sys
from screen import ahead
ahead.MIN_CORES, ahead.PER_DEVICE, ahead.PLUGINS = 2, 1, sys.argv.pop() or ahead.PLUGINS
runpy.run_path("run_batch.py", run_name="__main__")
"""
BOTH_CORES = """
import os, runpy
from screen import ahead, engine
cores = sorted(os.sched_getaffinity(0))[:2]
engine.start_ahead = lambda screen, say: ahead.Ahead(screen, cores, cores, ahead.find_target(screen))
runpy.run_path("run_batch.py", run_name="__main__")
"""
SLOW_PASS = """
import os, sys, time
while os.environ.get("COMPILE_PASS") and "test_gelu" in " ".join(sys.orig_argv) and not os.path.exists(os.environ["UNTIL"]):
    time.sleep(0.1)
"""
PASS = {"COMPILE_PASS": "1", "HOST_MODE": "compile", "PYTEST_EXTRA": "--metrics=latency",
        "PLUGINS": "_device_guard_plugin _seed_plugin _host_device_plugin _rlc_switch_plugin _compile_ahead_plugin"}


def run_softmax(folder, name, **environ):
    """run_pytest.sh of softmax; its output. Each run has a tuner cache, and so generated code, of its own."""
    env = {**os.environ, "PYTHON": sys.executable, "DEVICE": "host:0", "HOST_TARGET": "cuda:90", "RUN_DIR": str(folder / name),
           "TRITON_CACHE_DIR": str(folder / "triton"), "FLAGGEMS_CACHE_DIR": str(folder / f"gems-{name}"),
           "OMP_NUM_THREADS": "1", **environ}
    done = subprocess.run([ROOT / "run_pytest.sh", "softmax"], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def list_cubins(folder):
    return sorted(path.relative_to(folder) for path in (folder / "triton").rglob("*.cubin"))


def test_a_pass_compiles_what_the_measuring_process_looks_up(tmp_path):
    ahead = run_softmax(tmp_path, "ahead", **PASS)
    compiled = list_cubins(tmp_path)
    assert len(compiled) >= 3 and "SUCCESS                    N/A" in ahead     # torch's own column is not called
    run_softmax(tmp_path, "measure")
    assert list_cubins(tmp_path) == compiled


def test_large_inputs_are_zeros_of_the_same_kind():
    subprocess.run([sys.executable, "-c", FACTORIES], env={**os.environ, "PYTHONPATH": str(ROOT / "plugins")}, check=True)


@pytest.mark.parametrize("is_pass, said", [("1", "162"), ("", "not chosen")])     # 216, less those beyond its shared memory
def test_only_a_pass_chooses_the_operators_of_one_chip(is_pass, said):
    env = {**os.environ, "PYTHONPATH": str(ROOT / "plugins"), "HOST_TARGET": "cuda:90", "HOST_MODE": "compile",
           "COMPILE_PASS": is_pass}
    done = subprocess.run([sys.executable, "-c", CHOICE], env=env, capture_output=True, text=True, timeout=120)
    assert f"Hopper's own mm: {said}\n" in done.stdout, done.stdout + done.stderr


def test_no_more_configurations_are_compiled_at_once_than_there_are_cores(tmp_path):
    for core in ("6", "7"):
        (tmp_path / core).touch()
    with subprocess.Popen([sys.executable, "-c", LOCK, str(tmp_path)], env={**os.environ, "PYTHONPATH": str(ROOT / "plugins")},
                          stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "6\n" and child.stdout.readline() == "7\n"
        assert not select.select([child.stdout], [], [], 0.5)[0]      # the third waits
        child.kill()


def run_batch(folder, **environ):
    """run_batch.py of the skipped operator, on two cores."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    env = {**os.environ, "PYTHON": sys.executable, "RUNS": str(folder), "OPS": "conv2d", "DEVICES": "host:0", **environ}
    return subprocess.run([sys.executable, ROOT / "run_batch.py"], env=env, capture_output=True, text=True, timeout=300,
                          preexec_fn=lambda: os.sched_setaffinity(0, cores))


def test_with_too_few_cores_it_is_off_and_that_is_said(tmp_path):
    done = run_batch(tmp_path, COMPILE_AHEAD="1")
    assert done.returncode == 0 and done.stdout.count("compile-ahead: off: ") == 1, done.stdout + done.stderr
    assert not list(tmp_path.glob("screen-*/.ahead"))


@pytest.mark.parametrize("plugins, said", [("no_such_plugin", 1), ("", 0)])
def test_a_pass_that_fails_is_said_once_and_costs_nothing_else(tmp_path, plugins, said):
    env = {**os.environ, "PYTHON": sys.executable, "RUNS": str(tmp_path), "OPS": "abs,softmax,gelu", "DEVICES": "host:0",
           "COMPILE_AHEAD": "1", "HOST_MODE": "compile", "PYTHONPATH": str(ROOT), "DTYPES": "float16"}
    done = subprocess.run([sys.executable, "-c", TWO_CORES, plugins], env=env, cwd=ROOT, capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0 and "3 ops: 3 ok" in done.stdout, done.stdout + done.stderr
    why = "its pass ended with exit status 2 (run_pytest.sh: error: PLUGINS: no_such_plugin: no plugins/no_such_plugin.py"
    assert done.stdout.count("its pass ended") == done.stdout.count(why) == said


@pytest.mark.parametrize("budget, order", [("", ["abs", "softmax", "gelu"]), ("1h", ["abs", "gelu", "softmax"])])
def test_one_that_is_still_being_compiled_lets_the_others_come_first(tmp_path, budget, order):
    """gelu's pass ends once softmax is measured; a budget's order is kept all the same."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_PASS)
    env = {**os.environ, "PYTHON": sys.executable, "RUN": str(tmp_path / "run"), "OPS": "abs,gelu,softmax", "DEVICES": "host:0",
           "WARM": "0", "COMPILE_AHEAD": "2", "HOST_MODE": "compile", "PYTHONPATH": f"{tmp_path}:{ROOT}", "DTYPES": "float16",
           "BUDGET": budget,
           "UNTIL": str(tmp_path / "run/samples" / order[1] / ".complete")}
    done = subprocess.run([sys.executable, "-c", BOTH_CORES], env=env, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[2].partition("/")[2] for line in done.stdout.splitlines() if line.startswith("[")] == order, done.stdout


@pytest.mark.parametrize("value", ["many", "-1", "1.5"])
def test_a_value_that_is_no_number_is_refused(tmp_path, value):
    done = run_batch(tmp_path, COMPILE_AHEAD=value)
    assert done.returncode == 2 and f"COMPILE_AHEAD: {value}: " in done.stderr
