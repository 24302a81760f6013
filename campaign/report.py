#!/usr/bin/env python3
"""report.py - a campaign for people: how far it is, why a task has its class, and the text that is sealed with it.

USAGE    campaign/report.py status [RUN]            make campaign-status [RUN=]     works while it runs, and afterwards
         campaign/report.py explain [RUN] --task T  make campaign-explain TASK=T    the evidence of one verdict, and the command
                                                                                that runs one of its cells again
         RUN defaults to runs/latest-campaign, or the newest run that is not sealed.
OUTPUT   status:   rand        tests ok/ok/ok  a1 ok/ok/ok  b1 ok/ok/-      (off/mask0/candidate)
         make_report(judgement, frozen, ...) gives report.md; verify.py makes it again and compares.
EXIT     0 done, 2 usage.
"""
import argparse
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from campaign import layout
from campaign.classify import CELLS, CLASSES, REASONS
from campaign.matrix import count_classes, judge_run
from common.errors import UserError, run_main
from common.state import read_json, read_marker
from common.switches import join_switches
from common.trees import ROOT

DISCLAIMER = ("A passing campaign is no argument for changing the production default (production_default_policy: "
              "unchanged-off): it covers these workloads, shapes and this one device.")


# report.md ---------------------------------------------------------------------------------------------------------


def make_report(judgement, frozen):
    """Text of report.md; the same judgement gives the same bytes."""
    verdicts = judgement.verdicts.values()
    lines = [f"# Campaign {frozen.manifest.name}", "", f"{frozen.manifest.purpose.strip()}", "", DISCLAIMER, "",
             f"Floor {judgement.floor}; {len(judgement.verdicts)} tasks, {judgement.planned} timed rows planned.", "",
             "| class | tasks |", "|---|---|",
             *(f"| {klass} {CLASSES[klass]} | {number} |" for klass, number in count_classes(verdicts).items()), "",
             *describe_noise(judgement.noise), "",
             "| task | class | reason | converts | ratio a | ratio b | interval | MDE |", "|---|---|---|---|---|---|---|---|"]
    lines += [describe_row(task, judgement) for task in judgement.verdicts]
    used = sorted({verdict.reason for verdict in verdicts})
    lines += ["", *(f"- `{reason}`: {REASONS[reason][1]}." for reason in used)]
    return "\n".join(lines) + "\n"


def describe_row(task, judgement):
    verdict, facts, timing = judgement.verdicts[task], judgement.facts[task], judgement.timings[task]
    figures = [format_figure(timing.ratio_a), format_figure(timing.ratio_b),
               f"{format_figure(timing.low)} to {format_figure(timing.high)}" if timing.low else "", format_figure(timing.mde)]
    converts = f"{facts.cell('off').converts} -> {facts.cell('candidate').converts}"
    return f"| {task} | {verdict.klass} | {verdict.reason} | {converts} | " + " | ".join(figures) + " |"


def describe_noise(noise):
    if noise is None:
        return ["No times were taken."]
    rate = "none" if noise.alarm_rate is None else f"{noise.alarm_rate:.1%} ({noise.alarms} of {noise.null_rows} null rows)"
    return [f"Noise: {noise.row_sigma:.2%} per row, {noise.task_sigma:.2%} per task, from {noise.placebo_rows} placebo ratios "
            f"(bias {noise.placebo_bias:+.2%}). False alarms on rows of identical binaries: {rate}."
            + ("" if noise.is_usable else " **Unusable: no verdict rests on time.**")]


def format_figure(value):
    return "" if value is None else f"{value:.4f}"


# status ------------------------------------------------------------------------------------------------------------


def describe_status(run, frozen):
    """A line per task: how each of its steps ended; `-` for one that has not."""
    sealed = " sealed" if layout.is_sealed(run) else ""
    yield f"{run}: {frozen.manifest.name}{sealed}"
    yield from describe_switches(run)
    for workload in frozen.manifest.workloads:
        folder = run / layout.TASKS / workload.task
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        parts = sorted(names, key=lambda name: (name != layout.TESTS, name != layout.RECORD, name))
        yield f"{workload.task:<20} " + ("  ".join(f"{part} {describe_part(folder / part)}" for part in parts) or "waiting")


def describe_switches(run):
    """A line with what the caller's environment changes in all cells alike, or none. Of older runs it is not known."""
    switches = layout.read_switches(run)
    return [f"all cells: {join_switches(switches)} (set by the caller)"] if switches else []


def describe_part(folder):
    """How its cells ended, with slashes between; only off records."""
    cells = ("off",) if folder.name == layout.RECORD else CELLS
    return "/".join((read_marker(folder / cell) or {"status": "-"})["status"] for cell in cells)


# explain -----------------------------------------------------------------------------------------------------------


def explain_task(run, frozen, task, floor):
    """The evidence of one verdict, as lines."""
    judgement = judge_run(run, frozen, floor)
    verdict, facts, target = judgement.verdicts[task], judgement.facts[task], frozen.tasks[task]
    yield f"{task}: {verdict.klass} ({CLASSES[verdict.klass]}), {verdict.reason}: {REASONS[verdict.reason][1]}"
    yield f"  {verdict.detail}" if verdict.detail else "  no further figures"
    yield f"  op {target['op']}, dtypes {','.join(target['dtypes'])}, benchmark {' '.join(target['benchmark'])}"
    yield f"  tests {' '.join(target['tests'])}" + (f" -k {target['k']}" if target["k"] else "")
    if target["narrowing"] or target["inventory_override"]:
        yield f"  narrowing: {target['narrowing'] or '-'}; inventory override: {target['inventory_override'] or '-'}"
    for cell in CELLS:
        found = facts.cell(cell)
        yield (f"  {cell:<9} {found.status}, {found.converts} converts above floor {floor} ({found.unscoped} in all), "
               f"{len(found.kernels)} variants, {found.excluded} excluded, proof {'yes' if found.proven else 'no'}, "
               f"correctness {facts.correctness.get(cell, 'not run')}")
    for row in judgement.rows.get(task, ()):
        corrected = "-" if row.adjusted is None else f"{row.adjusted:.3g}"
        yield (f"  row {row.row}: ratio {row.ratio:.4f} ({row.low:.4f} to {row.high:.4f}), placebo {row.placebo:.4f}, "
               f"launch gap {row.shift:.4f}, MDE {row.mde:.4f}, p {row.p_value:.3g}, corrected {corrected}")
    yield from describe_noise(judgement.noise)
    for part, cell in (("a1", "candidate"), (layout.TESTS, "candidate")):
        command = layout.step_dir(run, layout.Step(task, part, cell)) / "command.txt"
        if command.is_file():
            yield f"{part}/{cell} again, from {ROOT}:"
            yield command.read_text(encoding="utf-8").rstrip()


def find_run(named):
    """The run that is meant: the one named, else the newest."""
    if named:
        run = Path(named)
    else:
        found = sorted((ROOT / "runs").glob(f"*/{layout.CAMPAIGN}"), key=lambda path: path.stat().st_mtime)
        run = found[-1].parent if found else ROOT / "runs" / "latest-campaign"
    if not read_json(run / layout.CAMPAIGN):
        raise UserError(f"RUN: {run}: is no campaign (no {layout.CAMPAIGN} in it); name one: RUN=runs/NAME")
    return run.resolve()


def main(argv):
    parser = argparse.ArgumentParser(prog="report.py", description="a campaign for people")
    parser.add_argument("what", choices=("status", "explain"))
    parser.add_argument("run", nargs="?", default=os.environ.get("RUN"))
    parser.add_argument("--task", default=os.environ.get("TASK"))
    parser.add_argument("--floor", type=int)
    options = parser.parse_args(argv)
    run = find_run(options.run)
    frozen = layout.read_frozen(run / layout.FROZEN)
    if options.what == "status":
        print("\n".join(describe_status(run, frozen)))
        return
    if options.task not in frozen.tasks:
        raise UserError(f"TASK: {options.task}: is no task of {run}; there are: {', '.join(frozen.tasks)}")
    floor = frozen.manifest.measured_launch_floor if options.floor is None else options.floor
    print("\n".join(explain_task(run, frozen, options.task, floor)))


if __name__ == "__main__":
    run_main(main)
