"""A sweep's timings: asked for once, written at once, and what the database then holds is what upstream alone leaves in it."""
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from autotune_runs import ROOT, find_tables, run_with_plugin

# Each launch of the kernel, a trial's too, is a line of launched.jsonl; each commit a line of commits.
KERNELS = """
import json, os, time
import pytest, torch, triton
import triton.language as tl
from flag_gems.utils import libtuner
from sqlalchemy import event
from sqlalchemy.engine import Engine

@event.listens_for(Engine, "commit")
def note_commit(connection):
    with open("commits", "a") as file:
        file.write("commit\\n")

@libtuner(configs=[triton.Config({"BLOCK": b, "PART": p}) for b in (16, 32, 64) for p in (1, 2)], key=["n"])
@triton.jit
def some_kernel(x, n, BLOCK: tl.constexpr, PART: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 1.0, mask=tl.arange(0, BLOCK) < n // PART)

def launch(n, fail_at=None, wait_at=None):
    def grid(meta):
        with open("launched.jsonl", "a") as file:
            print(json.dumps([n, meta["BLOCK"], meta["PART"]]), file=file)
        if meta["BLOCK"] == fail_at:
            raise RuntimeError("no grid")
        if meta["BLOCK"] == wait_at:
            time.sleep(60)
        return (1,)
    some_kernel[grid](torch.zeros(64), n)

@pytest.mark.parametrize("n", (64, 100))
def test_sweep(n):
    launch(n)

def test_fails():
    launch(7, fail_at=64)

def test_is_killed():
    launch(8)
    launch(9, wait_at=64)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("database")
    (folder / "test_it.py").write_text(KERNELS)
    return folder


def start_kernels(folder, *words, plugin=True, database="db"):
    folder.mkdir()
    env = {**os.environ, "PYTHONPATH": str(ROOT / "plugins"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "HOST_TARGET": "cuda:90",
           "HOST_MODE": "compile", "COMPILE_PASS": "1", "TRITON_CACHE_DIR": str(folder.parent / "cache"),
           "FLAGGEMS_DB_URL": f"sqlite:///{folder}/{database}"}
    plugins = ["_host_device_plugin", "_compile_ahead_plugin", *["_tune_database_plugin"] * plugin]
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "--rootdir", folder.parent]
    command += ["../test_it.py", *words, *(word for name in plugins for word in ("-p", name))]
    return subprocess.Popen(command, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def run_kernels(folder, *words, **more):
    process = start_kernels(folder, *words, **more)
    text, _ = process.communicate(timeout=300)
    return SimpleNamespace(code=process.returncode, text=text, folder=folder)


def read_lines(path):
    return path.read_text().splitlines() if path.is_file() else []


def read_database(path):
    """{table: (how it was made, its rows)}; and it is whole."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        tables = database.execute("SELECT name, sql FROM sqlite_master WHERE type='table'").fetchall()
        return {name: (sql, sorted(database.execute(f'SELECT * FROM "{name}"'))) for name, sql in tables}


def read_trials(path):
    """[(n, BLOCK, PART)] of the trials that it knows."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        trials = find_tables(database, "some_kernel")[1]
        return sorted(database.execute(f'SELECT key_0, BLOCK, PART FROM "{trials}"'))


ALL = [(16, 1), (16, 2), (32, 1), (32, 2), (64, 1), (64, 2)]


@pytest.fixture(scope="module")
def swept(place):
    return run_kernels(place / "swept", "-k", "sweep or fails")


def test_the_database_is_upstreams_in_a_tenth_of_the_commits(place, swept):
    plain = run_kernels(place / "plain", "-k", "sweep or fails", plugin=False)
    assert (plain.code, swept.code) == (1, 1) and "2 passed" in plain.text and "2 passed" in swept.text, swept.text
    assert read_database(swept.folder / "db") == read_database(plain.folder / "db")
    assert read_lines(swept.folder / "launched.jsonl") == read_lines(plain.folder / "launched.jsonl")
    # two tables, and of each sweep timings and winner; the one that fails has no winner
    assert len(read_lines(swept.folder / "commits")) == 2 + 2 * 2 + 1
    assert len(read_lines(plain.folder / "commits")) == 2 + 2 * (6 + 1) + 4


def test_a_sweep_that_fails_keeps_its_timings(swept):
    assert [trial[1:] for trial in read_trials(swept.folder / "db") if trial[0] == 7] == ALL[:4]


def test_timings_of_the_database_are_used(place, swept):
    """Those of half a sweep: the other half is tried, then written beside them."""
    (place / "again").mkdir()
    with contextlib.closing(sqlite3.connect(swept.folder / "db")) as source, \
            contextlib.closing(sqlite3.connect(place / "again/db")) as copy:
        source.backup(copy)
        winners, trials = find_tables(copy, "some_kernel")
        copy.execute(f'DELETE FROM "{winners}"')
        copy.execute(f'DELETE FROM "{trials}" WHERE BLOCK = 32 OR key_0 != 64')
        copy.commit()
    again = run_kernels(place / "half", "-k", "sweep", database="../again/db")
    assert again.code == 0, again.text
    tried = [tuple(json.loads(line)) for line in read_lines(again.folder / "launched.jsonl")]
    assert [trial[1:] for trial in tried if trial[0] == 64][:-1] == [(32, 1), (32, 2)]      # the last one is the launch itself
    assert read_trials(place / "again/db") == [(n, *config) for n in (64, 100) for config in ALL]


def test_what_is_killed_leaves_its_finished_sweeps(place):
    process = start_kernels(place / "killed", "-k", "killed")
    deadline = time.monotonic() + 120
    launched = place / "killed/launched.jsonl"
    while not any(line.startswith("[9, 64") for line in read_lines(launched)) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert len(read_database(place / "killed/db")) == 2
    assert [trial[1:] for trial in read_trials(place / "killed/db") if trial[0] == 8] == ALL


OLD = """
import sys, types
class BenchmarkCache:       # as FlagGems 3 and 4.1 have them: SQL of their own
    def __getitem__(self, config): return "timed"
class ConfigCache:
    def get(self, key): return "a winner"
    def set(self, key, config): return "kept"
sys.modules["flag_gems.utils.libentry"] = types.SimpleNamespace(BenchmarkCache=BenchmarkCache, ConfigCache=ConfigCache)
def test_it(): assert (BenchmarkCache()[1], ConfigCache().set(1, 2)) == ("timed", "kept")
"""


def test_an_older_flaggems_is_left_alone(tmp_path):
    done = run_with_plugin(tmp_path, OLD, "_tune_database_plugin")
    assert done.returncode == 0, done.stdout
