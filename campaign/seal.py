#!/usr/bin/env python3
"""seal.py - end a campaign: judge it, write the receipt, digest every file, take the write permission away.

USAGE    campaign/seal.py RUN          run.py does it by itself; by hand only after a kill between the last step and the seal
OUTPUT   in RUN: matrix.csv, rows.csv, report.md, receipt.json
           FILES         every file of the run, one path a line, itself and SHA256SUMS included
           SHA256SUMS    `cd RUN && sha256sum -c SHA256SUMS` verifies all of it but itself
         The digest of SHA256SUMS is printed: keep it elsewhere, verify.py takes it with --expect. It is what stands against
         someone who changes a file and its digest.
EXIT     0 sealed, 2 usage, 3 a process still writes into the run, 4 it is sealed already or holds a link.
"""
import argparse
import os
import shutil
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from campaign import layout
from campaign.matrix import count_classes, judge_run, write_matrix, write_rows
from campaign.prepare import digest_tools
from campaign.report import make_report
from common.errors import INTEGRITY, REFUSED, UserError, run_main
from common.state import read_json, sha256_file, sha256_text, sync_directory, utc_now, write_text_atomic

FILES, SUMS, RECEIPT, MATRIX, ROWS, REPORT = "FILES", layout.SEALED, "receipt.json", "matrix.csv", "rows.csv", "report.md"
# What a receipt has from campaign.json, word for word.
COPIED = ("run_id", "frozen", "started", "devices", "host", "kernel", "source", "project_commit", "versions", "switches")


def seal_run(run, frozen, devices_end):
    """Seal a run whose steps are done. Returns (Judgement, digest of SHA256SUMS)."""
    run = Path(run)
    if (run / SUMS).exists():
        raise UserError(f"{run}: is sealed already", INTEGRITY)
    if digest_tools() != frozen.tools:
        raise UserError(f"{run}: the tools changed while the campaign ran; restore those that were frozen (frozen/tools.json), "
                        f"then: campaign/run.py --run {run}", INTEGRITY)
    clear_leftovers(run)
    judgement = judge_run(run, frozen, frozen.manifest.measured_launch_floor)
    for name, text in make_texts(judgement, frozen).items():
        write_text_atomic(run / name, text)
    write_text_atomic(run / RECEIPT, layout.write_json_text(make_receipt(run, frozen, judgement, devices_end)))
    refuse_writers(run)
    text, pending = make_sums(run), run / f"{SUMS}.tmp"
    write_text_atomic(pending, text)
    take_write_permission(run)
    refuse_writers(run)
    os.replace(pending, run / SUMS)  # last, and read-only already: with it the run is sealed
    sync_directory(run)
    run.chmod(run.stat().st_mode & ~0o222)
    return judgement, sha256_text(text)


def make_texts(judgement, frozen):
    """{name: text} of what is derived from the evidence alone; verify.py makes them again."""
    return {MATRIX: write_matrix(judgement, frozen), ROWS: write_rows(judgement), REPORT: make_report(judgement, frozen)}


def make_receipt(run, frozen, judgement, devices_end):
    """receipt.json: what was run, by what, on what, when, and what came out."""
    campaign = read_json(run / layout.CAMPAIGN)
    facts = {key: campaign[key] for key in COPIED}
    return {"schema": layout.SCHEMA, "kind": "sealed", "name": frozen.manifest.name, **facts, "finished": utc_now(),
            "devices_end": devices_end, "manifest_sha256": sha256_file(run / "frozen" / "manifest.yaml"),
            "task_matrix_sha256": sha256_file(run / "frozen" / "tasks.json"), "tools": frozen.tools,
            "production_default_policy": frozen.manifest.production_default_policy, **describe_judgement(judgement)}


def describe_judgement(judgement):
    """The part of a receipt that follows from the evidence."""
    return {"measured_launch_floor": judgement.floor, "headline": count_classes(judgement.verdicts.values()),
            "planned_rows": judgement.planned, "noise": vars(judgement.noise) if judgement.noise else None,
            "verdicts": {task: {"class": v.klass, "reason": v.reason, "detail": v.detail,
                                "excluded": list_excluded(judgement, task)} for task, v in judgement.verdicts.items()}}


def list_excluded(judgement, task):
    """{cell: {"unscoped": converts, "excluded_files": number}}: what the floor left out."""
    cells = judgement.facts[task].cells
    return {name: {"unscoped": cell.unscoped, "excluded_files": cell.excluded} for name, cell in sorted(cells.items())}


# Files -------------------------------------------------------------------------------------------------------------


def clear_leftovers(run):
    """What killed processes left: caches of attempts, warm parents' folders, half-written files, an earlier seal that did not
    end; and empty directories, which no list of files could name."""
    for folder in (run / ".warm", *run.glob(f"{layout.TASKS}/*/*/*/attempts/*/cache")):
        shutil.rmtree(folder, ignore_errors=True)
    for path in list(run.rglob("*.tmp")) + list(run.rglob("__pycache__")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (run / FILES).unlink(missing_ok=True)
    for folder, _, _ in os.walk(run, topdown=False):
        if not os.listdir(folder):
            os.rmdir(folder)


def make_sums(run):
    """Text of SHA256SUMS; writes FILES. UserError INTEGRITY for a link or something that is no plain file."""
    names = sorted({*list_files(run), FILES, SUMS})
    write_text_atomic(run / FILES, "".join(f"{name}\n" for name in names))
    return "".join(f"{sha256_file(run / name)}  {name}\n" for name in names if name != SUMS)


def list_files(run):
    """Paths of all files below `run`, sorted. UserError INTEGRITY for anything that is neither file nor directory."""
    found = []
    for folder, folders, files in os.walk(run):
        for name in (*folders, *files):
            path = Path(folder, name)
            if path.is_symlink() or not (path.is_file() or path.is_dir()) or "\n" in name:
                raise UserError(f"{path}: is no plain file; a run holds nothing else", INTEGRITY)
        found += [Path(folder, name).relative_to(run).as_posix() for name in files]
    return sorted(found)


def refuse_writers(run):
    """UserError REFUSED if a process has a file of the run open for writing: what is sealed must be at rest."""
    root = f"{Path(run).resolve()}/"
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = os.readlink(link)
            if target.startswith(root) and int(read_flags(link), 8) & os.O_ACCMODE != os.O_RDONLY:
                raise UserError(f"{target}: process {link.parts[2]} still writes it; end it, then: campaign/run.py --run {run}",
                                REFUSED)
        except (OSError, ValueError):
            continue  # gone meanwhile, or another user's


def read_flags(link):
    text = (link.parent.parent / "fdinfo" / link.name).read_text()
    return next(line.split()[1] for line in text.splitlines() if line.startswith("flags:"))


def take_write_permission(run):
    """chmod a-w on every file and directory below `run`."""
    for folder, folders, files in os.walk(run, topdown=False):
        for name in (*folders, *files):
            path = Path(folder, name)
            path.chmod(path.stat().st_mode & ~0o222)


def main(argv):
    parser = argparse.ArgumentParser(prog="seal.py", description="seal a campaign whose steps are all done")
    parser.add_argument("run", type=Path)
    run = parser.parse_args(argv).run
    frozen = layout.read_frozen(run / layout.FROZEN)
    judgement, digest = seal_run(run, frozen, {})
    print(f"sealed: {run}\nSHA256SUMS {digest}\n{count_classes(judgement.verdicts.values())}")


if __name__ == "__main__":
    run_main(main)
