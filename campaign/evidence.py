"""evidence.py - what the files of a run say, as the facts that classify.py and timing.py take.

    tasks = read_run(run, frozen)                      {task: TaskData}, everything read once
    scope_facts(tasks["rand"], floor)                  TaskFacts at a floor
    read_times(tasks["rand"])                          Times: {(round, replicate): {row: {cell: ms}}}, or why there are none

The files count, not the markers: exit.json, tests.jsonl, run.log, index.tsv and the dumps are read again each time, so
that verify.py recomputes all of it. A marker only says which attempt counts, what it was run with, and that a step was
stopped at its limit.

Requirements: the standard library, pydantic (the manifest). Limits: broken content never raises; it becomes a fact.
"""
import json
import math
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from campaign.classify import CELLS, CellFacts, TaskFacts
from campaign.device_state import is_throttled
from campaign.layout import RECORD, Step, attempt_dir, step_dir
from campaign.topology import read_cell, scope_cell
from campaign.worker import describe_end
from common.replay_log import find_replay_fault
from common.runlog import parse_runlog
from common.session import find_session_fault
from common.state import read_json, read_marker, sha256_json
from common.tablerow import find_doubt, find_host_bound
from common.verdict import find_gap_shift

PART = re.compile(r"([ab])(\d+)")


class Figure(NamedTuple):
    """One row of a table. `ms`: None if it is no time; `launch`: (us, number), what a launch cost while it was timed and how
    often a call launches, or None; `doubt`: what the row says against itself."""
    ms: float | None
    timer: str
    cache: str
    launch: tuple | None = None
    doubt: str = ""


@dataclass(frozen=True)
class StepData:
    """One benchmark step, read. `rows`: {row: Figure} in the table's order."""
    status: str
    detail: str
    cell: object = None
    replay: str = ""
    rows: dict = field(default_factory=dict)
    is_throttled: bool = False


@dataclass(frozen=True)
class TaskData:
    """One task, read. `record`: the StepData of the record, None without a marker; `steps`: the rounds', by (part, cell)."""
    task: str
    record: object
    steps: dict
    correctness: dict
    proof: dict
    has_times: bool
    replicates: int


@dataclass(frozen=True)
class Times:
    """`state`: none, no-b, invalid, ok, as in classify.Timing; `pairs` and `shifts` as in timing.py (empty if invalid)."""
    state: str
    detail: str
    pairs: dict
    shifts: dict = field(default_factory=dict)


def read_run(run, frozen):
    """{task: TaskData} in the manifest's order."""
    return {workload.task: read_task(run, workload.task, frozen.manifest) for workload in frozen.manifest.workloads}


def read_task(run, task, manifest):
    cells, proof = manifest.cells, manifest.proof
    return TaskData(task, read_step(run, Step(task, RECORD, "off"), cells["off"]), read_steps(run, task, cells),
                    read_correctness(run, task, proof.log, cells), proof.index, manifest.has_times, manifest.replicates)


def read_steps(run, task, cells):
    folder = step_dir(run, Step(task, "x", "x")).parent.parent
    parts = sorted(path.name for path in folder.iterdir() if PART.fullmatch(path.name)) if folder.is_dir() else []
    found = {(part, cell): read_step(run, Step(task, part, cell), cells[cell]) for part in parts for cell in CELLS}
    return {key: data for key, data in found.items() if data is not None}


def read_step(run, step, environment):
    """StepData, or None without a marker. `environment`: the variables that make the step's cell."""
    marker = read_marker(step_dir(run, step))
    if marker is None or not isinstance(marker.get("attempt"), int):
        return None
    status, detail = read_status(run, step, marker, environment)
    if status != "ok":
        return StepData(status, detail)
    run_dir = attempt_dir(run, step, marker)
    text = (run_dir / "run.log").read_text(encoding="utf-8", errors="replace")
    log = parse_runlog(text)
    fault = find_session_fault(run_dir, log) or ("run.log is cut" if log.is_cut else "")
    if fault:
        return StepData("crashed", fault)
    cell = None if step.is_recording else read_cell(run_dir)
    throttled = any(is_throttled(marker.get(f"device_{when}")) for when in ("before", "after"))
    return StepData(status, detail, cell, find_replay_fault(run_dir, text, step.is_recording), list_rows(log), throttled)


def read_status(run, step, marker, environment):
    """(status, detail) from the files of the attempt; a marker that says otherwise, or another cell, is broken evidence."""
    run_dir, settings = attempt_dir(run, step, marker), marker.get("settings") or {}
    odd = [f"{name}={settings.get(name)}" for name, value in environment.items() if settings.get(name) != value]
    if odd:
        return "crashed", f"its marker says {odd[0]}: it is of another cell"
    if marker["status"] == "timeout":
        return "timeout", marker.get("detail", "")
    status, detail = describe_end(run_dir)
    if status == "ok" and not (run_dir / "run.log").is_file():
        return "crashed", "run.log is missing"
    if status != marker["status"]:
        return "crashed", f"its marker says {marker['status']}, its files say {status}"
    return status, detail


def list_rows(log):
    """{row: Figure}."""
    rows, seen = {}, Counter()
    for row in log.rows:
        name = f"{row.op_name} {row.dtype} {row.shape}"
        seen[name] += 1
        name = name if seen[name] == 1 else f"{name} #{seen[name]}"
        ms = row.latency_ms if row.status == "SUCCESS" else None
        rows[name] = Figure(ms if ms is not None and math.isfinite(ms) and ms > 0 else None, row.timer, row.cache, row.launch,
                            find_doubt(row.reason) or find_host_bound(row.reason))
    return rows


# Correctness -------------------------------------------------------------------------------------------------------


def read_correctness(run, task, patterns, cells):
    """{cell: "passed", "failed", or what is wrong}."""
    found, passed = {}, {}
    for cell in CELLS:
        found[cell], passed[cell] = read_tests(run, Step(task, "tests", cell), patterns.get(cell), cells[cell])
    for cell in CELLS[1:]:
        if found[cell] == found["off"] == "passed" and passed[cell] != passed["off"]:
            odd = min(passed[cell] ^ passed["off"])
            found[cell] = f"did not pass the same tests as off: {odd}"
    return found


def read_tests(run, step, pattern, environment):
    """(outcome, the nodes that passed) of a correctness step."""
    marker = read_marker(step_dir(run, step))
    if marker is None or not isinstance(marker.get("attempt"), int):
        return "not run", frozenset()
    status, detail = read_status(run, step, marker, environment)
    run_dir = attempt_dir(run, step, marker)
    passed = list_tests(run_dir / "tests.jsonl", ("passed",))
    if status == "failed" and list_tests(run_dir / "tests.jsonl", ("failed", "error")):
        return "failed", passed
    if status != "ok":
        return f"{status}: {detail}", passed
    if not passed:
        return "no test passed or failed: all were skipped", passed
    if pattern and not re.search(pattern, (run_dir / "run.log").read_text(encoding="utf-8", errors="replace")):
        return "run.log does not show that this cell's compiler was used", passed
    return "passed", passed


def list_tests(path, outcomes):
    """The nodes of tests.jsonl that ended so."""
    try:
        tests = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
        return frozenset(str(test["node"]) for test in tests if test["outcome"] in outcomes)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return frozenset()


# Facts at a floor --------------------------------------------------------------------------------------------------


def scope_facts(data, floor):
    """TaskFacts: the task's cells in round a, first replicate, at `floor`. Without a sound record off has nothing to replay."""
    record = data.record or StepData("missing", "")
    if record.status != "ok":
        why = f"record: {record.detail or record.status}"
        return TaskFacts(data.task, {"off": CellFacts(record.status, why)}, data.correctness)
    cells = {cell: scope_step(data.steps[("a1", cell)], floor, data.proof.get(cell))
             for cell in CELLS if ("a1", cell) in data.steps}
    if record.replay and "off" in cells:
        cells["off"] = replace(cells["off"], replay=f"record: {record.replay}")
    return TaskFacts(data.task, cells, data.correctness)


def scope_step(step, floor, pattern):
    if step.cell is None:
        return CellFacts(step.status, step.detail)
    scope = scope_cell(step.cell, floor)
    return CellFacts(step.status, step.detail, step.cell.errors, tuple(sorted((v.kernel, v.runs) for v in scope.included)),
                     scope.converts.static, scope.unscoped.static, len(scope.excluded), sha256_json(sorted(scope.code)),
                     sha256_json(sorted(scope.binaries)), frozenset(v.hash for v in step.cell.variants),
                     not pattern or all(re.search(pattern, v.switch) for v in step.cell.variants), step.replay)


# Times -------------------------------------------------------------------------------------------------------------


def read_times(data):
    """Times of a task. Its benchmark needs every row, in every cell of a process, timed in the same way."""
    if not data.has_times:
        return Times("none", "", {})
    parts = sorted({part for part, _ in data.steps})
    pairs, shifts = {}, {}
    for part in parts:
        problem = find_time_problem(data, part)
        if problem:
            return Times("invalid", f"{part}: {problem}", {})
        round_, replicate = PART.fullmatch(part).groups()
        pairs[round_, int(replicate)] = pair = {}
        for name in data.steps[part, "off"].rows:
            figures = [data.steps[part, cell].rows[name] for cell in CELLS]
            pair[name] = {cell: figure.ms for cell, figure in zip(CELLS, figures)}
            shift = find_gap_shift([figure.ms for figure in figures], [figure.launch for figure in figures])
            shifts[name] = max(shifts.get(name, 0.0), shift)
    expected = {(round_, number) for round_ in "ab" for number in range(1, data.replicates + 1)}
    return Times("ok" if expected <= pairs.keys() else "no-b", "", pairs, shifts)


def find_time_problem(data, part):
    """What makes the times of one round and replicate worthless, or "". A later one must have run and timed what a1 did."""
    steps = {cell: data.steps.get((part, cell)) for cell in CELLS}
    off = data.steps.get(("a1", "off")) or steps["off"]
    for cell, step in steps.items():
        if step is None or step.status != "ok":
            return f"{cell} is {'missing' if step is None else step.status}"
        if step.replay or step.cell.errors:
            return f"{cell}: {step.replay or step.cell.errors[0]}"
        if step.is_throttled:
            return f"{cell}: the device was throttled"
        first = data.steps.get(("a1", cell))
        if first and first.cell and identify(first, data.proof.get(cell)) != identify(step, data.proof.get(cell)):
            return f"{cell} ran other code than in a1, or ran it otherwise"
        if not step.rows or step.rows.keys() != off.rows.keys():
            return f"{cell} has no rows, or other rows than off in a1"
        for name, figure in step.rows.items():
            if figure.ms is None or figure.cache == "host":
                return f"{cell}: {name}: no time"
            if figure.doubt:
                return f"{cell}: {name}: {figure.doubt}"
            first = off.rows[name]
            if figure[1:3] != first[1:3]:
                return f"{cell}: {name}: timed by {figure.timer} {figure.cache}, off in a1 by {first.timer} {first.cache}"
    return ""


def identify(step, pattern):
    """What ran in a step, wherever it is run again: its code, how often each kernel was launched, and whose compiler it was."""
    facts = scope_step(step, 0, pattern)
    return facts.code, facts.kernels, facts.proven
