"""run_batch.py through the command line, with a stub in place of run_pytest.sh (screen_stub.py): a screen from end to end.

What is run again in it, its devices and what is refused are in test_run_batch_again.py, _devices.py and _refusals.py.
"""

import json
import os
import subprocess
import sys

import pytest

from screen_stub import ROOT


# ---- a screen from end to end

def test_a_screen(stub):
    assert stub.run() == 0
    output = stub.output()
    assert "(new: there is no earlier screen)" in output
    assert "screen: runs/" in output.splitlines()[0] and output.splitlines()[-1].endswith(": 3 ok")
    marker = stub.marker("abs")
    assert {name: marker[name] for name in ("schema", "status", "attempt", "fallback", "reason", "signature")} == {
        "schema": 1, "status": "ok", "attempt": 1, "fallback": "", "reason": "", "signature": ""}
    assert stub.attempts("abs") == ["1"]
    assert sorted(os.listdir(stub.latest / "main/abs/attempts/1")) == ["exit.json", "run.log", "session.jsonl", "tests.jsonl"]
    assert stub.read_csv("plan.csv")[0] | {"device": ""} == {
        "schema": "1", "repo": "main", "op": "abs", "status": "planned", "device": "",
        "nodes": "benchmark/test_abs.py::test_abs", "reason": ""}
    facts = json.loads((stub.latest / "screen.json").read_text())
    assert facts["devices"] == ["host:0", "host:1", "host:2"] and facts["vendor"] == "host"
    assert facts["repos"]["main"]["tree"] == str(stub.tree)
    head = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    assert facts["harness"] == head and isinstance(facts["driver"], str)
    assert [row["op"] for row in stub.read_csv("summary.csv")] == ["abs", "add", "mm"]


def test_the_stub_sees_what_run_pytest_is_promised(stub):
    stub.behave("abs", 'env > "$RUN_DIR/env"')
    assert stub.run("--ops", "abs", "--dtypes", "float16, bfloat16", "--level", "comprehensive", "--devices", "host:7",
                    USE_FLAGTUNE=1, WARMUP_MS=5, FLAGGEMS_CACHE_DIR="tuned") == 0
    run_dir = stub.latest / "main/abs/attempts/1"
    env = dict(line.partition("=")[::2] for line in (run_dir / "env").read_text().splitlines())
    expected = {"REPO": "main", "RUN_DIR": str(run_dir), "DTYPES": "float16,bfloat16", "LEVEL": "comprehensive",
                "DEVICE": "host:7", "DEVICES": "host:7", "ATTEMPT": "1", "FALLBACK": "", "USE_FLAGTUNE": "1", "WARMUP_MS": "5",
                "REPLAY_FROM": "",
                "HOST_TARGET": "cuda:90", "CUDA_VISIBLE_DEVICES": "", "FLAGGEMS_DIR": str(stub.tree), "PYTHON": sys.executable,
                "TRITON_CACHE_DIR": str(stub.runs / ".cache/triton/host-host_7"),
                "FLAGGEMS_CACHE_DIR": str(stub.folder / "tuned/host-host_7")}
    assert {name: env.get(name) for name in expected} == expected
    assert stub.log_facts("abs", 1)["nodes"] == "benchmark/test_abs.py::test_abs"


@pytest.mark.parametrize("snippet, status, reason, code", [
    ("table; test_line failed 'RuntimeError: bad'; finish 1", "partial", "RuntimeError: bad", 1),
    ("test_line failed 'RuntimeError: bad'; finish 1", "failed", "RuntimeError: bad", 1),
    ("test_line skipped 'needs SM90'; finish 0", "skipped", "needs SM90", 0),
    ("finish 0", "failed", "no-data", 1),
    ("finish 5", "not_found", "no test was collected", 1),
    ("kill -9 $$", "crashed", "SIGKILL", 1),
    ("exit 0", "crashed", "before pytest did", 1),
    ("kill -SEGV $$", "crashed", "SIGSEGV", 1),
])
def test_every_ending_has_its_status(stub, snippet, status, reason, code):
    stub.behave("abs", snippet)
    assert stub.run() == code
    marker = stub.marker("abs")
    assert (marker["status"], reason in marker["reason"]) == (status, True), marker
    assert stub.statuses() == {"abs": status, "add": "ok", "mm": "ok"}
    rows = {row["op"]: row["status"] for row in stub.read_csv("summary.csv")}
    assert rows == {"abs": status, "add": "ok", "mm": "ok"}


def test_driver_log_is_kept_only_where_it_says_more(stub):
    stub.behave("abs", "echo only on the terminal")
    assert stub.run("--ops", "abs,add") == 0
    assert "only on the terminal" in (stub.latest / "main/abs/attempts/1/driver.log").read_text()
    assert not (stub.latest / "main/add/attempts/1/driver.log").exists()


def test_planned_is_reported(stub):
    stub.write_ops(["abs", "add", "gone", "hangs"])
    (stub.tree / "benchmark/test_gone.py").unlink()
    stub.dismiss("hangs", "kills the driver")
    stub.behave("add", "test_line failed 'E: x'; finish 1")
    assert stub.run() == 1
    assert {row["op"]: row["status"] for row in stub.read_csv("summary.csv")} == {
        "abs": "ok", "add": "failed", "gone": "not_found", "hangs": "dismissed"}
    assert {row["op"]: row["reason"] for row in stub.read_csv("plan.csv")}["hangs"] == "kills the driver"


def test_match_and_repo_names_choose(stub):
    assert stub.run("--match", "^a", "--dry-run") == 0
    assert "2 of 2 to run" in stub.output()
    assert stub.run("--ops", "main/add,mm", "--dry-run") == 0
    assert "2 of 2 to run" in stub.output() and "main/abs" not in stub.output()


# ---- retries

def test_a_deterministic_failure_is_tried_twice(stub):
    stub.behave("abs", "test_line failed \"RuntimeError: at 0x7f$RANDOM, $RANDOM bytes\"; finish 1")
    assert stub.run("--ops", "abs", "--retries", "5") == 1
    assert stub.attempts("abs") == ["1", "2"]
    assert stub.marker("abs")["attempt"] == 2


def test_different_failures_stop_at_the_limit(stub):
    stub.behave("abs", "test_line failed \"RuntimeError: kind $(echo $ATTEMPT | tr 1-9 a-i)\"; finish 1")
    assert stub.run("--ops", "abs", "--retries", "2") == 1
    assert stub.attempts("abs") == ["1", "2", "3"]


def test_a_transient_failure_ends_well(stub):
    stub.behave("abs", "[ $ATTEMPT = 1 ] && { table; test_line failed 'RuntimeError: once'; finish 1; }")
    assert stub.run("--ops", "abs") == 0
    assert (stub.marker("abs")["status"], stub.marker("abs")["attempt"]) == ("ok", 2)
    assert "main/abs: attempt 1 partial: RuntimeError: once" in stub.output()
    assert [row["attempt"] for row in stub.read_csv("summary.csv")] == ["2"]


def test_a_torn_compile_cache_is_tried_again_with_a_fresh_one(stub):
    stub.behave("abs", 'echo "$TRITON_CACHE_DIR" > "$RUN_DIR/cache"\n'
                       '[ $ATTEMPT = 1 ] && { say "triton/runtime/cache.py:131: in get_group"; '
                       'test_line failed "JSONDecodeError: Expecting value"; say JSONDecodeError; finish 1; }')
    (stub.runs / ".cache/triton/host-host_0/torn").mkdir(parents=True)
    assert stub.run("--ops", "abs", "--devices", "host:0") == 0
    attempts = stub.latest / "main/abs/attempts"
    assert [(attempts / number / "cache").read_text().strip() for number in "12"] == [
        str(stub.runs / ".cache/triton/host-host_0"), str(attempts / "2/triton-cache")]
    assert "attempt 1 failed: cache: JSONDecodeError" in stub.output()
    # It passed, so the next operators do not meet the torn one either.
    assert not (stub.runs / ".cache/triton/host-host_0").exists()
    assert [path.name for path in stub.runs.glob(".cache/triton/host-host_0.torn-*/*")] == ["torn"]


def test_what_fails_with_a_fresh_cache_too_is_the_operators_failure(stub):
    stub.behave("abs", 'say "triton/runtime/cache.py:131: in get_group"; test_line failed "JSONDecodeError: Expecting value"; '
                       'say JSONDecodeError; finish 1')
    assert stub.run("--ops", "abs", "--devices", "host:0") == 1
    assert (stub.marker("abs")["attempt"], stub.marker("abs")["reason"]) == (2, "JSONDecodeError: Expecting value")
    assert not list(stub.runs.glob(".cache/triton/*.torn-*"))


def test_no_memory_is_tried_again_on_another_device(stub):
    stub.behave("abs", "[ $ATTEMPT = 1 ] && { test_line failed 'OutOfMemoryError: CUDA out of memory'; "
                       "say 'OutOfMemoryError: CUDA out of memory'; finish 1; }")
    assert stub.run("--ops", "abs") == 0
    first, second = (stub.log_facts("abs", number)["device"] for number in (1, 2))
    assert first != second
    assert [row["device"] for row in stub.read_csv("plan.csv")] == [second] == [stub.marker("abs")["device"]]


def test_a_timeout_is_not_tried_again(stub):
    stub.behave("abs", "table; sleep 600")
    assert stub.run("--ops", "abs", "--timeout", "0.5") == 1
    assert (stub.marker("abs")["status"], stub.attempts("abs")) == ("timeout", ["1"])
    assert stub.run("--ops", "abs", "--timeout", "0.5") == 1
    assert stub.attempts("abs") == ["1"]
    stub.behave("abs", "")
    assert stub.run("--ops", "abs", "--timeout", "60") == 0                # a larger limit is another chance
    assert "1 complete operator again (its time limit was 0 s)" in stub.output().replace("0.5", "0")


# ---- dtypes

def test_dtypes_fall_back_to_the_supported_ones(stub):
    stub.behave("abs", "refuse_dtype int32")
    assert stub.run("--ops", "abs", "--dtypes", "int32,float16") == 0
    assert (stub.marker("abs")["fallback"], stub.log_facts("abs", 2)["dtypes"]) == ("subset", "float16")
    assert [(row["dtype"], row["fallback"]) for row in stub.read_csv("summary.csv")] == [("float16", "subset")]


def test_dtypes_fall_back_to_the_ops_own(stub):
    stub.behave("abs", "refuse_dtype int32 int16")
    assert stub.run("--ops", "abs", "--dtypes", "int32,int16") == 0
    assert (stub.marker("abs")["fallback"], stub.log_facts("abs", 2)["dtypes"]) == ("own", "")


def test_a_dtype_named_twice_is_measured_once(stub):
    assert stub.run("--ops", "abs", "--dtypes", "float16, float16") == 0
    assert json.loads((stub.latest / "screen.json").read_text())["knobs"]["DTYPES"] == "float16"


# ---- replay, dry run, progress

def test_replay_root_gives_each_op_its_own_record(stub):
    for op in ("abs", "mm"):
        stub.behave(op, 'echo "$REPLAY_FROM" > "$RUN_DIR/replay"; echo {} > "$RUN_DIR/autotune.json"')
    assert stub.run("--ops", "abs,add") == 0
    first = stub.latest
    assert stub.run("--ops", "abs,mm", "--replay-root", str(first)) == 0
    assert (stub.latest / "main/abs/attempts/1/replay").read_text().strip() == str(first / "main/abs/attempts/1")
    assert (stub.latest / "main/mm/attempts/1/replay").read_text().strip() == ""
    assert f"no record in {first}, tuned live: main/mm" in stub.output()
    assert stub.run("--ops", "mm", REPLAY_FROM=first / "main/abs/attempts/1") == 0
    assert (stub.latest / "main/mm/attempts/1/replay").read_text().strip() == str(first / "main/abs/attempts/1")
    assert stub.run("--replay-root", str(stub.tree)) == 2
    assert f"REPLAY_ROOT: {stub.tree}: is no screen" in stub.output()


def test_ops_without_a_record_are_named_and_skipped_if_asked(stub):
    stub.behave("abs", 'echo {} > "$RUN_DIR/autotune.json"')
    assert stub.run("--ops", "abs,add") == 0     # add records nothing
    first = stub.latest
    assert stub.run("--replay-root", str(first), "--replay-missing", "skip") == 0
    assert f"no record in {first}, skipped: main/add, main/mm" in stub.output()
    rows = {row["op"]: row for row in stub.read_csv("summary.csv")}
    assert {op: row["status"] for op, row in rows.items()} == {"abs": "ok", "add": "skipped", "mm": "skipped"}
    assert rows["mm"]["reason"] == f"no autotune.json in {first} (REPLAY_MISSING=skip)"
    assert not (stub.latest / "main/mm").exists()
    assert stub.run("--replay-root", str(first), "--replay-missing", "later") == 2
    assert "REPLAY_MISSING: later: unknown; valid are run, skip" in stub.output()


def test_only_the_record_counts_as_an_input_of_a_replay(stub):
    stub.behave("abs", 'echo {} > "$RUN_DIR/autotune.json"')
    assert stub.run("--ops", "abs") == 0
    first = stub.latest
    call = ("--ops", "abs", "--replay-root", str(first))
    assert stub.run(*call) == 0 and stub.attempts("abs") == ["1"]
    (first / "main/abs/attempts/1/notes").write_text("looked at it")
    assert stub.run(*call) == 0 and stub.attempts("abs") == ["1"]
    (first / "main/abs/attempts/1/autotune.json").write_text("{ }")
    assert stub.run(*call) == 0 and stub.attempts("abs") == ["1", "2"]
    assert "(changed: replay)" in stub.output()


def test_dry_run_prints_the_plan_and_makes_nothing(stub):
    stub.dismiss("mm", "kills the driver")
    assert stub.run("--dry-run") == 0
    lines = [line.split() for line in stub.output().splitlines()]
    assert ["main/mm", "-", "dismissed", "kills", "the", "driver"] in lines
    assert ["main/abs", "host:0", "run", "benchmark/test_abs.py::test_abs"] in lines
    assert not stub.runs.exists()
    assert stub.run("--ops", "abs") == 0
    assert stub.run("--ops", "abs", "--dry-run") == 0
    assert "complete (ok)" in stub.output()


def test_plain_lines_where_there_is_no_terminal(stub):
    stub.behave("mm", "test_line failed 'RuntimeError: bad [bold]'; finish 1")
    assert stub.run("--retries", "0") == 1
    assert "\x1b" not in stub.output()
    lines = [line for line in stub.output().splitlines() if line.startswith("[")]
    assert [line[:5] for line in lines] == ["[1/3]", "[2/3]", "[3/3]"]
    assert sorted(line.split()[1:3] for line in lines) == [["failed", "main/mm"], ["ok", "main/abs"], ["ok", "main/add"]]
    assert next(line for line in lines if "main/mm" in line).endswith("RuntimeError: bad [bold]")


def test_a_bar_on_a_terminal(stub):
    pytest.importorskip("rich")
    done = subprocess.run(["script", "-qec", f"{sys.executable} {ROOT}/run_batch.py", "/dev/null"], cwd=stub.folder,
                          env=stub.environ(TERM="xterm", COLUMNS="120"), capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL, timeout=60)
    assert done.returncode == 0, done.stdout
    assert "3/3" in done.stdout and "left" in done.stdout and "main/abs" in done.stdout


def test_help_needs_no_torch(stub):
    (stub.folder / "torch.py").write_text("raise ImportError('torch')")
    assert stub.run("--help", PYTHONPATH=stub.folder) == 0
    assert "--replay-root" in stub.output() and "12 hours" in stub.output()
