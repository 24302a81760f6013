"""TUNE_THREADS: a sweep is compiled on threads before its first trial, and nothing else changes."""
import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from types import SimpleNamespace

import pytest

from autotune_runs import ROOT, find_tables
from common.state import sha256_file

PLUGINS = ("_host_device_plugin", "_rlc_switch_plugin", "_autotune_record_plugin", "_ir_meta_plugin", "_tune_compile_plugin",
           "_compile_ahead_plugin")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder of the kernels and of all runs: a kernel's path is in its debug information."""
    folder = tmp_path_factory.mktemp("tune")
    (folder / "test_it.py").write_text((ROOT / "tests/tune_kernels.py").read_text())
    return folder


def run_kernels(folder, threads, *words, **environ):
    """pytest of tune_kernels.py on the host device, all configurations of a sweep tried, removal of layout conversions on."""
    folder.mkdir()
    env = {**os.environ, "PYTHONPATH": str(ROOT / "plugins"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
           "TRITON_CACHE_DIR": str(folder / "cache"), "FLAGGEMS_DB_URL": f"sqlite:///{folder}/db", "RUN_DIR": str(folder),
           "HOST_TARGET": "cuda:90", "HOST_MODE": "compile", "COMPILE_PASS": "1", "IR_META": "1",
           "RLC_STOCK_ENHANCE": "1", "TUNE_THREADS": threads, **environ}
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "--rootdir", folder]
    command += ["../test_it.py", *words, *(word for name in PLUGINS for word in ("-p", name))]
    done = subprocess.run(command, cwd=folder, env=env, text=True, capture_output=True, timeout=300)
    text = (folder / "events.jsonl").read_text() if (folder / "events.jsonl").exists() else ""
    kernels = {path.relative_to(folder / "cache").as_posix(): sha256_file(path) for path in (folder / "cache").rglob("*_kernel.*")
               if not path.name.startswith("__grp__")}      # holds paths
    return SimpleNamespace(code=done.returncode, text=done.stdout + done.stderr, folder=folder, kernels=kernels,
                           events=[tuple(json.loads(line)) for line in text.splitlines()])


@pytest.fixture(scope="module")
def plain(place):
    return run_kernels(place / "plain", "1")


@pytest.fixture(scope="module")
def threaded(place):
    return run_kernels(place / "threaded", "3")


def list_events(run, kernel):
    """[what, BLOCK, ...] of a kernel; compilations on threads, which end in any order, sorted."""
    found = [(what, *rest) for what, name, *rest in run.events if name.removesuffix("_kernel") == kernel]
    begun = next((number for number, event in enumerate(found) if event[0] == "launched"), 0)
    return sorted(found[:begun]) + found[begun:]


def test_all_is_compiled_on_threads_before_the_first_trial(threaded):
    assert threaded.code == 0, threaded.text
    assert "\nTUNE_COMPILE sweeps=2 configs=7 threads=3 seconds=" in threaded.text
    compiled = [("compiled", 16, False), ("compiled", 32, False), ("compiled", 64, False)]
    trials = [("launched", 16, 1), ("launched", 32, 1), ("launched", 64, 1)]       # 1: no thread is left
    assert list_events(threaded, "dot") == [*compiled, *trials, ("launched", 16, 1), ("launched", 16, 1)]
    assert list_events(threaded, "descriptor") == [*compiled, *trials, ("launched", 16, 1)]


@pytest.mark.parametrize("kernel", ["mixed", "single"])
def test_what_is_left_alone_is_compiled_as_ever(plain, threaded, kernel):
    assert list_events(threaded, kernel) == list_events(plain, kernel)
    assert ("compiled", 16, True) in list_events(threaded, kernel)


def test_without_threads_nothing_is_done(plain):
    assert plain.code == 0 and "TUNE_COMPILE" not in plain.text
    assert list_events(plain, "dot")[:3] == [("compiled", 16, True), ("launched", 16, 1), ("compiled", 32, True)]


def test_kernels_records_and_counts_are_the_same(plain, threaded):
    assert len([name for name in plain.kernels if name.endswith(".cubin")]) == 10
    assert threaded.kernels == plain.kernels
    for name in ("autotune.json", "index.tsv"):
        assert (threaded.folder / name).read_text() == (plain.folder / name).read_text()
    for run in (plain, threaded):
        assert " kernels=10 changed=0 converts=9->9\n" in run.text
        assert "host device: cuda:90, 10 variants, 5 launches\n" in run.text
        assert "IR_META variants=4 calls=0 construction=5 tuning=0 warmup=0 measured=0 baseline=0 unexplained=0 " in run.text


def test_forks_of_a_compile_pass_compile_the_same(plain, place):
    locks = place / "locks"
    locks.mkdir()
    for core in ("4", "5"):
        (locks / core).touch()
    forked = run_kernels(place / "forked", "1", COMPILE_LOCKS=str(locks))
    assert forked.code == 0 and forked.kernels == plain.kernels
    # The configuration that never compiles, the first that does (from the cache), and no trial of the others.
    assert [event for event in list_events(forked, "dot") if event[0] == "launched"] == [("launched", 16, 1)] * 3


def test_a_replayed_launch_compiles_its_config_alone(threaded, place):
    again = run_kernels(place / "replay", "3", "-k", "dot", REPLAY_FROM=str(threaded.folder), REPLAY_STRICT="1")
    assert again.code == 0 and "TUNE_COMPILE" not in again.text, again.text
    assert list_events(again, "dot") == [("compiled", 16, True), ("launched", 16, 1), ("launched", 16, 1)]


def test_timings_in_the_tuners_database_compile_nothing(threaded, place):
    shutil.copy(threaded.folder / "db", place / "db")
    with contextlib.closing(sqlite3.connect(place / "db")) as database, database:
        database.execute(f'DELETE FROM "{find_tables(database, "dot_kernel")[0]}"')      # the winners
    again = run_kernels(place / "database", "3", "-k", "dot", FLAGGEMS_DB_URL=f"sqlite:///{place}/db")
    assert again.code == 0 and "TUNE_COMPILE" not in again.text, again.text
    assert list_events(again, "dot") == [("compiled", 16, True), ("launched", 16, 1), ("launched", 16, 1)]


def test_a_value_that_is_no_number_is_refused(place):
    done = run_kernels(place / "refused", "all")
    assert done.code == 2 and "TUNE_THREADS: all: is no whole number" in done.text and "Traceback" not in done.text
    done = subprocess.run([ROOT / "run_pytest.sh", "--check"], capture_output=True, text=True,
                          env={**os.environ, "PYTHON": sys.executable, "HOST_TARGET": "cuda:90", "TUNE_THREADS": "all"})
    assert done.returncode == 2 and "TUNE_THREADS: all: is no whole number" in done.stderr
