#!/usr/bin/env python3
"""compare_screens.py - what is worse in one screen than in another: the first thing to read after a nightly run.

USAGE   compare_screens.py OLD NEW [--band 0.05] [--noise noise.json] [--out DIR]
        compare_screens.py runs/2026-11-29 runs/2026-11-30      (make compare OLD=... NEW=...)
INPUT   Two screens, or their summary.csv files with screen.json beside them; of operators whose times moved the
        autotune.json of both attempts too, where it is there.
OUTPUT  stdout, worst first; DIR/compare.csv has one line per operator and one per row, also what is the same:
          old: runs/2026-11-29 (created ..., device 0 NVIDIA H200, main at ed2508b, ...)
          new: runs/2026-11-30 (...)
          differs: main commit ed2508b -> 84bb190
          verdict  repo/op   dtype    measured how      old     new     ratio  torch  shape and reason
          worse    main/mm                              ok      failed                RuntimeError: out of memory
          slower   main/abs  float16  kernel graph cold 0.0061  0.0073  1.197  1.001  [torch.Size([64, 64])]
VERDICT of an operator, by its status, and of a row that has figures on one side only:
          worse, better, changed (neither), same; new, missing: it is on one side only
        of a row with figures on both sides; ratio is new over old latency of FlagGems, above 1 is slower:
          slower, faster  beyond the band, also against torch's own latency of the same row, which shows the card's state
          unclear         beyond the band, but torch's latency moved alike, the tuner chose other configs, or the timer doubts a
                          figure (throttled, shared, a launch gap that moved): `make ab`, or a replay (REPLAY_ROOT=OLD), says more
          same            within the band
          not compared    another timer, cache state or card model, or one that is not known; the host device; no band
BAND    --band (BAND): the share by which two equal figures may differ. Else --noise (NOISE): a study of this card
        (make aa), widened to one process against one and to the number of rows. Else 5 % for graph and event: between
        two nights the same code moved by -1.6 to +3.1 % (docs/timing.md). Other timers need one of the two.
EXIT    0 nothing is worse, slower or gone; 1 something is; 2 usage; 3 NOISE is of another device; 4 a file is damaged
REQUIRES Python 3.10. No torch.  LIMITS  One process stands on each side: a verdict says where to look, not why.
"""
import argparse
import csv
import io
import os
import sys
from collections import Counter
from pathlib import Path

from common.errors import BAD_RESULT, DONE, UserError, run_main
from common.state import SCHEMA, write_text_atomic
from screen.comparison import compare_ops, compare_rows, note_rows, read_side
from screen.facts import find_part, list_differences, list_facts

BAD_VERDICTS = ("worse", "missing", "slower")
ORDER = ("worse", "missing", "slower", "unclear", "changed", "better", "new", "faster")
SHOWN = 40      # lines of one verdict on the terminal
COLUMNS = ("schema", "verdict", "repo", "op", "dtype", "mode", "timer", "cache", "shape", "old", "new", "ratio", "torch_ratio",
           "band", "reason")


def main(argv):
    """Compare the two screens named in `argv`; returns the exit status."""
    options = parse_arguments(argv)
    old, new = read_side(options.old), read_side(options.new)
    ops, rows = compare_ops(old, new), compare_rows(old, new, options.band, options.noise)
    note_rows(ops, rows)
    changes = ops + rows
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        write_text_atomic(options.out / "compare.csv", format_csv(changes))
    sys.stdout.reconfigure(errors="replace")    # a terminal that knows no Unicode
    print_changes(old, new, changes)
    if options.out:
        print(f"compare: {options.out / 'compare.csv'}")
    return BAD_RESULT if any(is_bad(change, old, new) for change in changes) else DONE


def parse_arguments(argv):
    """argparse's namespace: old, new, band, noise, out; the last three from BAND, NOISE and OUT where not given."""
    parser = argparse.ArgumentParser(prog="compare_screens.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("old", metavar="OLD", type=Path, help="a screen, or its summary.csv")
    parser.add_argument("new", metavar="NEW", type=Path, help="another one, of the same operators")
    parser.add_argument("--band", default=os.environ.get("BAND") or None, help="0.05: ratios within 5 %% are the same")
    parser.add_argument("--noise", default=os.environ.get("NOISE") or None, help="noise.json of `make aa` on this card")
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT") or None, help="directory for compare.csv")
    options = parser.parse_args(argv)
    try:
        options.band = None if options.band is None else float(options.band)
    except ValueError:
        options.band = -1
    if options.band is not None and not 0 < options.band < 10:
        raise UserError(f"BAND: {options.band}: is no share above 0; give one, as BAND=0.05 for 5 %")
    return options


# ---- telling

def is_bad(change, old, new):
    """True if `change` makes the exit status 1. What is missing because less was asked for does not."""
    asked = [[find_part(side.info, "knobs").get(name) for name in ("OPS", "MATCH")] for side in (old, new)]
    return change.verdict in BAD_VERDICTS and not (change.verdict == "missing" and asked[0] != asked[1])


def print_changes(old, new, changes):
    """What differs, then every change, worst first, at most SHOWN of a kind; then the counts."""
    for name, side in (("old", old), ("new", new)):
        print(f"{name}: {side.path} ({'; '.join(list_facts(side.info)) or 'no screen.json: made how is not known'})")
    differences = list_differences(old.info, new.info)
    print(f"differs: {'; '.join(differences) or 'nothing that screen.json knows of'}\n")
    lines, hidden = [("verdict", "repo/op", "dtype", "measured how", "old", "new", "ratio", "torch", "shape and reason")], {}
    for verdict in ORDER:
        some = [change for change in changes if change.verdict == verdict]
        some.sort(key=lambda change: -abs((change.ratio or 1) - 1))
        lines += map(list_cells, some[:SHOWN])
        hidden[verdict] = len(some) - SHOWN
    widths = [max(map(len, column)) for column in list(zip(*lines))[:-1]]
    for line in lines if len(lines) > 1 else ():
        print("  ".join([cell.ljust(width) for cell, width in zip(line, widths)] + [line[-1]]).rstrip())
    for verdict, count in hidden.items():
        if count > 0:
            print(f"... and {count} more {verdict}: OUT=DIR writes all of them to DIR/compare.csv")
    print(("\n" if len(lines) > 1 else "") + f"operators: {count_verdicts(change for change in changes if not change.mode)}")
    print(f"rows: {count_verdicts(change for change in changes if change.mode)}")
    for reason, count in Counter(change.reason for change in changes if change.verdict == "not compared").most_common():
        print(f"not compared: {count} rows: {reason}")


def list_cells(change):
    """The texts of a Change for the terminal."""
    figures = ["" if figure is None else f"{figure:.3f}" for figure in (change.ratio, change.torch_ratio)]
    sides = [f"{value:.4g}" if isinstance(value, float) else value for value in (change.old, change.new)]
    how = " ".join(filter(None, (change.mode, change.timer, change.cache)))
    return (change.verdict, f"{change.repo}/{change.op}", change.dtype, how,
            *sides, *figures, "  ".join(" ".join(text.split()) for text in (change.shape, change.reason) if text))


def count_verdicts(changes):
    counts = Counter(change.verdict for change in changes)
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()) or "none"


def format_csv(changes):
    """compare.csv's text."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows((SCHEMA, *(getattr(change, name) for name in COLUMNS[1:])) for change in changes)
    return stream.getvalue()


if __name__ == "__main__":
    run_main(main)
