"""SHARD_INDEX: a screen in parts, and batch_summary.py over them; through the command line with a stub (screen_stub.py)."""
import json
import subprocess
import sys

import pytest
from screen_stub import ROOT

OPS = ("a", "b", "d", "e", "g", "m")


def summarize(stub, *arguments):
    done = subprocess.run([sys.executable, ROOT / "batch_summary.py", *arguments], cwd=stub.runs, capture_output=True, text=True)
    print(done.stdout, done.stderr)
    return done


@pytest.fixture
def night(stub):
    """A StubScreen with six operators, of which `d` fails, in two parts."""
    stub.write_ops(OPS)
    stub.behave("d", "test_line failed 'RuntimeError: bad'; finish 1")
    assert [stub.run("--run", "runs/night", "--shard-index", f"{index}/2", "--retries", "0") for index in (1, 2)] == [1, 0]
    return stub


def test_two_parts_are_one_summary(night):
    runs = [night.runs / f"night-{index}-of-2" for index in (1, 2)]
    assert [[row["op"] for row in night.read_csv("summary.csv", run)] for run in runs] == [["a", "b", "d", "m"], ["e", "g"]]
    done = summarize(night, "night-1-of-2", "night-2-of-2", "--out", "night")
    assert done.returncode == 1 and "6 ops: 5 ok, 1 failed" in done.stdout and done.stderr == ""
    rows = night.read_csv("summary.csv", night.runs / "night")
    assert [(row["op"], row["status"]) for row in rows] == [
        ("a", "ok"), ("b", "ok"), ("d", "failed"), ("e", "ok"), ("g", "ok"), ("m", "ok")]
    facts = json.loads((night.runs / "night/screen.json").read_text())
    assert facts["devices"] == ["host:0", "host:1", "host:2"] and "run_id" not in facts and "SHARD_INDEX" not in facts["knobs"]
    compared = subprocess.run([sys.executable, ROOT / "compare_screens.py", "night", "night-2-of-2"], cwd=night.runs,
                              capture_output=True, text=True)
    assert compared.returncode == 1 and "operators: 4 missing, 2 same" in compared.stdout


def test_a_part_that_lacks_is_said(night):
    done = summarize(night, "night-1-of-2", "--out", "night")
    assert done.returncode == 1
    assert done.stderr == "batch_summary.py: warning: night: of 2 parts these are not there: 2\n"


def test_each_part_goes_on_by_itself(night):
    assert night.run("--run", "runs/night", "--shard-index", "1/2") == 1
    assert "resumed: 4 of 4 operators are complete" in night.output()
    caches = sorted(path.name for path in (night.runs / ".cache").glob("*/*"))
    assert caches == [] or all("-of-2" in name for name in caches)


def test_what_is_no_part_is_not_merged(night):
    assert night.run("--run", "runs/whole", "--retries", "0") == 1
    assert "whole: is no part of a screen (SHARD_INDEX)" in summarize(night, "night-1-of-2", "whole", "--out", "x").stderr
    done = summarize(night, "night-1-of-2", "night-2-of-2")
    assert done.returncode == 2 and "--out: missing" in done.stderr


def test_a_switch_that_not_all_parts_have_is_said_of_their_summary(night):
    for index, more in ((1, {"TRITON_BAR": "1"}), (2, {"DISABLE_LLVM_OPT": "1"})):
        path = night.runs / f"night-{index}-of-2/screen.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"switches": {"USE_IR_LOC": "ttir", **more}}))
    done = summarize(night, "night-1-of-2", "night-2-of-2", "--out", "night")
    assert done.stderr == ("batch_summary.py: warning: night-2-of-2: differs from night-1-of-2: TRITON_BAR 1 -> -, "
                           "DISABLE_LLVM_OPT - -> 1\n")
    assert json.loads((night.runs / "night/screen.json").read_text())["switches"] == {
        "USE_IR_LOC": "ttir", "TRITON_BAR": "differs between the parts", "DISABLE_LLVM_OPT": "differs between the parts"}


def test_parts_of_two_trees_are_refused(night):
    path = night.runs / "night-2-of-2/screen.json"
    facts = json.loads(path.read_text())
    facts["repos"]["main"]["commit"] = "b" * 40
    path.write_text(json.dumps(facts))
    done = summarize(night, "night-1-of-2", "night-2-of-2", "--out", "x")
    assert done.returncode == 4
    assert "night-2-of-2: is of another tree than night-1-of-2 (main at - -> bbbbbbbbbbbb)" in done.stderr


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "a/b", "1/0"])
def test_what_is_no_part(stub, text):
    assert stub.run("--shard-index", text) == 2
    assert f"SHARD_INDEX: {text}: is no part of a screen; give i/n with i from 1 to n, as SHARD_INDEX=2/8" in stub.output()


def test_a_part_without_operators(stub):
    assert stub.run("--ops", "abs", "--shard-index", "1/2") + stub.run("--ops", "abs", "--shard-index", "2/2") == 2
    assert not list(stub.runs.glob("*-1-of-2")) or not list(stub.runs.glob("*-2-of-2"))
