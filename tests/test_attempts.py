"""screen/attempts.py through run_batch.py: what is an outcome of an operator, and what is the environment's fault."""
import pytest

from screen_stub import ROOT, StubScreen


@pytest.fixture
def stub(tmp_path):
    screen = StubScreen(tmp_path)
    yield screen
    screen.end_processes()


def read_markers(stub, run):
    return {path.parent.name: path.read_bytes() for path in run.glob("main/*/.complete")}


@pytest.mark.parametrize("code, expected, text", [
    (2, 2, "run_pytest.sh: error: TIMER: grpah: unknown; valid are: graph"),
    (3, 3, "run_pytest.sh: error: PYTHON: /x: has no pytest; give another"),
    (127, 3, "run_pytest.sh: line 40: typo: command not found")])
def test_a_refusal_of_run_pytest_is_no_outcome_and_keeps_earlier_ones(stub, code, expected, text):
    run = stub.runs / "mine"
    assert stub.run("--run", str(run)) == 0
    before = read_markers(stub, run)
    stub.stub.write_text(f"#!/bin/sh\n[ $1 != --check ] || exit 0\necho 'a warning' >&2\necho '{text}' >&2\nexit {code}\n")
    assert stub.run("--run", str(run), WARMUP_MS="7") == expected
    assert stub.output().count(text.removeprefix("run_pytest.sh: error: ")) == 1 and "Traceback" not in stub.output()
    assert len(before) == 3 and read_markers(stub, run) == before


@pytest.mark.parametrize("knobs, text", [
    ({"TIMER": "grpah"}, "TIMER: grpah: unknown; valid are: host"), ({"WARMUP_MS": "1s"}, "WARMUP_MS: 1s: is no whole number"),
    ({"PLUGINS": "_no_plugin"}, "PLUGINS: _no_plugin: no plugins/_no_plugin.py")])
def test_a_knob_that_only_run_pytest_judges_is_refused_before_anything_is_made(stub, knobs, text):
    run = stub.runs / "mine"
    assert stub.run("--run", str(run)) == 0
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert stub.run("--run", str(run), RUN_PYTEST=ROOT / "run_pytest.sh", **knobs) == 2
    assert stub.output().count(f"run_batch.py: error: {text}") == 1
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("words, pytest_exit, reason", [
    ("ImportError: Error importing plugin \"_host_device_plugin\": No module named 'torch'", 1,
     "ImportError: Error importing plugin \"_host_device_plugin\": No module named 'torch'"),
    ("E   ModuleNotFoundError: No module named 'flag_gems'", 4, "ModuleNotFoundError: No module named 'flag_gems'"),
    ("__main__.py: error: unrecognized arguments: --x", 4, "unrecognized arguments: --x")])
def test_a_pytest_that_never_began_stops_the_screen_and_marks_nothing(stub, words, pytest_exit, reason):
    stub.behave("add", f"rm $RUN_DIR/session.jsonl\ncat <<'END' | tee -a $RUN_DIR/run.log\n{words}\nEND\nfinish {pytest_exit}")
    assert stub.run("--ops", "add") == 3
    said = f"main/add/attempts/1/run.log: pytest did not start: {reason}; no operator can be run like this: mend it"
    assert said in stub.output()
    assert stub.statuses() == {}
    stub.behave("add", "")
    assert stub.run("--ops", "add") == 0


def test_a_pytest_that_never_began_for_lack_of_memory_is_tried_again(stub):
    stub.behave("abs", "[ $ATTEMPT -gt 1 ] || { rm $RUN_DIR/session.jsonl; "
                       "say 'MemoryError: CUDA error: out of memory'; finish 1; }")
    assert stub.run("--ops", "abs") == 0
    assert stub.marker("abs")["attempt"] == 2


def test_an_operators_own_import_error_is_its_own(stub):
    stub.behave("abs", "test_line error \"ModuleNotFoundError: No module named 'vllm'\"; finish 2")
    assert stub.run() == 1
    assert stub.statuses() == {"abs": "failed", "add": "ok", "mm": "ok"}
    assert stub.marker("abs")["reason"] == "ModuleNotFoundError: No module named 'vllm'"


def test_an_operator_that_removes_its_run_directory_is_crashed(stub):
    stub.behave("abs", "rm -r $RUN_DIR; echo 'run_pytest.sh: error: run.log: was not written' >&2; exit 3")
    assert stub.run() == 1
    assert stub.statuses() == {"abs": "crashed", "add": "ok", "mm": "ok"}
    assert stub.marker("abs")["reason"] == "its run directory is gone: something that ran in it removed it"
    assert "Traceback" not in stub.output()


def test_a_log_that_cannot_be_written_stops_the_screen(stub):
    stub.behave("abs", "echo 'run_pytest.sh: error: /r/run.log: was not written to its end; free some space and run again' >&2; "
                       "exit 3")
    assert stub.run("--ops", "abs") == 3
    assert "run_batch.py: error: /r/run.log: was not written to its end; free some space" in stub.output()
    assert stub.statuses() == {}


def test_an_operators_words_about_a_full_disk_do_not_stop_the_screen(stub):
    stub.behave("abs", "say 'OSError: [Errno 28] No space left on device'\n"
                       "test_line failed 'OSError: [Errno 28] No space left on device'; finish 1")
    assert stub.run() == 1
    assert stub.statuses() == {"abs": "failed", "add": "ok", "mm": "ok"}
    assert stub.marker("abs")["reason"] == "disk: OSError: [Errno 28] No space left on device"


@pytest.mark.parametrize("snippet, status, reason", [
    ("table; test_line passed; exit 0", "crashed", "ended with exit status 0 before pytest did; 1 row measured"),
    ("table; test_line passed; echo '{\"pytest_exit\": 0}' > $RUN_DIR/exit.json; kill -9 $$", "crashed",
     "killed by SIGKILL; 1 row measured"),
    ("table; sed -i /^SUCC/d $RUN_DIR/run.log; table; test_line passed; finish 0", "partial",
     "1 of 2 printed rows lack in run.log, or have another figure there")])
def test_a_run_that_lost_something_is_never_ok(stub, snippet, status, reason):
    stub.behave("abs", snippet)
    assert stub.run("--ops", "abs", "--retries", "0") == 1
    assert (stub.marker("abs")["status"], stub.marker("abs")["reason"]) == (status, reason)


def test_what_an_operator_left_behind_costs_it_no_timeout(stub):
    stub.behave("abs", "(trap '' TERM; sleep 60) & table; test_line passed; finish 0")
    assert stub.run("--ops", "abs", TIMEOUT="1.5", GRACE_S="2.5") == 0
    assert stub.statuses() == {"abs": "ok"} and stub.list_processes() == []


def test_a_text_that_is_no_unicode_reaches_the_summary_escaped(stub):
    stub.behave("abs", "test_line failed 'ValueError: lone \\udc80'; finish 1")
    assert stub.run() == 1
    assert "Traceback" not in stub.output()
    assert [row["reason"] for row in stub.read_csv("summary.csv") if row["op"] == "abs"] == ["ValueError: lone \\udc80"]
