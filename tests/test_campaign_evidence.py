"""campaign/evidence.py: what a step's files say where a marker, a replay or a time does not fit. Runs: test_campaign_run.py."""
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from campaign.classify import find_broken_evidence
from campaign.evidence import Figure, StepData, TaskData, read_status, read_step, read_tests, read_times, scope_facts
from campaign.layout import Step, step_dir
from campaign.worker import describe_end
from common.replay_log import find_replay_fault
from common.state import write_marker
from common.ttgir import Converts

GOOD = "AUTOTUNE_REPLAY libtuner: used=3 unused=1 missed=0 fallback=0 dropped=0 from=x\n"
STEP = Step("t", "a1", "candidate")


@pytest.mark.parametrize("log, said", [
    (GOOD, ""), (GOOD.replace("missed=0", "missed=10"), "libtuner: missed=10"),
    (GOOD + GOOD.replace("libtuner", "autotune").replace("fallback=0", "fallback=1"), "autotune: fallback=1"),
    (GOOD.replace("dropped=0", "dropped=0 retuned=2"), "libtuner: retuned=2"),  # an outcome that this version does not know
    (GOOD.replace("used=3 unused=1", "used=0 unused=4"), "libtuner: used=0: no launch asked for the record"),
    ("", "run.log says nothing of the replay")])
def test_a_replay_that_was_not_strict_is_named(tmp_path, log, said):
    (tmp_path / "autotune.json").write_text(json.dumps({"entries": [{}]}))
    assert find_replay_fault(tmp_path, log, False) == said


def test_a_kernel_without_configs_needs_no_replay_but_a_record(tmp_path):
    assert find_replay_fault(tmp_path, "", True) == "autotune.json is missing or broken"
    (tmp_path / "autotune.json").write_text(json.dumps({"entries": []}))
    assert find_replay_fault(tmp_path, "", False) == ""


def test_a_session_that_was_ended_from_inside_is_no_success(tmp_path):
    """os._exit(0) in a test: pytest's status is 0, and what comes after it was never run."""
    (tmp_path / "exit.json").write_text('{"pytest_exit": 0}')
    (tmp_path / "session.jsonl").write_text('{"event": "started"}\n{"event": "collected", "nodes": ["t::a", "t::b"]}\n')
    assert describe_end(tmp_path) == ("crashed", "pytest was ended from inside, before its session was done")
    with open(tmp_path / "session.jsonl", "a") as stream:
        stream.write('{"event": "finished", "exit": 0}\n')
    assert describe_end(tmp_path) == ("ok", "")


@pytest.mark.parametrize("status, exit_json, said", [
    ("ok", '{"pytest_exit": 0}', ("ok", "")),
    ("ok", '{"pytest_exit": 1}', ("crashed", "its marker says ok, its files say failed")),
    ("failed", '{"pytest_exit": 0}', ("crashed", "its marker says failed, its files say ok")),
    ("crashed", None, ("crashed", "pytest never ended by itself")),
    ("crashed", "[0]", ("crashed", "pytest never ended by itself")),
    ("ok", "{", ("crashed", "its marker says ok, its files say crashed")),
    ("timeout", None, ("timeout", "too slow"))])
def test_the_files_count_and_not_the_marker(tmp_path, status, exit_json, said):
    run_dir = step_dir(tmp_path, STEP) / "attempts" / "1"
    run_dir.mkdir(parents=True)
    (run_dir / "run.log").write_text("")
    if exit_json:
        (run_dir / "exit.json").write_text(exit_json)
    marker = {"status": status, "attempt": 1, "detail": "too slow", "settings": {"SWITCH": "1", "LEVEL": "core"}}
    assert read_status(tmp_path, STEP, marker, {"SWITCH": "1"}) == said
    assert read_status(tmp_path, STEP, marker, {"SWITCH": "0"}) == ("crashed", "its marker says SWITCH=1: it is of another cell")


COLD = Figure(1.0, "graph", "cold")


def make_variant(runs=2, **facts):
    converts = Converts(0, 0, 0)
    own = {"kernel": "k", "ttgir": "t", "binary": "b", "hash": "h", "switch": "e1", "converts": converts, "runs": runs}
    return SimpleNamespace(**own | facts)


def make_task(ran=None, **changes):
    """A task with both rounds; `changes` of rows by part and cell, as a1_candidate; `ran` of variants likewise."""
    row, ran = {"r": COLD, "s": COLD}, ran or {}
    steps = {}
    for part in ("a1", "b1"):
        for cell in ("off", "mask0", "candidate"):
            rows = changes.get(f"{part}_{cell}", row)
            kernels = SimpleNamespace(errors=(), variants=ran.get(f"{part}_{cell}", (make_variant(),)))
            if rows is not None:
                steps[(part, cell)] = StepData("ok", "", kernels, "", rows)
    return TaskData("t", StepData("ok", ""), steps, {}, dict.fromkeys(("off", "mask0", "candidate"), "^e1$"), True, 1)


@pytest.mark.parametrize("record, said", [
    (None, ("cell-missing", "off: record: missing")),
    (StepData("failed", "pytest's exit status is 1"), ("off-failed", "off: record: pytest's exit status is 1")),
    (StepData("timeout", "stopped at its limit of 9 s"), ("cell-timeout", "off: record: stopped at its limit of 9 s")),
    (StepData("ok", "", None, "autotune.json is missing or broken"),
     ("record-broken", "off: record: autotune.json is missing or broken"))])
def test_without_a_sound_record_there_is_no_evidence(record, said):
    assert find_broken_evidence(scope_facts(replace(make_task(), record=record), 0)) == said


ONE = {"r": COLD}
EVENT = dict.fromkeys("rs", COLD._replace(timer="event"))
OTHER_CODE = "b1: candidate ran other code than in a1, or ran it otherwise"


def test_times_of_both_rounds():
    times = read_times(make_task())
    assert times.state == "ok" and times.pairs["b", 1] == {row: {"off": 1.0, "mask0": 1.0, "candidate": 1.0} for row in "rs"}


@pytest.mark.parametrize("changes, state, said", [
    ({"b1_off": None, "b1_mask0": None, "b1_candidate": None}, "no-b", ""),
    ({"b1_mask0": None}, "invalid", "b1: mask0 is missing"),
    ({"a1_candidate": {}}, "invalid", "a1: candidate has no rows, or other rows than off in a1"),
    (dict.fromkeys(("b1_off", "b1_mask0", "b1_candidate"), ONE), "invalid", "b1: off has no rows, or other rows than off in a1"),
    (dict.fromkeys(("b1_off", "b1_mask0", "b1_candidate"), EVENT), "invalid",
     "b1: off: r: timed by event cold, off in a1 by graph cold"),
    ({"ran": {"b1_candidate": (make_variant(ttgir="u"),)}}, "invalid", OTHER_CODE),
    ({"ran": {"b1_candidate": (make_variant(runs=1),)}}, "invalid", OTHER_CODE),
    ({"ran": {"b1_candidate": (make_variant(switch="e0"),)}}, "invalid", OTHER_CODE),
    ({"a1_candidate": {**ONE, "s": COLD._replace(ms=None)}}, "invalid", "a1: candidate: s: no time"),
    ({"a1_candidate": EVENT}, "invalid", "a1: candidate: r: timed by event cold, off in a1 by graph cold"),
    ({"b1_mask0": dict.fromkeys("rs", COLD._replace(cache="warm"))}, "invalid",
     "b1: mask0: r: timed by graph warm, off in a1 by graph cold"),
    ({"a1_off": dict.fromkeys("rs", Figure(1.0, "host", "host"))}, "invalid", "a1: off: r: no time")])
def test_times_that_do_not_fit(changes, state, said):
    times = read_times(make_task(**changes))
    assert (times.state, times.detail) == (state, said) and (state == "no-b" or times.pairs == {})


def test_a_figure_that_its_own_row_doubts_is_none():
    times = read_times(make_task(b1_mask0={**ONE, "s": COLD._replace(doubt="throttled: sw_power_cap")}))
    assert (times.state, times.detail) == ("invalid", "b1: mask0: s: throttled: sw_power_cap")


def test_a_step_without_a_marker_is_a_missing_cell():
    facts = scope_facts(make_task(a1_candidate=None), 1)
    assert facts.cell("candidate").status == "missing" and facts.cell("off").status == "ok"


# Logs and tests ------------------------------------------------------------------------------------------------------

LOG = """==== gemscreen begin ====
schema: 1
op: t
====
Operator: t  Performance Test (dtype=torch.float16, mode=kernel,level=core)
Status      Torch Latency (ms)    Gems Latency (ms)         Gems Speedup         Size Detail
------------------------------------------------------------------------------------------
SUCCESS             1.000000            0.500000               2.000          [torch.Size([64, 64])]
==== gemscreen end ====
pytest_exit: 0
====
"""
TABLE = '{"event": "table", "op": "t", "dtype": "torch.float16", "rows": ["0.500000"]}\n'
SESSION = '{"event": "started"}\n' + TABLE + '{"event": "finished", "exit": 0}\n'


def write_step(run, step, status="ok", pytest_exit=0, **files):
    """A step's marker and what its attempt left."""
    run_dir = step_dir(run, step) / "attempts" / "1"
    run_dir.mkdir(parents=True)
    write_marker(step_dir(run, step), status, "x", attempt=1)
    (run_dir / "exit.json").write_text(json.dumps({"pytest_exit": pytest_exit}))
    for name, text in files.items():
        (run_dir / name.replace("_", ".")).write_text(text)


@pytest.mark.parametrize("log, session, said", [
    (LOG, SESSION, ("ok", "")), (LOG, None, ("ok", "")),
    (LOG.replace("op: t", "record: session.jsonl"), None, ("crashed", "pytest did not start")),
    (LOG.partition("==== gemscreen end")[0], SESSION, ("crashed", "run.log is cut")),
    (LOG, SESSION.replace(TABLE, 2 * TABLE), ("crashed", "1 of 2 printed rows lack in run.log, or have another figure there")),
    (LOG, SESSION.replace("0.500000", "0.600000"),
     ("crashed", "1 of 1 printed rows lack in run.log, or have another figure there"))])
def test_a_log_that_lost_rows_is_no_evidence(tmp_path, log, session, said):
    write_step(tmp_path, STEP, run_log=log, **({"session_jsonl": session} if session else {}))
    step = read_step(tmp_path, STEP, {})
    assert (step.status, step.detail) == said


@pytest.mark.parametrize("reason, doubt", [
    ("", ""), ("torch: launch-bound: a call costs the host 56 us, its kernels may be faster", ""),
    ("gems: launch-bound: a call costs the host 219 us, its kernels may be faster",) * 2,
    ("gems: throttled: sw_power_cap",) * 2])
def test_a_figure_that_holds_the_time_of_the_host_is_none_of_the_kernels(tmp_path, reason, doubt):
    """Two compilers cannot be compared by it; do_bench gives such figures for what cannot be captured."""
    line = (f"TIMER: Operator=t dtype=torch.float16 row=1 timer=do_bench cache=cold how=flush launches=1 copies=1 samples=9 "
            f"spread=0.1 host_us=219 host_us_base=56 reason=<<<{reason}>>>\n")
    write_step(tmp_path, STEP, run_log=LOG.replace("==== gemscreen end", line + "==== gemscreen end"), session_jsonl=SESSION)
    rows = read_step(tmp_path, STEP, {}).rows
    assert rows == {"t float16 [torch.Size([64, 64])]": Figure(0.5, "do_bench", "cold", None, doubt)}


@pytest.mark.parametrize("outcome, said", [
    ("failed", "failed"), ("error", "failed"), ("passed", "failed: pytest's exit status is 1")])
def test_a_failure_needs_a_test_that_failed(tmp_path, outcome, said):
    """pytest's status 1 may be a plugin's: that is no wrong result of the operator."""
    step, test = Step("t", "tests", "candidate"), {"node": "n", "outcome": outcome}
    write_step(tmp_path, step, "failed", 1, run_log=LOG, tests_jsonl=json.dumps(test))
    assert read_tests(tmp_path, step, "", {})[0] == said
