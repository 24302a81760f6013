#!/usr/bin/env python3
"""recheck_dismissed.py - run the dismissed operators and list those that pass now: their entries are stale.

USAGE    make recheck-dismissed [RUN=DIR]
         ops/recheck_dismissed.py [--run DIR] [--all]
           --run  directory to make; default runs/recheck-<UTC stamp>
           --all  also entries of another vendor, architecture or version than this machine's
         The knobs of run_batch.py (DEVICES, TIMEOUT, LEVEL, FLAGGEMS_DIR, ...) go to it from the environment.
INPUT    ops/dismiss.csv (common/dismissals.py), the inventories; OPS_DIR for another place.
OUTPUT   RUN/all/ and RUN/<dtypes>/: screens of run_batch.py with nothing but the dismissed operators, and RUN/recheck.csv:
           schema,repo,op,scope,verdict,status,reason
           1,main,linalg_lu,vendor=nvidia;arch=9.0,stale,ok,
         verdict: stale (passes now: remove the entry), holds, other machine (not run), no such operator (not run),
                  not run (the screen did not reach it)
         On stdout one line per entry, the stale ones last.
EXIT     0 no entry is stale, 1 at least one is, or could not be run; 2 usage; 3 the environment was refused; 130.
NEEDS    What run_batch.py needs. LIMITS an operator that has become flaky can pass once: look at the log before removing.
"""

import argparse
import csv
import io
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common import dismissals, inputs, inventory  # noqa: E402
from common.errors import BAD_RESULT, DONE, INTERRUPTED, REFUSED, USAGE, UserError, run_main  # noqa: E402
from common.state import read_marker, utc_stamp, write_text_atomic  # noqa: E402
from common.trees import find_trees  # noqa: E402

COLUMNS = ("schema", "repo", "op", "scope", "verdict", "status", "reason")
BLANK_DISMISS = ",".join(dismissals.COLUMNS) + "\n"


def find_python(environ):
    """The Python of the children, as run_batch.py chooses it."""
    own = ROOT / ".venv" / "bin" / "python"
    return environ.get("PYTHON") or (str(own) if own.exists() else sys.executable)


def sort_entries(entries, known, facts):
    """(entries to run, {entry: verdict} of the others). `facts` None: of every machine."""
    chosen, verdicts = [], {}
    for entry in entries:
        if entry.key not in known:
            verdicts[entry] = "no such operator"
        elif facts is not None and not dismissals.applies(entry, {**facts, "dtypes": entry.dtypes}):
            verdicts[entry] = "other machine"
        else:
            chosen.append(entry)
    return chosen, verdicts


def group_by_dtypes(entries):
    """{folder name: entries}: those limited to dtypes are run with these alone."""
    groups = {}
    for entry in entries:
        groups.setdefault("-".join(entry.dtypes) or "all", []).append(entry)
    return groups


def write_ops_folder(folder, source, trees, entries):
    """An ops directory whose inventories hold only the operators of `entries`, and whose dismiss list is empty."""
    folder.mkdir(parents=True)
    wanted = {entry.key for entry in entries}
    for repo in trees:
        path = source / f"inventory_{repo}.csv"
        header = "".join(f"# {key}: {value}\n" for key, value in inventory.read_header(path).items())
        text = io.StringIO()
        table = csv.DictWriter(text, inventory.COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(row for row in inventory.read_rows(path) if (row["repo"], row["op"]) in wanted)
        (folder / path.name).write_text(header + text.getvalue())
    (folder / "dismiss.csv").write_text(BLANK_DISMISS)


def run_group(run, name, entries, trees, ops_dir, environ):
    """Screen one group; {entry: (verdict, status, reason)}. UserError where run_batch.py could not start."""
    write_ops_folder(run / f"{name}.ops", ops_dir, trees, entries)
    dtypes = ",".join(entries[0].dtypes) or environ.get("DTYPES", "")
    child = {**environ, "OPS_DIR": str(run / f"{name}.ops"), "RUN": str(run / name), "DTYPES": dtypes, "OPS": "", "MATCH": ""}
    code = subprocess.run([sys.executable, str(ROOT / "run_batch.py")], env=child).returncode
    if code in (USAGE, REFUSED):
        raise UserError(f"run_batch.py: ended with {code}: see its message above", code)
    if code in (INTERRUPTED, -2):
        raise KeyboardInterrupt
    results = {}
    for entry in entries:
        marker = read_marker(run / name / entry.repo / entry.op)
        status, reason = (marker["status"], marker.get("reason", "")) if marker else ("", "")
        results[entry] = ("stale" if status == "ok" else "holds" if marker else "not run", status, reason)
    return results


def format_results(results):
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for entry, (verdict, status, reason) in results.items():
        table.writerow([inventory.SCHEMA, entry.repo, entry.op, entry.scope_text, verdict, status, reason])
    return text.getvalue()


def main(argv):
    parser = argparse.ArgumentParser(description="Run the dismissed operators and list those that pass now.", allow_abbrev=False)
    parser.add_argument("--run", type=Path, default=Path(os.environ["RUN"]) if os.environ.get("RUN") else None)
    parser.add_argument("--all", action="store_true", help="also entries of other machines")
    args = parser.parse_args(argv)
    environ = dict(os.environ)
    ops_dir = Path(environ.get("OPS_DIR") or ROOT / "ops")
    entries = dismissals.read_dismissals(ops_dir / "dismiss.csv")
    if not entries:
        print(f"{ops_dir / 'dismiss.csv'}: nothing is dismissed")
        return DONE
    run = (args.run or Path(environ.get("RUNS") or ROOT / "runs") / f"recheck-{utc_stamp()}").absolute()
    if run.exists():
        raise UserError(f"RUN: {run}: is there already; name a new directory, so that no result is mixed with an older one")
    trees, python = find_trees(environ), find_python(environ)
    known = {(op.repo, op.op) for repo in trees for op in inventory.read_inventory(ops_dir / f"inventory_{repo}.csv")}
    facts = None if args.all else dismissals.ask_facts(python, environ, inputs.read_versions(python, environ))
    chosen, left = sort_entries(entries, known, facts)
    found = {entry: (verdict, "", "") for entry, verdict in left.items()}
    for name, group in group_by_dtypes(chosen).items():
        found.update(run_group(run, name, group, trees, ops_dir, environ))
    results = {entry: found[entry] for entry in sorted(entries, key=lambda entry: (found[entry][0] == "stale", entry.line))}
    run.mkdir(parents=True, exist_ok=True)
    write_text_atomic(run / "recheck.csv", format_results(results))
    for entry, (verdict, status, reason) in results.items():
        print(f"{verdict:16} {entry.repo}/{entry.op}  [{entry.scope_text}]  {status} {reason}".rstrip())
    stale = sum(verdict == "stale" for verdict, _, _ in results.values())
    print(f"{run / 'recheck.csv'}: {stale} of {len(entries)} entries are stale")
    return BAD_RESULT if stale or any(verdict == "not run" for verdict, _, _ in results.values()) else DONE


if __name__ == "__main__":
    run_main(main)
