#!/usr/bin/env python3
"""scan_guards.py - find the skip guards on torch.cuda.is_available() in a tree: candidates for ops/mthreads_guards.csv.

USAGE   make guards [REPO=main] [TREE=DIR]
        ops/scan_guards.py [--repo main] [--tree DIR] [--out FILE]    FILE: default ops/mthreads_guards.csv
        ops/scan_guards.py [--repo main] [--tree DIR] --list          print every guard, pure or not; write nothing
          without --tree: FLAGGEMS_DIR and FLAGGEMS_VLLM_DIR
INPUT   benchmark/**.py and tests/**.py of the tree, parsed and never imported; the pin list as it is.
OUTPUT  The pin list with one row per file and exact skip reason of a pure guard. A new one is `unverified`. Rows that
        are there keep their status, evidence and note; the rows of other repos are kept as they are. A row whose guard
        the tree no longer has is taken out and named. --list:
          pure   benchmark/test_fft.py:73  decorator test_perf_fft  'CUDA is not available'
          joined benchmark/test_pack_seq.py:141  decorator test_pack_seq_fp8  'requires vLLM and ...'
        On stdout a summary: lines that ask, guards among them, pure guards, pins.
EXIT    0 done, 1 a verified pin's guard is gone or is no longer pure, 2 usage.
NEEDS   the standard library. LIMITS a condition that this cannot follow counts as joined (mthreads_guard/source.py).
"""
import argparse
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]
from common.errors import BAD_RESULT, DONE, UserError, run_main  # noqa: E402
from common.state import write_text_atomic  # noqa: E402
from mthreads_guard import pins as pin_list  # noqa: E402
from mthreads_guard import source  # noqa: E402
from ops.reading.targets import FOLDERS, choose_targets, read_commit  # noqa: E402

ASKS = re.compile(r"\bcuda\.is_available\(")


def scan_tree(tree):
    """({file: guards}, {folder: number of lines that ask}) of a tree; UserError names a file that is no Python."""
    guards, asking = {}, dict.fromkeys(FOLDERS, 0)
    for folder in FOLDERS:
        for path in sorted((tree / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            asking[folder] += sum(1 for line in text.splitlines() if ASKS.search(line))
            try:
                found = source.find_guards(text) if ASKS.search(text) else []
            except SyntaxError as error:
                raise UserError(f"{path}: line {error.lineno}: is no Python: {error.msg}; mend the tree") from None
            if found:
                guards[path.relative_to(tree).as_posix()] = found
    return guards, asking


def describe_guards(guards):
    """`decorator:test_a;module:`: forms and scopes, for the reader of the pin list."""
    return ";".join(sorted(f"{guard.form}:{guard.scope}" for guard in guards))


def propose_pins(repo, guards):
    """One unverified (or left) pin per file and reason of pure guards."""
    proposed = []
    for file, found in guards.items():
        reasons = sorted({guard.reason for guard in found if guard.pure and guard.reason and guard.form != "param"})
        for reason in reasons:
            pure = [guard for guard in found if guard.pure and guard.reason == reason]
            left = pin_list.LEFT_IN_PLACE.get(Path(file).name, "")
            proposed.append(pin_list.Pin(pin_list.SCHEMA, repo, file, reason, describe_guards(pure),
                                         "left" if left else "unverified", "", "", "", left))
    return proposed


def merge_pins(old, proposed, repo):
    """(pins, gone): the proposed ones with what is known of them from `old`, the other repos' ones; old ones without a guard."""
    known = {(pin.file, pin.reason): pin for pin in old if pin.repo == repo}
    merged = [pin for pin in old if pin.repo != repo]
    for pin in proposed:
        before = known.pop((pin.file, pin.reason), None)
        if before is not None:
            before.guards = pin.guards
        merged.append(before or pin)
    return merged, list(known.values())


def read_old(path):
    """(comment lines, pins) of the list; nothing if there is none yet."""
    if not path.exists():
        return [], []
    try:
        comments = [line[2:] for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# ")]
        return comments, [pin for _, pin in pin_list.read_pins(path)]
    except ValueError as error:
        raise UserError(f"{error}; mend it, or name another file with --out") from None


def list_guards(guards):
    for file, found in guards.items():
        for guard in found:
            kind = "pure  " if guard.pure else "joined"
            print(f"{kind} {file}:{guard.line}  {guard.form} {guard.scope or '-'}  {guard.reason!r}")


def rebuild_pins(repo, tree, out):
    """Write the pin list with the candidates of `tree`; an exit status."""
    guards, asking = scan_tree(tree)
    comments, old = read_old(out)
    proposed = propose_pins(repo, guards)
    merged, gone = merge_pins(old, proposed, repo)
    summary = summarize(repo, tree, guards, asking, proposed)
    comments = [line for line in comments if not line.startswith(f"{repo} at ")]
    write_text_atomic(out, pin_list.format_pins(sorted([*comments, summary]), merged))
    print(summary)
    for pin in gone:
        print(f"gone: {pin.file} {pin.reason!r} ({pin.status}): no pure guard of that reason in the tree")
    return BAD_RESULT if any(pin.status == "verified" for pin in gone) else DONE


def summarize(repo, tree, guards, asking, proposed):
    everything = [guard for found in guards.values() for guard in found]
    lines = " and ".join(f"{count} lines of {folder}/" for folder, count in asking.items())
    return (f"{repo} at {read_commit(tree, repo)}: {lines} ask torch.cuda.is_available(); {len(everything)} guards, "
            f"{sum(guard.pure for guard in everything)} of them pure; {len(proposed)} pins")


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--repo", choices=("main", "vllm"))
    parser.add_argument("--tree", help="checkout; default: FLAGGEMS_DIR and FLAGGEMS_VLLM_DIR")
    parser.add_argument("--out", type=Path, default=ROOT / "ops" / "mthreads_guards.csv")
    parser.add_argument("--list", action="store_true", help="print every guard, write nothing")
    args = parser.parse_args(argv)
    targets = choose_targets(argparse.Namespace(repo=args.repo, tree=args.tree, out=None), os.environ)
    targets = [(repo, tree) for repo, tree, _ in targets if repo != "samples"]
    if not targets:
        raise UserError("--tree: no checkout; give one, as --tree /path/to/FlagGems: the sample tree has no such guards")
    if not args.list:
        return max(rebuild_pins(repo, tree, args.out) for repo, tree in targets)
    for repo, tree in targets:
        guards, asking = scan_tree(tree)
        list_guards(guards)
        print(summarize(repo, tree, guards, asking, propose_pins(repo, guards)))
    return DONE


if __name__ == "__main__":
    run_main(main)
