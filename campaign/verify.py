#!/usr/bin/env python3
"""verify.py - check a sealed run: every file against its digest, and every verdict against the evidence.

USAGE    campaign/verify.py RUN [--expect SHA256]      make verify RUN=runs/NAME
INPUT    A sealed run. --expect: the digest of SHA256SUMS that was printed when it was sealed, kept elsewhere.
OUTPUT   a line per problem, `changed tasks/rand/a1/off/attempts/1/run.log` and the like, then the verdict:
           changed, added, missing   a file against SHA256SUMS and FILES           link, writable   what a seal does not leave
           receipt, matrix.csv, rows.csv, report.md   say other than what the dumps, logs and tests say when read again
EXIT     0 all of it holds, 2 usage, 4 a problem.
LIMITS   `sha256sum -c SHA256SUMS` in RUN checks the digests without this tool. Who can write RUN can make another run of it
         that holds in itself: only --expect stands against that.
"""
import argparse
import json
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from campaign import layout, prepare
from campaign.matrix import judge_run
from campaign.seal import COPIED, FILES, MATRIX, RECEIPT, REPORT, ROWS, SUMS, describe_judgement, make_texts
from common.errors import INTEGRITY, UserError, run_main
from common.state import read_json, sha256_file

DIGEST_LENGTH = 64
ESSENTIAL = (FILES, RECEIPT, MATRIX, ROWS, REPORT, layout.CAMPAIGN, *(f"{layout.FROZEN}/{name}" for name in (
    layout.MANIFEST, layout.TASK_MATRIX, layout.TOOLS, ".complete")))


def verify_run(run, expected=None):
    """[problem, ...]: nothing is wrong with the sealed run if it is empty."""
    problems = check_files(run, expected)
    if problems:
        return problems  # what the evidence says is of no interest once it is not what was sealed
    return check_content(run)


# Files -------------------------------------------------------------------------------------------------------------


def check_files(run, expected=None):
    """Problems with the files of a run: their digests, their list, links, write permission."""
    run = Path(run)
    try:
        lines = (run / SUMS).read_bytes().decode("utf-8").split("\n")  # bytes: sha256sum takes \r for a part of the name
        sums = dict(parse_sum(line) for line in lines[:-1])
        if lines[-1] or len(sums) != len(lines) - 1:
            raise ValueError("is cut, or names a file twice")
    except (OSError, ValueError) as error:
        return [f"{SUMS}: cannot be read ({error})"]
    digest = sha256_file(run / SUMS)
    problems = [f"changed {SUMS}: its digest is {digest}"] if expected not in (None, digest) else []
    found, odd = walk_run(run)
    problems += odd
    problems += [f"missing {name}" for name in sorted({*sums, *ESSENTIAL} - found)]
    problems += [f"added {name}" for name in sorted(found - sums.keys() - {SUMS})]
    problems += [f"changed {name}" for name in sorted(found & sums.keys()) if sha256_file(run / name) != sums[name]]
    if FILES in found and set((run / FILES).read_text(encoding="utf-8").splitlines()) != {*sums, SUMS}:
        problems.append(f"changed {FILES}: it lists other files than {SUMS}")
    return problems


def parse_sum(line):
    digest, gap, name = line[:DIGEST_LENGTH], line[DIGEST_LENGTH:DIGEST_LENGTH + 2], line[DIGEST_LENGTH + 2:]
    if gap != "  " or not name or "\r" in name or name.startswith("/") or ".." in Path(name).parts:
        raise ValueError(f"no line of sha256sum: {line[:80]!r}")
    return name, digest


def walk_run(run):
    """(names of plain files, problems with all else)."""
    found, problems = set(), []
    for folder, folders, files in os.walk(run):
        for name in (*folders, *files):
            path = Path(folder, name)
            relative = path.relative_to(run).as_posix()
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                problems.append(f"link {relative}: is no plain file")
                continue
            if path.stat().st_mode & 0o222:
                problems.append(f"writable {relative}")
            if name in files:
                found.add(relative)
            elif not any(path.iterdir()):
                problems.append(f"added {relative}: is an empty directory")
    return found, problems


# Content -----------------------------------------------------------------------------------------------------------


def check_content(run):
    """Problems with what the sealed tables and the receipt say, against the evidence read again."""
    run, receipt = Path(run), read_json(Path(run) / RECEIPT)
    if not isinstance(receipt, dict) or (receipt.get("kind"), receipt.get("schema")) != ("sealed", layout.SCHEMA):
        return [f"{RECEIPT}: is no receipt of a sealed run of schema {layout.SCHEMA}"]
    problems = [f"frozen/{change}" for change in prepare.find_changed(run / layout.FROZEN)]
    frozen = layout.read_frozen(run / layout.FROZEN)
    judgement = judge_run(run, frozen, frozen.manifest.measured_launch_floor)
    for name, text in make_texts(judgement, frozen).items():
        sealed = (run / name).read_text(encoding="utf-8")
        if sealed != text:
            problems.append(f"{name}: says other than the evidence: {find_difference(sealed, text)}")
    for key, value in list_expected(run, frozen, judgement).items():
        if receipt.get(key) != value:
            problems.append(f"{RECEIPT}: {key}: says {str(receipt.get(key))[:100]}, the evidence {str(value)[:100]}")
    if problems and prepare.digest_tools() != frozen.tools:
        problems.append("note: this checkout's tools are not those that were frozen with the run; try again with theirs")
    return problems


def list_expected(run, frozen, judgement):
    """{key: value} of a receipt that follow from other files of the run."""
    campaign = read_json(run / layout.CAMPAIGN) or {}
    copied = {key: campaign.get(key) for key in COPIED}
    known = {"name": frozen.manifest.name, "manifest_sha256": sha256_file(run / "frozen" / "manifest.yaml"),
             "task_matrix_sha256": sha256_file(run / "frozen" / "tasks.json"), "tools": frozen.tools,
             "production_default_policy": frozen.manifest.production_default_policy}
    return {**copied, **known, **json.loads(json.dumps(describe_judgement(judgement)))}


def find_difference(sealed, made):
    """The first line that differs."""
    pairs = zip([*sealed.splitlines(), "(end)"], [*made.splitlines(), "(end)"])
    return next((f"{one!r} is sealed, {other!r} is right" for one, other in pairs if one != other), "line ends")


def main(argv):
    parser = argparse.ArgumentParser(prog="verify.py", description="check a sealed run")
    parser.add_argument("run", type=Path)
    parser.add_argument("--expect", help="digest of SHA256SUMS, as printed when it was sealed")
    options = parser.parse_args(argv)
    if not (options.run / SUMS).is_file():
        raise UserError(f"RUN: {options.run}: is not sealed (no {SUMS}); name a sealed run")
    problems = verify_run(options.run, options.expect)
    if problems:
        print("\n".join(problems))
        print(f"{options.run}: {len(problems)} problems")
        return INTEGRITY
    print(f"{options.run}: verified; SHA256SUMS {sha256_file(options.run / SUMS)}")
    return 0


if __name__ == "__main__":
    run_main(main)
