"""Runs that lose something, through run_pytest.sh, and what batch_summary.py says of them: never `ok`."""
import csv
import json
import os
import subprocess
import sys

import pytest

from stub_tree import ROOT, add_benchmark, make_tree, run_script

TWO = """
def test_one():
    make("op", dtypes=[torch.float16]).run()
    {first}
def test_two():
    {second}
    make("op", dtypes=[torch.float32]).run()
"""
# A test's first and second half, the knobs, the status of run_pytest.sh, and what the summary says.
CASES = {
    "good": ("", "", {}, 0, "ok", ""),
    "exits": ("", "import os; os._exit(0)", {}, 0, "crashed", "ended with exit status 0 before pytest did; 3 rows measured"),
    "exits5": ("import os; os._exit(5)", "", {}, 5, "crashed", "ended with exit status 5 before pytest did; 3 rows measured"),
    "stops": ("", "pytest.exit('enough', returncode=0)", {}, 0, "crashed",
              "pytest was stopped from inside after 1 of 2 tests; 3 rows measured"),
    "replaces": ("import io, sys; sys.stdout = io.StringIO()", "", {}, 0, "partial",
                 "3 of 6 printed rows lack in run.log, or have another figure there"),
    "interferes": ("", """
    old = base.BenchmarkResult.__str__
    base.BenchmarkResult.__str__ = lambda r: old(r).replace("0.005000", "0.005700", 1)""", {}, 0, "partial",
                   "1 of 6 printed rows lack in run.log, or have another figure there"),
    "breaks": ("", """
    old = base.BenchmarkResult.__str__
    base.BenchmarkResult.__str__ = lambda r: old(r).replace("SUCCESS", "noise SUCCESS", 1)""", {}, 0, "partial",
               "1 of 6 printed rows lack in run.log, or have another figure there"),
    "forges": ("", """
    import os, signal
    open("exit.json", "w").write('{"schema": 1, "pytest_exit": 0}')
    os.kill(os.getpid(), signal.SIGKILL)""", {}, 137, "crashed", "killed by SIGKILL; 3 rows measured"),
    "plugin": ("", "", {"PLUGINS": "_device_guard_plugin _pretty_report_plugin _cudagraph_plugin",
                        "PYTEST_EXTRA": "-p no_such_plugin"}, 1, "failed",
               "pytest did not start: ImportError: Error importing plugin \"no_such_plugin\": "
               "No module named 'no_such_plugin'"),
    "option": ("", "", {"PYTEST_EXTRA": "--no-such-option"}, 4, "failed",
               "pytest did not start: unrecognized arguments: --no-such-option"),
    "import": ("", "", {}, 2, "failed", "ModuleNotFoundError: No module named 'no_such_module'"),
    "surrogate": ("raise ValueError('lone \\udc80')", "", {}, 1, "partial", "ValueError: lone \\udc80; 6 of 6 rows measured"),
}


def read_summary(folder):
    done = subprocess.run([sys.executable, ROOT / "batch_summary.py", folder, "--quiet"], text=True, capture_output=True)
    assert "Traceback" not in done.stderr, done.stderr
    with open(folder / "summary.csv", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["row_status"] in ("", "SUCCESS")]
    return {row["op"]: (row["status"], row["reason"]) for row in rows}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """(exit statuses by name, what the summary says by name) of all cases."""
    tree = make_tree(tmp_path_factory.mktemp("session") / "tree")
    codes = {}
    for name, (first, second, knobs, *_) in CASES.items():
        body = TWO.format(first=first or "pass", second=second or "pass")
        node = add_benchmark(tree, name, ("import no_such_module\n" if name == "import" else "") + body)
        codes[name] = run_script(tree, name, node, RUN_DIR=tree.parent / "runs/main" / name, **knobs).returncode
    return codes, read_summary(tree.parent / "runs")


@pytest.mark.parametrize("name", CASES)
def test_a_run_is_only_ok_if_its_session_and_its_rows_are_whole(runs, name):
    *_, code, status, reason = CASES[name]
    codes, summary = runs
    assert (codes[name], *summary[name]) == (code, status, reason)


def test_a_conftest_that_cannot_be_imported_says_why(tmp_path):
    tree = make_tree(tmp_path / "tree")
    node = add_benchmark(tree, "one", TWO.format(first="pass", second="pass"))
    (tree / "benchmark/conftest.py").write_text("import no_such_module\n")
    assert run_script(tree, "one", node, RUN_DIR=tmp_path / "runs/main/one").returncode == 4
    assert read_summary(tmp_path / "runs") == {
        "one": ("failed", "pytest did not start: ModuleNotFoundError: No module named 'no_such_module'")}
    assert not (tmp_path / "runs/main/one/session.jsonl").exists()


def test_correctness_tests_are_judged_by_their_outcomes(tmp_path):
    tree = make_tree(tmp_path / "tree")
    node = add_benchmark(tree, "one", "def test_one(): pass\ndef test_two(): pytest.skip('x')")
    assert run_script(tree, "one", node, SUITE="tests", RUN_DIR=tmp_path / "runs/main/one").returncode == 0
    assert read_summary(tmp_path / "runs") == {"one": ("ok", "")}


def test_the_record_is_written_as_it_happens(tmp_path):
    tree = make_tree(tmp_path / "tree")
    node = add_benchmark(tree, "one", TWO.format(first="pass", second="import os\n    if os.fork() == 0: os._exit(0)"))
    run_script(tree, "one", node)
    lines = [json.loads(line) for line in (tree / "run/session.jsonl").read_text().splitlines()]
    assert lines == [
        {"schema": 1, "event": "started"},
        {"schema": 1, "event": "collected", "nodes": [f"{node}::test_one", f"{node}::test_two"]},
        {"schema": 1, "event": "table", "op": "op", "dtype": "torch.float16", "rows": ["0.005000"] * 3},
        {"schema": 1, "event": "table", "op": "op", "dtype": "torch.float32", "rows": ["0.005000"] * 3},
        {"schema": 1, "event": "finished", "exit": 0}]
    assert os.path.getsize(tree / "run/tests.jsonl") > 0
