#!/usr/bin/env python3
"""batch_summary.py - the logs of a screen, as one table.

USAGE   batch_summary.py RUN [--out DIR] [--quiet]
        batch_summary.py runs/night-*-of-8 --out runs/night     the parts of a screen (SHARD_INDEX) as one
        batch_summary.py runs/latest-screen              summary.csv, summary.md, report.html into the run itself
        batch_summary.py runs/sealed --out /tmp/again    of a run that must not be written to
INPUT   A screen (RUN/plan.csv, RUN/<repo>/<op>/.complete, .../attempts/<n>/run.log), finished or not;
        or any directory with run.log files below it, made by hand with run_pytest.sh.
OUTPUT  summary.csv    one row per op, dtype, mode and shape; one row for an op that has no table:
          schema,repo,op,status,dtype,mode,level,timer,cache,shape,latency_base_ms,latency_ms,speedup,...
          1,main,abs,ok,float16,kernel,core,do_bench,cold,"[torch.Size([64, 64])]",0.0061,0.0067,0.91,...
          1,main,foo,skipped,,kernel,core,do_bench,cold,,,,,...,needs SM90
        summary.md     the table of the terminal, for a note
        report.html    the same as one page: filter, sort, a link to each run.log
        stdout         that table:
          repo  op   status   dtype    measured how               rows  bad rows  geomean speedup  of rows ...
          main  abs  ok       float16  kernel core do_bench cold     5                      0.974        5 ...
EXIT    0 every op is ok, skipped, dismissed or left out (BUDGET); 1 some op is not; 2 usage; 3 the output cannot be written;
        4 the plan and the results do not belong together: every planned op has rows and no other has; parts of two screens
REQUIREMENTS  Python 3.10, rich. No torch.  OVERHEAD  about 2 s for 1,000 logs with 50,000 rows.
LIMITS  The whole summary is held in memory. Each file is replaced as a whole, the three are not one step.
"""

import argparse
import sys
from pathlib import Path

from common.errors import BAD_RESULT, DONE, INTEGRITY, UserError, run_main
from common.state import write_json_atomic, write_text_atomic
from screen.figures import format_summary_csv, group_rows, list_summary_rows
from screen.merge import is_part, read_parts
from screen.report import format_html, format_markdown, list_bad_results, print_table
from screen.results import read_run


def main(argv):
    """Summarise the run named in `argv`; returns the exit status."""
    arguments = parse_arguments(argv)
    run, lacking, total = read_runs(arguments.run, arguments.out)
    rows = list_summary_rows(run.results)
    check_every_op_reported(run, rows)
    groups = group_rows(run.results)
    directory = prepare_output(arguments.out or arguments.run[0])
    if total:
        write_json_atomic(directory / "screen.json", run.info)
    write_summary(directory / "summary.csv", format_summary_csv(rows))
    write_summary(directory / "summary.md", format_markdown(run, groups))
    write_summary(directory / "report.html", format_html(run, groups, directory))
    if not arguments.quiet:
        sys.stdout.reconfigure(errors="replace")    # a terminal that knows no Unicode
        print_table(run, groups, sys.stdout)
        print(f"summary: {directory / 'summary.csv'}")
    if lacking:
        warn(f"{directory}: of {total} parts these are not there: {', '.join(map(str, lacking))}")
    return BAD_RESULT if lacking or list_bad_results(run.results) else DONE


def read_runs(paths, out):
    """(Run, numbers of the parts that lack, number of parts): of one directory, then 0 parts; or of the parts of a screen."""
    if len(paths) > 1 and not out:
        raise UserError("--out: missing; several directories are summed up in another one, as --out runs/night")
    run = read_run(paths[0], warn) if len(paths) == 1 else None
    if run and not (out and is_part(run)):
        return run, [], 0
    return read_parts(paths, out.resolve().name, warn)


def parse_arguments(argv):
    """argparse's namespace: run (a list), out, quiet."""
    parser = argparse.ArgumentParser(prog="batch_summary.py", description="The logs of a screen, as one table.",
                                     epilog="Exit status: 0 all good, 1 some op is not, 2 usage, 3 cannot write, "
                                            "4 plan and results do not belong together.")
    parser.add_argument("run", metavar="RUN", type=Path, nargs="+",
                        help="directory of a screen, or of runs made by hand; or all parts of a screen")
    parser.add_argument("--out", metavar="DIR", type=Path, help="write there instead of into RUN (made if missing)")
    parser.add_argument("--quiet", action="store_true", help="print no table")
    return parser.parse_args(argv)


def check_every_op_reported(run, rows):
    """UserError (integrity) unless the ops of `rows` are those of `run`: planned = reported, always."""
    planned, reported = {result.key for result in run.results}, {row[1:3] for row in rows}
    if planned != reported:
        names = ", ".join("/".join(key) for key in sorted(planned ^ reported))
        raise UserError(f"{run.name}: planned and reported ops differ: {names}; this is a defect of batch_summary.py, "
                        "keep the run and report it", INTEGRITY)


def prepare_output(directory):
    """Make `directory` where it lacks and return it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"--out: {directory}: is no directory; give another place") from None
    return directory


def write_summary(path, text):
    """Write `text`; what is no Unicode (a lone surrogate of a damaged file or name) becomes `?`."""
    write_text_atomic(path, text.encode("utf-8", "replace").decode())


def warn(text):
    """One line on stderr about something that could not be read."""
    print(f"batch_summary.py: warning: {text}", file=sys.stderr)


if __name__ == "__main__":
    run_main(main)
