"""ab_summary.py - the files of ab_test.sh -> ab.csv and a table.

USAGE   python ab_summary.py RUN                    read RUN again (BAND=0.01 asks with another band)
        python ab_summary.py --begin RUN KEY=VALUE...   (ab_test.sh: writes ab.json)
INPUT   RUN/ab.json, RUN/<repo>/<op>/{tests,round-<n>}-<side>/{run.log,exit.json,autotune.json,cache/}
OUTPUT  RUN/ab.csv, one row per operator x dtype x shape; a table on stdout
SAMPLE  op       dtype    shape       off_ms  on_ms   ratio  interval       mde    verdict    reason
        softmax  float16  [64, 4096]  0.0261  0.0209  0.801  [0.795,0.807]  0.9%   faster     p=0.0004
VERDICT faster | slower | same | ambiguous | invalid, by common/verdict.py with Benjamini-Hochberg over all rows. Rows are
        `invalid`, whatever their figures, where a side fails its tests, where a launch did not use the recorded
        config (missed, fallback, dropped), and on the host device, which measures no time.
COLUMNS `code`: identical | different | unknown, whether both sides executed the same compiled kernels; if identical,
        a difference in time is the switch's work outside of them, or noise. converts_*: layout conversions in them.
EXIT    0 no row slower or invalid, 1 some are, 2 usage
"""
import csv
import io
import os
import re
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from tabulate import tabulate

from common import verdict
from common.binaries import compare_kernels, read_cache
from common.errors import BAD_RESULT, DONE, UserError, run_main
from common.runlog import parse_runlog
from common.state import read_json, utc_now, write_json_atomic, write_text_atomic

SIDES = ("off", "on")
NOT_THE_RECORDS = re.compile(r"^AUTOTUNE_REPLAY \w+: .*\b(missed|fallback|dropped)=[1-9]", re.M)


@dataclass
class AbRow:
    """One row of ab.csv; times in ms are medians over the rounds, `ratio` is on over off."""
    schema: int
    repo: str
    op: str
    dtype: str
    mode: str
    timer: str
    cache: str
    shape: str
    off_ms: float | None
    on_ms: float | None
    ratio: float | None
    ci_low: float | None
    ci_high: float | None
    mde: float | None
    p_adjusted: float | None
    rounds: int
    verdict: str
    reason: str
    correctness_off: str
    correctness_on: str
    code: str
    converts_off: int | None
    converts_on: int | None


def begin(run, settings):
    """Write ab.json, so that a run that is killed still says what it was."""
    write_json_atomic(run / "ab.json", {"schema": 1, "started": utc_now(), **dict(s.split("=", 1) for s in settings)})


def read_rounds(folder, rounds):
    """{(op_name, dtype, mode, shape): {side: [ms per round or None]}}, the same keys' (timer, cache), and all headers."""
    table, methods, headers = {}, {}, []
    for side in SIDES:
        for number in range(1, rounds + 1):
            path = folder / f"round-{number}-{side}" / "run.log"
            log = parse_runlog(path) if path.is_file() else None
            headers.append(log.header if log else {})
            for row in log.rows if log else ():
                key = (row.op_name, row.dtype, row.mode, row.shape)
                times = table.setdefault(key, {s: [None] * rounds for s in SIDES})
                times[side][number - 1] = row.latency_ms if row.status == "SUCCESS" else None
                methods.setdefault(key, set()).add((row.timer or log.header.get("timer", ""),
                                                    row.cache or log.header.get("cache", "")))
    return table, methods, headers


def read_correctness(folder, side):
    """`passed`, or what else its tests' process came to."""
    exit_status = (read_json(folder / f"tests-{side}" / "exit.json") or {}).get("pytest_exit")
    return {0: "passed", 1: "failed", 5: "no tests"}.get(exit_status, "crashed" if exit_status is None else "error")


def find_fault(folder, rounds, headers, correctness):
    """Why no figure of this operator can be believed, or None."""
    for side in SIDES:
        if correctness[side] not in ("passed", "no tests"):
            return f"correctness {correctness[side]} with {side}"
    if any(header.get("cache") == "host" for header in headers):
        return "the host device measures no time"
    for side in SIDES:
        for number in range(1, rounds + 1):
            if (number, side) == (1, "off"):
                continue
            path = folder / f"round-{number}-{side}" / "run.log"
            found = NOT_THE_RECORDS.search(path.read_text(errors="replace")) if path.is_file() else None
            if found:
                return f"round {number} {side}: {found[0].split(':', 1)[0]} {found[1]}: not the recorded configs"
    return None


def summarize_op(run, settings, op):
    """The rows of one operator, with p-values that are not corrected yet."""
    folder, rounds = run / settings["repo"] / op, int(settings["rounds"])
    table, methods, headers = read_rounds(folder, rounds)
    correctness = {side: read_correctness(folder, side) for side in SIDES}
    fault = find_fault(folder, rounds, headers, correctness)
    # In the last round both sides replay, so that each has compiled what it launches and nothing else.
    kernels = {side: read_cache(folder / f"round-{rounds}-{side}" / "cache" / "triton") for side in SIDES}
    code = compare_kernels(kernels["off"], kernels["on"])[0]
    converts = {side: sum(k.converts or 0 for k in kernels[side]) if kernels[side] else None for side in SIDES}
    for key, times in table.items() or {("", "", "", ""): {"off": [], "on": []}}.items():
        op_name, dtype, mode, shape = key
        result = verdict.compare_sides(times["off"], times["on"], float(settings["band"]))
        used = sorted(methods.get(key, [("", "")]))
        mixed = "timed by " + " and ".join(map(" ".join, used)) + ": not comparable" if len(used) > 1 else None
        if fault or mixed:
            result = verdict.Comparison("invalid", fault or mixed, result.rounds)
        medians = {s: statistics.median(t for t in times[s] if t) if any(times[s]) else None for s in SIDES}
        yield AbRow(1, settings["repo"], op, dtype, mode, *used[0],
                    shape if op_name in (op, "") else f"{op_name}: {shape}", medians["off"], medians["on"], result.ratio,
                    result.low, result.high, result.mde, result.p_value, result.rounds, result.verdict, result.reason,
                    correctness["off"], correctness["on"], code, converts["off"], converts["on"]), result


def correct_rows(pairs, band):
    """Rows with Benjamini-Hochberg p-values over all of them, and the verdicts that follow."""
    adjusted = verdict.adjust_bh([result.p_value for _, result in pairs])
    for (row, result), p_value in zip(pairs, adjusted):
        if p_value is not None:
            decided = verdict.decide(verdict.replace(result, p_value=p_value), band, 1 - verdict.LEVEL)
            row.p_adjusted, row.verdict, row.reason = p_value, decided.verdict, decided.reason
        yield row


def write_csv(rows, path):
    text = io.StringIO()
    writer = csv.DictWriter(text, list(AbRow.__dataclass_fields__), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in asdict(row).items()})
    write_text_atomic(path, text.getvalue())


def print_table(rows, settings):
    shown = [(r.op, r.dtype, r.shape[:48], r.off_ms, r.on_ms, r.ratio, r.ci_low and f"[{r.ci_low:.3f},{r.ci_high:.3f}]",
              r.mde and f"{r.mde:.1%}", r.verdict, r.code, r.reason) for r in rows]
    print(tabulate(shown, headers=("op", "dtype", "shape", "off_ms", "on_ms", "ratio", "interval", "mde", "verdict", "code",
                                   "reason"), tablefmt="plain", floatfmt=".4g"))
    counts = {v: sum(r.verdict == v for r in rows) for v in ("faster", "slower", "same", "ambiguous", "invalid")}
    print(f"\n{settings['switch']}: on={settings['on']} against off={settings['off']}, {settings['rounds']} rounds, "
          f"{len(rows)} rows: " + ", ".join(f"{n} {v}" for v, n in counts.items() if n))


def main(argv):
    """See the header."""
    if argv[:1] == ["--begin"] and len(argv) > 2:
        return begin(Path(argv[1]), argv[2:])
    if len(argv) != 1 or argv[0].startswith("-"):
        print(__doc__)
        return DONE if argv in (["-h"], ["--help"]) else 2
    run = Path(argv[0])
    settings = read_json(run / "ab.json")
    if not settings:
        raise UserError(f"{run / 'ab.json'}: missing or cut; name a run directory of ab_test.sh")
    settings["band"] = os.environ.get("BAND") or settings["band"]
    pairs = [pair for op in settings["ops"].split(",") for pair in summarize_op(run, settings, op)]
    rows = list(correct_rows(pairs, float(settings["band"])))
    write_csv(rows, run / "ab.csv")
    print_table(rows, settings)
    print(f"{run / 'ab.csv'}")
    return BAD_RESULT if any(r.verdict in ("slower", "invalid") for r in rows) else DONE


if __name__ == "__main__":
    run_main(main)
