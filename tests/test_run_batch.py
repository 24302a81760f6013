"""run_batch.py through the command line, with a stub in place of run_pytest.sh (screen_stub.py)."""

import hashlib
import json
import os
import subprocess
import sys
import time

import pytest

from screen_stub import ROOT


BLAS_BASE = """
class Benchmark:
    def set_shapes(self):
        self.shapes = self.DEFAULT_SHAPES


class BlasBenchmark(Benchmark):
    def get_input_iter(self, dtype):
        for b, m, n, k in self.shapes:
            yield b, m, n, k
"""
BLAS_TEST = """
from . import base


@pytest.mark.mm
def test_mm():
    base.BlasBenchmark(op_name="mm").run()


@pytest.mark.abs
def test_abs():
    base.Benchmark(op_name="abs").run()
"""


def names(rows):
    return [row["op"] for row in rows]


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
    assert names(stub.read_csv("summary.csv")) == ["abs", "add", "mm"]


def test_the_stub_sees_what_run_pytest_is_promised(stub):
    stub.behave("abs", 'env > "$RUN_DIR/env"')
    assert stub.run("--ops", "abs", "--dtypes", "float16, bfloat16", "--level", "comprehensive", "--devices", "host:7",
                    USE_FLAGTUNE=1, WARMUP_MS=5) == 0
    run_dir = stub.latest / "main/abs/attempts/1"
    env = dict(line.partition("=")[::2] for line in (run_dir / "env").read_text().splitlines())
    expected = {"REPO": "main", "RUN_DIR": str(run_dir), "DTYPES": "float16,bfloat16", "LEVEL": "comprehensive",
                "DEVICE": "host:7", "DEVICES": "host:7", "ATTEMPT": "1", "FALLBACK": "", "USE_FLAGTUNE": "1", "WARMUP_MS": "5", "REPLAY_FROM": "",
                "HOST_TARGET": "cuda:90", "CUDA_VISIBLE_DEVICES": "", "FLAGGEMS_DIR": str(stub.tree), "PYTHON": sys.executable,
                "TRITON_CACHE_DIR": str(stub.runs / ".cache/triton/host-host_7"),
                "FLAGGEMS_CACHE_DIR": str(stub.runs / ".cache/flaggems/host-host_7")}
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


# ---- resume

def test_a_complete_screen_is_not_run_again(stub):
    assert stub.run() == 0
    assert stub.run() == 0
    assert "resumed: 3 of 3 operators are complete" in stub.output()
    assert [stub.attempts(op) for op in ("abs", "add", "mm")] == [["1"]] * 3
    assert len(list(stub.runs.glob("screen-*"))) == 1


def test_every_knob_of_run_pytest_is_an_input(stub):
    assert stub.run("--ops", "abs", "--run", "mine") == 0
    for name in ("WARMUP_MS", "USE_FLAGTUNE", "PLUGINS", "SITE_PLUGINS", "DTYPES"):
        assert stub.run("--ops", "abs", "--run", "mine", "--dry-run", **{name: "bool" if name == "DTYPES" else "1"}) == 0
        assert "1 of 1 to run" in stub.output()
    for name in ("KILL_AFTER_S", "DEVICE", "ATTEMPT", "TIMEOUT", "RETRIES"):
        assert stub.run("--ops", "abs", "--run", "mine", "--dry-run", **{name: "1"}) == 0
        assert "0 of 1 to run" in stub.output()


@pytest.mark.parametrize("what", ["node", "shared", "tree", "stub", "knob", "marker"])
def test_a_stale_marker_is_run_again_and_said(stub, what):
    run = ["--run", str(stub.runs / "mine")]
    assert stub.run(*run) == 0
    variables = {}
    if what == "node":
        (stub.tree / "benchmark/test_abs.py").write_text("# changed\n")
    elif what == "shared":
        (stub.tree / "benchmark/core_shapes.yaml").write_text("BlasBenchmark:\nBenchmark:\n")
    elif what == "tree":
        (stub.tree / "src").mkdir()
        (stub.tree / "src/kernel.py").write_text("")
    elif what == "stub":
        with open(stub.stub, "a") as stream:
            stream.write("true\n")
    elif what == "knob":
        variables["LEVEL"] = "core"
    elif what == "marker":
        path = stub.latest / "main/abs/.complete"
        path.write_text(path.read_text()[:40])
    assert stub.run(*run, **variables) == 0
    again = {"node": "files", "shared": "shared", "tree": "tree", "stub": "runner", "knob": "knobs"}.get(what)
    one_op = what in ("node", "marker")
    assert [stub.attempts(op) for op in ("abs", "add")] == [["1", "2"], ["1"] if one_op else ["1", "2"]]
    if again:
        assert f"again (changed: {again})" in stub.output()
    if what == "knob":
        assert "changed since this screen was started last: LEVEL (unset -> core)" in stub.output()


def test_a_file_that_a_benchmark_imports_is_its_input_and_a_comment_of_the_runner_is_none(stub):
    run = ["--run", str(stub.runs / "mine")]
    (stub.tree / "benchmark/test_abs.py").write_text("import os\nfrom .test_base_of import (Base, Other)\n")
    (stub.tree / "benchmark/test_base_of.py").write_text("from benchmark.test_root import Root\n")
    (stub.tree / "benchmark/test_root.py").write_text("from .test_abs import again\n")
    assert stub.run(*run) == 0
    stub.stub.write_text(stub.stub.read_text() + "\n    # a comment\n")
    assert stub.run(*run) == 0 and "again (" not in stub.output()
    (stub.tree / "benchmark/test_root.py").write_text("# changed\n")
    assert stub.run(*run) == 0 and "1 complete operator again (changed: files)" in stub.output()
    assert [stub.attempts(op) for op in ("abs", "add")] == [["1", "2"], ["1"]]


def test_without_run_another_selection_is_another_screen(stub):
    assert stub.run() == 0
    first = stub.latest
    assert stub.run("--ops", "abs") == 0
    assert stub.latest != first
    assert f"{first.name} has another selection (OPS); RUN=runs/{first.name} goes on there" in stub.output()
    second = stub.latest
    assert stub.run("--ops", "abs", "--fresh") == 0
    assert stub.latest not in (first, second) and "(new: FRESH=1)" in stub.output()


def test_without_run_an_old_screen_is_not_continued(stub):
    assert stub.run() == 0
    facts_path = stub.latest / "screen.json"
    facts = json.loads(facts_path.read_text())
    facts["created"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 24 * 3600 + 60))   # cron came early
    facts_path.write_text(json.dumps(facts))
    first = stub.latest
    assert stub.run() == 0
    assert stub.latest != first and f"{first.name} complete and started 24 hours ago" in stub.output()


def test_fewer_ops_in_the_same_screen_lose_no_row(stub):
    run = ["--run", str(stub.runs / "mine")]
    assert stub.run(*run) == 0
    assert stub.run(*run, "--ops", "abs") == 0
    assert names(stub.read_csv("plan.csv")) == names(stub.read_csv("summary.csv")) == ["abs", "add", "mm"]
    stub.write_ops(["abs", "add"])
    assert stub.run(*run) == 1      # the exit status agrees with the summary that is shown
    assert [(row["op"], row["status"], row["reason"]) for row in stub.read_csv("plan.csv")][2] == (
        "mm", "not_found", "no longer in the inventory")


def count_attempts(stub):
    return [len(stub.attempts(op)) for op in ("abs", "add", "mm")]


def test_another_compiler_switch_is_another_measurement(stub):
    assert stub.run(FLAGTREE_MUSA_RLC_ENHANCE="0") == 0
    assert stub.run(FLAGTREE_MUSA_RLC_ENHANCE="0") == 0 and count_attempts(stub) == [1, 1, 1]
    assert stub.run(FLAGTREE_MUSA_RLC_ENHANCE="1") == 0 and count_attempts(stub) == [2, 2, 2]
    assert "changed: switches" in stub.output()


def test_a_rebuilt_compiler_of_the_same_version_is_another_one(stub):
    package = stub.folder / "site/triton"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "libtriton.so").write_bytes(b"one")
    site = {"PYTHONPATH": str(stub.folder / "site")}
    assert stub.run(**site) == 0
    assert stub.run(**site) == 0 and count_attempts(stub) == [1, 1, 1]
    (package / "libtriton.so").write_bytes(b"other")
    assert stub.run(**site) == 0 and count_attempts(stub) == [2, 2, 2]


@pytest.mark.parametrize("marker", [{"status": "bogus"}, {"attempt": "one"}, {"attempt": None}])
def test_a_damaged_marker_is_no_outcome(stub, marker):
    assert stub.run() == 0
    path = stub.latest / "main/abs/.complete"
    path.write_text(json.dumps(json.loads(path.read_text()) | marker))
    assert stub.run() == 0
    assert "its marker is damaged" in stub.output() and stub.marker("abs")["attempt"] == 2


def test_a_marker_without_its_log_is_no_outcome(stub):
    assert stub.run() == 0
    (stub.latest / "main/abs/attempts/1/run.log").unlink()
    assert stub.run() == 0
    assert "the run.log of its attempt is gone" in stub.output() and stub.marker("abs")["attempt"] == 2


def test_a_dtype_named_twice_is_measured_once(stub):
    assert stub.run("--ops", "abs", "--dtypes", "float16, float16") == 0
    assert json.loads((stub.latest / "screen.json").read_text())["knobs"]["DTYPES"] == "float16"


@pytest.mark.parametrize("knob", ["TIMEOUT", "GRACE_S"])
def test_a_limit_that_is_no_number_is_refused(stub, knob):
    assert stub.run(**{knob: "nan"}) == 2
    assert f"{knob}: nan: is no number of seconds" in stub.output()


def test_planned_is_reported(stub):
    stub.write_ops(["abs", "add", "gone", "hangs"])
    (stub.tree / "benchmark/test_gone.py").unlink()
    stub.dismiss("hangs", "kills the driver")
    stub.behave("add", "test_line failed 'E: x'; finish 1")
    assert stub.run() == 1
    assert {row["op"]: row["status"] for row in stub.read_csv("summary.csv")} == {
        "abs": "ok", "add": "failed", "gone": "not_found", "hangs": "dismissed"}
    assert {row["op"]: row["reason"] for row in stub.read_csv("plan.csv")}["hangs"] == "kills the driver"


# ---- devices and sharding

FAKE_TORCH = """
import os, types
count = len([n for n in os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7").split(",") if n.isdigit() and int(n) < 8])
def mem_get_info():
    path = os.path.join(os.environ["BEHAVE"], "memory-" + os.environ["CUDA_VISIBLE_DEVICES"])
    with open(path + ".asked", "a") as stream:
        stream.write("x")
    return (100, 100) if not os.path.exists(path) or os.path.getsize(path + ".asked") > int(open(path).read()) else (10, 100)
cuda = types.SimpleNamespace(is_available=lambda: count > 0, device_count=lambda: count, mem_get_info=mem_get_info,
                             get_device_name=lambda n: "NVIDIA H200")
"""


@pytest.fixture
def cards(stub):
    """Variables of a machine with 8 NVIDIA cards, a stand-in for torch. The file behave/memory-N says how many looks card
    N takes until its memory is free."""
    (stub.folder / "torch.py").write_text(FAKE_TORCH)
    return {"PYTHONPATH": stub.folder, "DEVICES": None}


def test_children_get_the_callers_devices_one_each(stub, cards):
    for op in ("abs", "add", "mm"):
        stub.behave(op, 'echo "$CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER ${HOST_TARGET-unset}" > "$RUN_DIR/seen"')
    assert stub.run(CUDA_VISIBLE_DEVICES="4,6", **cards) == 0
    seen = {(stub.latest / f"main/{op}/attempts/1/seen").read_text() for op in ("abs", "add", "mm")}
    assert seen == {"4 PCI_BUS_ID unset\n", "6 PCI_BUS_ID unset\n"}
    assert {row["device"] for row in stub.read_csv("plan.csv")} == {"4", "6"}


def test_an_op_meets_the_same_device_every_night(stub, cards):
    ops = [f"op{number}" for number in range(12)]
    stub.write_ops(ops)
    expected = {op: str(int(hashlib.sha256(f"main/{op}".encode()).hexdigest(), 16) % 3) for op in ops}
    assert (expected["op0"], expected["op1"], expected["op2"]) == ("1", "2", "0")       # on every machine
    for _ in range(2):
        assert stub.run("--fresh", "--devices", "0,1,2", **cards) == 0
        assert {row["op"]: row["device"] for row in stub.read_csv("plan.csv")} == expected
        assert {op: stub.log_facts(op, 1)["device"] for op in ops} == expected


def test_balanced_sharding_packs_the_longest_first_and_is_stored(stub, cards):
    stub.write_ops(["a", "b", "c", "d", "e"])
    assert stub.run("--devices", "0,1", **cards) == 0
    for op, seconds in {"a": 10, "b": 60, "c": 20, "d": 30, "e": 5}.items():
        path = stub.latest / f"main/{op}/.complete"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": seconds}))
    balanced = ["--devices", "0,1", "--shard", "balanced", "--run", str(stub.runs / "mine")]
    assert stub.run(*balanced, **cards) == 0
    packed = {row["op"]: row["device"] for row in stub.read_csv("plan.csv")}
    assert packed == {"b": "0", "d": "1", "c": "1", "a": "1", "e": "0"}
    for path in stub.runs.glob("screen-*/main/*/.complete"):
        path.unlink()                       # what it was packed by is no more
    assert stub.run(*balanced, **cards) == 0
    assert {row["op"]: row["device"] for row in stub.read_csv("plan.csv")} == packed


def test_balanced_gives_an_op_the_device_of_the_night_before(stub, cards):
    stub.write_ops(["a", "b", "c", "d"])
    balanced = ["--devices", "0,1", "--shard", "balanced", "--fresh"]
    assert stub.run(*balanced, **cards) == 0
    first = {"a": "0", "b": "1", "c": "0", "d": "1"}
    assert {row["op"]: row["device"] for row in stub.read_csv("plan.csv")} == first
    for op, seconds in {"a": 10, "b": 12, "c": 14, "d": 11}.items():     # packed anew b and c would part from a and d
        path = stub.latest / f"main/{op}/.complete"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": seconds}))
    stub.write_ops(["a", "b", "c", "d", "new"])
    assert stub.run(*balanced, **cards) == 0
    assert {row["op"]: row["device"] for row in stub.read_csv("plan.csv")} == first | {"new": "1"}
    assert [row["device"] for row in stub.read_csv("summary.csv")] == ["0", "1", "0", "1", "1"]


def test_a_queue_gives_an_idle_card_what_waits_at_another(stub, cards):
    ops = ["first", "second", "third", "fourth"]
    stub.write_ops(ops)
    stub.behave("first", 'while [ $(ls -d "$RUN_DIR"/../../../*/.complete | wc -l) -lt 3 ]; do sleep 0.05; done')
    assert stub.run("--devices", "0,1", "--shard", "queue", "--timeout", "30", **cards) == 0
    where = {row["op"]: row["device"] for row in stub.read_csv("plan.csv")}
    assert where == {"first": "0", "second": "1", "third": "1", "fourth": "1"}
    assert {op: stub.log_facts(op, 1)["device"] for op in ops} == where


def test_an_idle_host_slot_takes_over(stub):
    ops = [f"op{number}" for number in range(8)]
    stub.write_ops(ops)
    hashed = {op: int(hashlib.sha256(f"main/{op}".encode()).hexdigest(), 16) % 2 for op in ops}
    first = next(op for op in ops if hashed[op] == 0)
    others = [op for op in ops if op != first]
    stub.behave(first, f'while [ $(ls -d "$RUN_DIR"/../../../*/.complete | wc -l) -lt {len(others)} ]; do sleep 0.05; done')
    assert sum(hashed[op] == 0 for op in others) > 0
    assert stub.run("--devices", "host:0,host:1", "--timeout", "30") == 0
    planned = {row["op"]: row["device"] for row in stub.read_csv("plan.csv")}
    assert planned == {first: "host:0", **dict.fromkeys(others, "host:1")}
    assert {op: stub.log_facts(op, 1)["device"] for op in ops} == planned


def test_a_device_that_does_not_exist(stub, cards):
    assert stub.run("--devices", "3,9", **cards) == 3
    assert "DEVICES: 9: does not exist" in stub.output()
    assert not stub.runs.exists()


def test_after_a_kill_the_device_settles_before_the_next_op(stub, cards):
    stub.write_ops(["a_hangs", "b_next"])
    stub.behave("a_hangs", "sleep 600")
    stub.behave("b_next", 'cp "$BEHAVE/memory-5.asked" "$RUN_DIR/looks"')
    (stub.behaviour / "memory-5").write_text("2")                           # dirty twice, then clean
    assert stub.run("--devices", "5", "--timeout", "2", **cards) == 1
    assert stub.statuses() == {"a_hangs": "timeout", "b_next": "ok"}
    assert (stub.latest / "main/b_next/attempts/1/looks").read_text() == "xxx"


def test_a_device_that_is_never_freed_gets_no_more_ops(stub, cards):
    ops = [f"op{number}" for number in range(6)]
    stub.write_ops(ops)
    on_card = {op: "45"[int(hashlib.sha256(f"main/{op}".encode()).hexdigest(), 16) % 2] for op in ops}
    first = next(op for op in ops if on_card[op] == "4")
    stub.behave(first, "sleep 600")
    (stub.behaviour / "memory-4").write_text("1000000")
    assert stub.run("--devices", "4,5", "--timeout", "2", SETTLE_S=0.5, **cards) == 1
    assert "device 4: its memory is not freed; it gets no more operators" in stub.output()
    assert stub.statuses() == {**dict.fromkeys(ops, "ok"), first: "timeout"}
    moved = [op for op in ops if on_card[op] == "4" and op != first]
    assert moved and {stub.marker(op)["device"] for op in moved} == {"5"}
    assert {row["op"]: row["device"] for row in stub.read_csv("plan.csv")} == {**dict.fromkeys(ops, "5"), first: "4"}


def test_a_device_on_which_pytest_does_not_start_is_left_out_and_nothing_runs_where_none_is_left(stub, cards):
    broken = "[ $DEVICE = {} ] && {{ rm $RUN_DIR/session.jsonl; say 'device guard: error: torch sees no accelerator'; finish 3; }}"
    for op in ("abs", "add", "mm"):
        stub.behave(op, broken.format(4))
    assert stub.run("--devices", "4,5", **cards) == 0
    assert "pytest did not start: torch sees no accelerator; no operator can be run like this" in stub.output()
    assert {stub.marker(op)["device"] for op in ("abs", "add", "mm")} == {"5"}
    for op in ("abs", "add", "mm"):
        stub.behave(op, broken.format("$DEVICE"))
    assert stub.run("--devices", "4,5", FRESH=1, **cards) == 3
    assert "no device is left" in stub.output() and stub.statuses() == {}


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


# ---- bad input: a clear error, and nothing happens

@pytest.mark.parametrize("arguments, variables, message", [
    (["--ops", "abs,ad"], {}, "OPS: ad: in no inventory of main; did you mean add"),
    (["--ops", "zzzzzz"], {}, "OPS: zzzzzz: in no inventory of main"),
    (["--match", "("], {}, "MATCH: (: is no regular expression"),
    (["--match", "^zz"], {}, "MATCH: ^zz: matches none of 3 operators"),
    (["--dtypes", "float16,half"], {}, "DTYPES: half: unknown; valid are float16, float32, bfloat16, int16, int32, bool, complex64"),
    (["--level", "medium"], {}, "LEVEL: medium: unknown; valid are core, comprehensive"),
    ([], {"MODE": "graph"}, "MODE: graph: unknown; valid are kernel, operator, wrapper, cudagraph"),
    (["--shard", "random"], {}, "SHARD: random: unknown; valid are hash, balanced, queue"),
    (["--timeout", "soon"], {}, "TIMEOUT: soon: is no number of seconds"),
    (["--timeout", "0"], {}, "TIMEOUT: 0: is no number of seconds"),
    (["--retries", "-1"], {}, "RETRIES: -1: is no whole number"),
    (["--shapes", "/no/such.yaml"], {}, "SHAPES: /no/such.yaml: no such file"),
    (["--devices", "host:0,host:0"], {}, "DEVICES: host:0: named twice"),
    ([], {"REPLAY_FROM": "/no/record"}, "REPLAY_FROM: /no/record: is not there"),
    ([], {"FLAGGEMS_DIR": "/tmp"}, "FLAGGEMS_DIR: /tmp: is no checkout"),
    ([], {"OPS_DIR": "/tmp"}, "/tmp/inventory_main.csv: missing"),
    ([], {"RUN_PYTEST": "/no/stub"}, "RUN_PYTEST: /no/stub: is no executable file"),
    (["--run", "tree"], {}, "is not empty and no screen"),
    (["--frobnicate"], {}, "unrecognized arguments: --frobnicate"),
])
def test_bad_input(stub, arguments, variables, message):
    assert stub.run(*arguments, **variables) == 2
    assert message in stub.output()
    assert "Traceback" not in stub.output()
    assert not stub.runs.exists()


def test_an_inventory_with_a_missing_column(stub):
    path = stub.ops_dir / "inventory_main.csv"
    path.write_text(path.read_text().replace(",bench_node,", ",node,"))
    assert stub.run() == 2
    assert "inventory_main.csv" in stub.output() and "bench_node" in stub.output()


def test_a_shape_file_without_class_keys_is_refused_before_anything_runs(stub):
    (stub.tree / "benchmark/base.py").write_text(BLAS_BASE)
    (stub.tree / "benchmark/test_abs.py").write_text(BLAS_TEST)
    shapes = stub.folder / "my.yaml"
    shapes.write_text("abs:\n  shapes:\n  - [64, 64]\n")
    assert stub.run("--shapes", str(shapes), "--ops", "abs") == 2
    assert "my.yaml: lacks the class keys Benchmark, BlasBenchmark" in stub.output()
    assert not list(stub.runs.glob("screen-*"))
    shapes.write_text("BlasBenchmark:\n  shapes:\n  - [1, 2, 3, 4]\nBenchmark:\n  shapes:\n  - [64, 64]\n")
    assert stub.run("--shapes", str(shapes), "--ops", "abs") == 0
    assert "warning" not in stub.output()


def test_match_and_repo_names_choose(stub):
    assert stub.run("--match", "^a", "--dry-run") == 0
    assert "2 of 2 to run" in stub.output()
    assert stub.run("--ops", "main/add,mm", "--dry-run") == 0
    assert "2 of 2 to run" in stub.output() and "main/abs" not in stub.output()
