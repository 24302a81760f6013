"""matrix.py - a run judged at a floor, and its two tables: matrix.csv (a row per task) and rows.csv (a row per time).

    judgement = judge_run(run, frozen, floor)                     the noise measured from the run itself
    judgement = judge_run(run, frozen, floor, noise, tasks)       rescope: the sealed noise, what is read already
    write_matrix(judgement, frozen), write_rows(judgement)        CSV texts; the same run gives the same bytes

Requirements: those of evidence.py and timing.py.
"""
import csv
import io
from dataclasses import dataclass

from campaign.classify import CELLS, CLASSES, Timing, classify_task, find_broken_evidence
from campaign.evidence import read_run, read_times, scope_facts
from campaign.timing import Rules, adjust_rows, judge_rows, judge_task, measure_noise

SCHEMA = "1"
COLUMNS = ("schema", "task", "class", "reason", "op", "dtypes", "canary", "converts_off", "converts_mask0", "converts_candidate",
           "unscoped_off", "unscoped_candidate", "excluded_files", "ratio_a", "ratio_b", "ci_low", "ci_high", "mde",
           "correctness_off", "correctness_mask0", "correctness_candidate")
ROW_COLUMNS = ("schema", "task", "row", "round", "replicate", *(f"{cell}_ms" for cell in CELLS))
ROW_FIGURES = ("ratio", "low", "high", "mde", "placebo", "p_value", "adjusted")


@dataclass(frozen=True)
class Judgement:
    """A run at one floor. `rows`: {task: [RowTiming]}; `planned`: rows that were to be timed; `noise` None: no times."""
    floor: int
    verdicts: dict
    facts: dict
    timings: dict
    times: dict
    rows: dict
    noise: object
    planned: int


def judge_run(run, frozen, floor, noise=None, tasks=None):
    """Judgement of a run at a floor."""
    tasks = tasks or read_run(run, frozen)
    facts = {task: scope_facts(data, floor) for task, data in tasks.items()}
    times = {task: read_times(data) for task, data in tasks.items()}
    thresholds = frozen.manifest.thresholds
    rules = Rules(thresholds.band, thresholds.level, thresholds.min_noise)
    sound = {task for task in tasks if not find_broken_evidence(facts[task])}
    if frozen.manifest.has_times and noise is None:
        noise = measure_noise({task: times[task].pairs for task in sound if times[task].pairs}, find_identical(facts, sound),
                              rules, {task: times[task].shifts for task in sound})
    planned = sum(len(data.steps[("a1", "off")].rows) for data in tasks.values() if ("a1", "off") in data.steps)
    rows, timings = judge_times(times, noise, rules, planned)
    usable = noise is not None and noise.is_usable
    verdicts = {task: classify_task(facts[task], timings[task], usable) for task in tasks}
    return Judgement(floor, verdicts, facts, timings, times, rows, noise, planned)


def find_identical(facts, sound):
    """The tasks whose machine code is the same in off and candidate."""
    return {task for task in sound if facts[task].cell("off").binaries == facts[task].cell("candidate").binaries}


def judge_times(times, noise, rules, planned):
    """({task: [RowTiming]}, {task: Timing}): tasks with both rounds are tested together; the others keep what they lack."""
    timings = {task: Timing(found.state, found.detail) for task, found in times.items()}
    if noise is None:
        return {}, timings
    judged = {task: [row for row, _ in judge_rows(found.pairs, noise, rules, found.shifts)]
              for task, found in times.items() if found.pairs}
    complete = {task: rows for task, rows in judged.items() if times[task].state == "ok"}
    judged |= adjust_rows(complete, planned)
    for task in complete:
        timings[task] = judge_task(times[task].pairs, judged[task], noise, rules, times[task].shifts)
    return judged, timings


# Tables ------------------------------------------------------------------------------------------------------------


def write_matrix(judgement, frozen):
    """Text of matrix.csv."""
    rows = [list_columns(task, judgement, frozen.tasks[task]) for task in judgement.verdicts]
    return write_csv(COLUMNS, rows)


def list_columns(task, judgement, target):
    verdict, facts, timing = judgement.verdicts[task], judgement.facts[task], judgement.timings[task]
    off, mask0, candidate = (facts.cell(cell) for cell in CELLS)
    counts = [cell.converts if cell.status == "ok" else "" for cell in (off, mask0, candidate)]
    unscoped = [cell.unscoped if cell.status == "ok" else "" for cell in (off, candidate)]
    ratios = [show(value) for value in (timing.ratio_a, timing.ratio_b, timing.low, timing.high, timing.mde)]
    return [SCHEMA, task, verdict.klass, verdict.reason, target["op"], ";".join(target["dtypes"]), target["canary"], *counts,
            *unscoped, off.excluded, *ratios, *(facts.correctness.get(cell, "not run") for cell in CELLS)]


def write_rows(judgement):
    """Text of rows.csv: every time that was taken, and per row of a task what it was judged by."""
    header = (*ROW_COLUMNS, *ROW_FIGURES)
    rows = []
    for task, found in judgement.times.items():
        figures = {row.row: row for row in judgement.rows.get(task, ())}
        for (round_, replicate), names in sorted(found.pairs.items()):
            for name, cells in names.items():
                rows.append([SCHEMA, task, name, round_, replicate, *(cells[cell] for cell in CELLS),
                             *(show(getattr(figures[name], figure)) for figure in ROW_FIGURES)])
    return write_csv(header, rows)


def write_csv(header, rows):
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows([header, *rows])
    return stream.getvalue()


def show(value):
    return "" if value is None else f"{value:.6g}"


def count_classes(verdicts):
    """{"G": 1, "R": 0, ...}: all six, in their order."""
    return {klass: sum(v.klass == klass for v in verdicts) for klass in CLASSES}
