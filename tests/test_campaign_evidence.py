"""campaign/evidence.py: what a step's files say where a marker, a replay or a time does not fit. Whole runs: test_campaign_run.py."""
import json
from types import SimpleNamespace

import pytest

from campaign.evidence import StepData, TaskData, read_status, read_times, scope_facts
from campaign.layout import Step, step_dir
from common.replay_log import find_replay_fault

GOOD = "AUTOTUNE_REPLAY libtuner: used=3 unused=1 missed=0 fallback=0 dropped=0 from=x\n"
STEP = Step("t", "a1", "candidate")


@pytest.mark.parametrize("log, said", [
    (GOOD, ""), (GOOD.replace("missed=0", "missed=10"), "libtuner: missed=10"),
    (GOOD + GOOD.replace("libtuner", "autotune").replace("fallback=0", "fallback=1"), "autotune: fallback=1"),
    (GOOD.replace("dropped=0", "dropped=0 retuned=2"), "libtuner: retuned=2"),  # an outcome that this version does not know
    ("", "run.log says nothing of the replay")])
def test_a_replay_that_was_not_strict_is_named(tmp_path, log, said):
    (tmp_path / "autotune.json").write_text(json.dumps({"entries": [{}]}))
    assert find_replay_fault(tmp_path, log, False) == said


def test_a_kernel_without_configs_needs_no_replay_but_a_record(tmp_path):
    assert find_replay_fault(tmp_path, "", True) == "autotune.json is missing or broken"
    (tmp_path / "autotune.json").write_text(json.dumps({"entries": []}))
    assert find_replay_fault(tmp_path, "", False) == ""


@pytest.mark.parametrize("status, exit_json, said", [
    ("ok", '{"pytest_exit": 0}', ("ok", "")), ("ok", '{"pytest_exit": 1}', ("crashed", "its marker says ok, its files say failed")),
    ("failed", '{"pytest_exit": 0}', ("crashed", "its marker says failed, its files say ok")),
    ("crashed", None, ("crashed", "pytest never ended by itself")), ("ok", "{", ("crashed", "its marker says ok, its files say crashed")),
    ("timeout", None, ("timeout", "too slow"))])
def test_the_files_count_and_not_the_marker(tmp_path, status, exit_json, said):
    run_dir = step_dir(tmp_path, STEP) / "attempts" / "1"
    run_dir.mkdir(parents=True)
    (run_dir / "run.log").write_text("")
    if exit_json:
        (run_dir / "exit.json").write_text(exit_json)
    assert read_status(tmp_path, STEP, {"status": status, "attempt": 1, "detail": "too slow"}) == said


def make_task(**changes):
    """A task with both rounds; `changes` by part and cell, as a1_candidate."""
    cell = SimpleNamespace(errors=(), variants=())
    row = {"r": (1.0, "graph", "cold")}
    steps = {(part, name): StepData("ok", "", cell, "", changes.get(f"{part}_{name}", row)) for part in ("a1", "b1")
             for name in ("off", "mask0", "candidate") if f"{part}_{name}" not in changes or changes[f"{part}_{name}"] is not None}
    return TaskData("t", steps, {}, {}, True, 1)


def test_times_of_both_rounds():
    times = read_times(make_task())
    assert times.state == "ok" and times.pairs["b", 1] == {"r": {"off": 1.0, "mask0": 1.0, "candidate": 1.0}}


@pytest.mark.parametrize("changes, state, said", [
    ({"b1_off": None, "b1_mask0": None, "b1_candidate": None}, "no-b", ""),
    ({"b1_mask0": None}, "invalid", "b1: mask0 is missing"),
    ({"a1_candidate": {}}, "invalid", "a1: candidate has no rows, or other rows than off"),
    ({"a1_candidate": {"r": (None, "graph", "cold")}}, "invalid", "a1: candidate: r: no time"),
    ({"a1_candidate": {"r": (1.0, "event", "cold")}}, "invalid", "a1: candidate: r: timed by event cold, off by graph cold"),
    ({"b1_mask0": {"r": (1.0, "graph", "warm")}}, "invalid", "b1: mask0: r: timed by graph warm, off by graph cold"),
    ({"a1_off": {"r": (1.0, "host", "host")}}, "invalid", "a1: off: r: no time")])
def test_times_that_do_not_fit(changes, state, said):
    times = read_times(make_task(**changes))
    assert (times.state, times.detail) == (state, said) and (state == "no-b" or times.pairs == {})


def test_a_step_without_a_marker_is_a_missing_cell():
    facts = scope_facts(make_task(a1_candidate=None), 1)
    assert facts.cell("candidate").status == "missing" and facts.cell("off").status == "ok"
