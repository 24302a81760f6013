"""The host device as a pytest plugin: what a session sees, what it writes, what it refuses. Real kernels, no stubs."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

MEND = "; run `make host-matrix` to check other versions and put those that pass on the list\n"
KERNELS = """
import pytest, torch, triton, triton.language as tl, triton.testing

@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)

@triton.jit
def stray_kernel(x, out):
    tl.store(out, tl.load(x + 4))

def double(x):
    out = torch.full_like(x, float("nan"))
    double_kernel[(triton.cdiv(len(x), 8),)](x, out, len(x), 8)
    return out
"""
TESTS = """
from kernels import *

def test_values():
    assert double(torch.tensor([1.0, 2.5, -3.0])).tolist() == [2.0, 5.0, -6.0]

def test_stray():
    stray_kernel[(1,)](torch.zeros(4), torch.zeros(1))

def test_after_stray():
    assert double(torch.arange(9.0)).tolist() == [0, 2, 4, 6, 8, 10, 12, 14, 16]

def test_idle():
    assert torch.ones(2).sum() == 2

@pytest.mark.parametrize("size", [3, 0])
def test_some_are_empty(size):
    if size:
        assert double(torch.ones(size)).tolist() == [2.0, 2.0, 2.0]

@pytest.mark.parametrize("size", [1, 2])
def test_all_idle(size):
    assert len(torch.ones(size)) == size

@pytest.mark.half_idle
def test_marked_launches():
    assert double(torch.ones(1)).tolist() == [2.0]

@pytest.mark.half_idle
def test_marked_is_empty():
    pass

def test_skipped():
    pytest.skip("not here")

def test_do_bench_calls_once():
    calls = []
    triton.testing.do_bench(lambda: calls.append(double(torch.ones(8))), warmup=1000, rep=1000)
    assert len(calls) == 1

@triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 8})], key=["n"])
@triton.jit
def tuned_kernel(out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + i, 1.0, mask=i < n)

def test_tuning_executes_no_trial():
    out = torch.zeros(20)
    tuned_kernel[lambda meta: (triton.cdiv(20, meta["BLOCK"]),)](out, 20)
    assert out.tolist() == [1.0] * 20 and tuned_kernel.best_config.kwargs == {"BLOCK": 16}
"""
SEEDS = """
import torch, pytest
from host_device.philox import PhiloxGenerator

def test_generator(request):
    generator = torch.cuda.default_generators[0]
    torch.manual_seed(5)
    generator.set_offset(12)
    assert generator.get_state().tolist() == [5] + [0] * 7 + [12] + [0] * 7
    torch.manual_seed(5)
    assert (generator.initial_seed(), generator.get_offset()) == (5, 0)
    torch.manual_seed(-1)
    assert generator.initial_seed() == 2**64 - 1
    other = PhiloxGenerator().set_state(torch.arange(16, dtype=torch.uint8))
    assert (other.initial_seed(), other.get_offset()) == (0x0706050403020100, 0x0F0E0D0C0B0A0908)
    with pytest.raises(RuntimeError, match="RNG state has 8 bytes; the host device's generator needs 16"):
        other.set_state(torch.zeros(8, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match=r"seed 18446744073709551616 is not in"):
        other.manual_seed(2**64)
"""


def run_pytest(folder, *args, **environ):
    """pytest in `folder` with the plugin; HOST_TARGET=cuda:90 unless `environ` says otherwise."""
    path = os.pathsep.join([str(ROOT / "plugins"), str(folder)])
    environ = {"HOST_TARGET": "cuda:90", "HOST_MODE": "", "PYTHONPATH": path, "COLUMNS": "200", **environ}
    command = [sys.executable, "-m", "pytest", "-p", "_host_device_plugin", "-p", "no:cacheprovider", "-q", "-rA"]
    return subprocess.run(
        [*command, *args], cwd=folder, env={**os.environ, **environ}, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "kernels.py").write_text(KERNELS)
    (folder / "test_kernels.py").write_text(TESTS)
    (folder / "test_seeds.py").write_text(SEEDS)
    (folder / "test_plain.py").write_text("def test_plain():\n    pass\n")
    return folder


@pytest.fixture(scope="module")
def session(folder):
    return run_pytest(folder, "test_kernels.py", "test_seeds.py", RUN_DIR=str(folder))


def outcome_of(session, test):
    return [line.split()[0] for line in session.stdout.splitlines() if line.split(" - ")[0].endswith(test)]


def test_values_are_computed(session):
    for test in ("test_values", "test_after_stray", "test_do_bench_calls_once", "test_tuning_executes_no_trial"):
        assert outcome_of(session, f"::{test}") == ["PASSED"], session.stdout
    assert session.returncode == 1


def test_stray_access_fails_its_test_and_names_kernel_and_line(session, folder):
    assert outcome_of(session, "::test_stray") == ["FAILED"]
    wanted = "kernel stray_kernel: load outside every tensor argument (1 of 1 lanes), program (0, 0, 0), "
    assert f"{wanted}{folder}/kernels.py:11\n" in session.stdout


def test_no_launch_is_a_failure_but_a_skip_stays_one(session):
    assert "FAILED test_kernels.py::test_idle - Failed: host device: no Triton kernel was launched\n" in session.stdout
    assert "1 skipped" in session.stdout
    assert outcome_of(session, "::test_marked_is_empty") == ["PASSED"]
    assert [outcome_of(session, f"::test_some_are_empty[{size}]") for size in (3, 0)] == [["PASSED"], ["PASSED"]]
    assert [outcome_of(session, f"::test_all_idle[{size}]") for size in (1, 2)] == [["PASSED"], ["FAILED"]]


def test_generator_state(session):
    # It launches nothing, which the plugin fails; its own assertions must not be what fails.
    failed = "FAILED test_seeds.py::test_generator - Failed: host device: no Triton kernel was launched\n"
    assert failed in session.stdout


def test_launches_are_written(session, folder):
    record = json.loads((folder / "launches.json").read_text())
    assert (record["schema"], record["target"], record["mode"]) == (1, "cuda:90", "execute")
    launches = {}
    for variant in record["variants"]:
        assert set(variant) == {"name", "hash", "launches", "num_warps", "shared", "convert_layout"}
        launches[variant["name"]] = launches.get(variant["name"], 0) + variant["launches"]
    assert launches == {"double_kernel": 5, "stray_kernel": 1, "tuned_kernel": 1}
    assert len(record["variants"]) == len({variant["hash"] for variant in record["variants"]}) >= 3
    assert f"host device: cuda:90, {len(record['variants'])} variants, 7 launches" in session.stdout


def test_compile_mode_counts_and_executes_nothing(folder, tmp_path):
    ended = run_pytest(folder, "test_kernels.py", "-k", "test_values", HOST_MODE="compile", RUN_DIR=str(tmp_path))
    assert ended.returncode == 1 and "assert [nan, nan, nan] == [2.0, 5.0, -6.0]" in ended.stdout
    record = json.loads((tmp_path / "launches.json").read_text())
    assert record["mode"] == "compile"
    assert [(v["name"], v["launches"]) for v in record["variants"]] == [("double_kernel", 1)]


def test_other_target_is_compiled_for(folder, tmp_path):
    ended = run_pytest(folder, "test_kernels.py", "-k", "test_values", HOST_TARGET="cuda:80", RUN_DIR=str(tmp_path))
    assert ended.returncode == 0, ended.stdout
    assert json.loads((tmp_path / "launches.json").read_text())["target"] == "cuda:80"


def test_unset_target_is_no_operation(folder):
    ended = run_pytest(folder, "test_plain.py", HOST_TARGET="")
    assert ended.returncode == 0 and "host device" not in ended.stdout + ended.stderr


@pytest.mark.parametrize(
    "environ, message",
    [
        (
            {"HOST_TARGET": "cuda:75"},
            "HOST_TARGET: 'cuda:75' is no target of the host device; use one of: cuda:80, cuda:90",
        ),
        ({"HOST_MODE": "guess"}, "HOST_MODE: 'guess' is not known; use one of: execute, compile"),
    ],
)
def test_bad_values_are_refused(folder, environ, message):
    ended = run_pytest(folder, "test_plain.py", **environ)
    assert ended.returncode == 2
    assert ended.stderr == f"_host_device_plugin: error: {message}\n"


def test_other_flag_gems_is_refused_before_any_conftest(tmp_path):
    """A package found through pytest.ini's pythonpath, as an upstream checkout is."""
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = src\n")
    (tmp_path / "conftest.py").write_text("import flag_gems\n")
    (tmp_path / "src/flag_gems").mkdir(parents=True)
    (tmp_path / "src/flag_gems/__init__.py").write_text('__version__ = "4.9.1"\n')
    ended = run_pytest(tmp_path)
    assert ended.returncode == 3
    assert ended.stderr.startswith("_host_device_plugin: error: host device: flag_gems 4.9.1 found with triton 3.")
    assert ", wanted 5.0.2" in ended.stderr and ended.stderr.endswith(MEND) and ended.stderr.count("\n") == 1


def test_other_triton_is_refused():
    script = """
import triton
triton.__version__ = "3.99.0"
import host_device
try:
    host_device.install(host_device.parse_target("cuda:90"))
except host_device.HostDeviceError as error:
    print(error.code, error)
"""
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "plugins")}
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environ, timeout=300)
    assert ended.stdout.startswith("3 host device: triton 3.99.0 found, wanted 3.6.0")
    assert ended.stdout.endswith(MEND)
