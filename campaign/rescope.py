#!/usr/bin/env python3
"""rescope.py - a sealed run judged at another floor, from the dumps alone. It can only demote.

USAGE    campaign/rescope.py RUN --floor N [--out DIR]     make rescope RUN=runs/NAME FLOOR=0
         campaign/rescope.py RUN --all-floors              at which floor each task changes its class; writes nothing
INPUT    A sealed run whose files are unchanged. Counts come from its dumps; correctness, times and noise stay as sealed.
OUTPUT   DIR (default beside it, RUN-floorN): matrix.csv, and receipt.json that names the parent's digest, the rule, the
         tools' digests and both headlines: over all planned tasks, and over those with launches above the floor.
         --all-floors:  rand   0: C   1..4: B   5..: X
RULES    X and F stay. A claim (G, R, C) stands, or falls to B where its reduction lies below the floor, or to X. A reduction
         that appears first under the new floor is X: it has no round b. The sealed floor gives the sealed matrix;
         that is tried each time.
EXIT     0 done; 2 usage: no receipt in RUN, DIR in a sealed run or there already; 4 RUN is not what was sealed, or these
         tools read it otherwise.
"""
import argparse
import sys
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from campaign import layout
from campaign.classify import CELLS, Verdict, demote
from campaign.evidence import read_run
from campaign.matrix import count_classes, judge_run, write_matrix
from campaign.prepare import digest_tools
from campaign.seal import MATRIX, RECEIPT, SUMS, list_excluded
from campaign.timing import Noise
from campaign.topology import list_floors
from campaign.verify import check_files
from common.errors import INTEGRITY, UserError, run_main
from common.state import claim_directory, read_json, sha256_file, utc_now, write_text_atomic

RULE = "demote-only: claims stand, fall to B or to X; X and F stay; a new reduction is X (no-round-b)"


def read_sealed(run):
    """(Frozen, receipt) of a sealed run. UserError: USAGE for a directory without a receipt, INTEGRITY for changed files."""
    receipt = read_json(run / RECEIPT)
    if not isinstance(receipt, dict) or receipt.get("kind") != "sealed" or not (run / SUMS).is_file():
        raise UserError(f"RUN: {run}: has no receipt of a sealed run; name a sealed run")
    if receipt["schema"] != layout.SCHEMA:
        raise UserError(f"RUN: {run}: its receipt is of schema {receipt['schema']}, this tool reads {layout.SCHEMA}; "
                        f"use the tools of its commit, {receipt.get('project_commit')}")
    problems = check_files(run)
    if problems:
        raise UserError(f"RUN: {run}: is not what was sealed: {problems[0]} ({len(problems)} problems); see make verify",
                        INTEGRITY)
    return layout.read_frozen(run / layout.FROZEN), receipt


def read_noise(receipt):
    """The sealed Noise, or None where no times were taken. UserError INTEGRITY for one of another form."""
    noise, fields = receipt["noise"], Noise.__dataclass_fields__.keys()
    if noise and noise.keys() != fields:
        odd = ", ".join(sorted(noise.keys() ^ fields))
        raise UserError(f"RUN: its receipt's noise has other figures than this tool's ({odd}); use the "
                        f"tools of its commit, {receipt.get('project_commit')}", INTEGRITY)
    return Noise(**noise) if noise else None


def refuse_other_counts(run, frozen, receipt, tasks):
    """UserError INTEGRITY if the sealed floor does not give the sealed matrix: then no other floor's would be comparable."""
    judgement = judge_run(run, frozen, receipt["measured_launch_floor"], read_noise(receipt), tasks)
    if write_matrix(judgement, frozen) != (run / MATRIX).read_text(encoding="utf-8"):
        raise UserError(f"RUN: {run}: its own floor gives another matrix than the sealed one, by the tools of this checkout; "
                        f"use those of its commit, {receipt.get('project_commit')}, or see make verify", INTEGRITY)


def judge_floor(run, frozen, receipt, tasks, floor):
    """Judgement at another floor, demoted against the sealed verdicts."""
    fresh = judge_run(run, frozen, floor, read_noise(receipt), tasks)
    sealed = {task: Verdict(task, each["class"], each["reason"], each["detail"]) for task, each in receipt["verdicts"].items()}
    verdicts = {task: demote(sealed[task], verdict) for task, verdict in fresh.verdicts.items()}
    return replace(fresh, verdicts=verdicts)


# One floor ---------------------------------------------------------------------------------------------------------


def write_derived(run, out, frozen, receipt, judgement):
    """matrix.csv and receipt.json in `out`, which is made."""
    if layout.is_sealed(out):
        raise UserError(f"--out: {out}: lies in a sealed run; name a place outside")
    if out.exists():
        raise UserError(f"--out: {out}: is there already; name another place")
    out = claim_directory(out)
    write_text_atomic(out / MATRIX, write_matrix(judgement, frozen))
    write_text_atomic(out / RECEIPT, layout.write_json_text(make_receipt(run, receipt, judgement)))
    return out


def make_receipt(run, receipt, judgement):
    verdicts, facts = judgement.verdicts, judgement.facts
    scoped = [verdicts[task] for task in verdicts if all(facts[task].cell(cell).kernels for cell in CELLS)]
    changed = {task: f"{receipt['verdicts'][task]['class']} -> {verdicts[task].klass}" for task in verdicts
               if receipt["verdicts"][task]["class"] != verdicts[task].klass}
    return {"schema": layout.SCHEMA, "kind": "derived", "name": receipt["name"], "made": utc_now(), "rule": RULE,
            "parent": run.name, "parent_sha256sums": sha256_file(run / SUMS), "parent_receipt_sha256": sha256_file(run / RECEIPT),
            "tools": digest_tools(),
            "sealed_floor": receipt["measured_launch_floor"], "measured_launch_floor": judgement.floor,
            "headline_all_planned": count_classes(verdicts.values()), "headline_scoped": count_classes(scoped),
            "headline_sealed": receipt["headline"], "changed": changed,
            "verdicts": {task: {"class": v.klass, "reason": v.reason, "detail": v.detail,
                                "excluded": list_excluded(judgement, task)} for task, v in verdicts.items()}}


# All floors --------------------------------------------------------------------------------------------------------


def describe_floors(run, frozen, receipt, tasks):
    """A line per task: its class by floor, ranges of equal class together."""
    cells = [step.cell for data in tasks.values() for step in data.steps.values() if step.cell]
    floors = sorted({floor for cell in cells for floor in list_floors(cell)})
    judged = {floor: judge_floor(run, frozen, receipt, tasks, floor).verdicts for floor in floors}
    for task in tasks:
        classes = [judged[floor][task].klass for floor in floors]
        starts = [place for place, klass in enumerate(classes) if place == 0 or klass != classes[place - 1]]
        lasts = [floors[place] - 1 for place in starts[1:]] + [""]
        ranges = [(floors[start], last, classes[start]) for start, last in zip(starts, lasts)]
        yield f"{task:<20} " + "   ".join(f"{first}: {klass}" if first == last else f"{first}..{last}: {klass}"
                                          for first, last, klass in ranges)


def main(argv):
    parser = argparse.ArgumentParser(prog="rescope.py", description="judge a sealed run at another floor")
    parser.add_argument("run", type=Path)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--floor", type=int)
    what.add_argument("--all-floors", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    if options.floor is not None and options.floor < 0:
        raise UserError(f"FLOOR: {options.floor}: is negative; give 0 or more")
    run = options.run.resolve()
    frozen, receipt = read_sealed(run)
    tasks = read_run(run, frozen)
    refuse_other_counts(run, frozen, receipt, tasks)
    if options.all_floors:
        print("\n".join(describe_floors(run, frozen, receipt, tasks)))
        return
    judgement = judge_floor(run, frozen, receipt, tasks, options.floor)
    place = (options.out or run.with_name(f"{run.name}-floor{options.floor}")).absolute()
    out = write_derived(run, place, frozen, receipt, judgement)
    derived = read_json(out / RECEIPT)
    print(f"{out}\nfloor {options.floor}, sealed at {derived['sealed_floor']}; changed: "
          + (", ".join(f"{task} {change}" for task, change in derived["changed"].items()) or "none"))
    for name in ("headline_all_planned", "headline_scoped"):
        print(f"{name}: " + " ".join(f"{klass}={number}" for klass, number in derived[name].items()))


if __name__ == "__main__":
    run_main(main)
