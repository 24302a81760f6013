"""ab_summary.py - the files of ab_test.sh -> ab.csv and a table.

USAGE   python ab_summary.py RUN                    read RUN again, also one that was interrupted
          BAND=0.01, NOISE=noise.json               ask with another band
        python ab_summary.py --begin RUN KEY=VALUE...   (ab_test.sh: writes ab.json)
INPUT   RUN/ab.json, RUN/<repo>/<op>/{tests,round-<n>}-<side>/{run.log,exit.json,autotune.json,cache/}
OUTPUT  RUN/ab.csv, one row per operator x dtype x shape; a table on stdout
SAMPLE  op       dtype    shape       off_ms  on_ms   ratio  interval       mde    verdict    code       converts  reason
        softmax  float16  [64, 4096]  0.0261  0.0209  0.801  [0.795,0.807]  0.9%   faster     different  12->3     p=0.0004
VERDICT faster | slower | same | ambiguous | invalid, by common/verdict.py with Benjamini-Hochberg over all rows. Rows are
        `invalid`, whatever their figures, where a side fails its tests or is the only one that skips them, where a launch
        did not use the recorded config (missed, fallback, dropped), does not say so (PLUGINS without
        _autotune_record_plugin) or a record was forced, where a process crashed, lost rows, or its pytest did not end as that of
        round 1 off, where the rounds were timed differently (a graph timer that fell back), where one has no figure, and
        on the host device, which measures no time. They are `ambiguous` where the row itself says that the card was
        throttled, shared or drifted in all tries: a large GEMM that draws a card's full power is.
COLUMNS `code`: identical | different | unknown, whether both sides executed the same compiled kernels; if identical,
        a difference in time is the switch's work outside of them, or noise. converts_*: layout conversions in them.
        `band`: within this share of 1 a ratio is the same: BAND, or what NOISE (aa_study.py) found for the row's timer.
EXIT    0 no row slower or invalid, 1 some are, 2 usage, 3 NOISE is of another device or timer, 4 NOISE is damaged
"""
import csv
import io
import os
import statistics
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from tabulate import tabulate

from common import verdict
from common.binaries import compare_kernels, read_cache
from common.errors import BAD_RESULT, DONE, UserError, run_main
from common.noise import parse_band, read_band
from common.replay_log import find_replay_fault
from common.runlog import parse_runlog
from common.session import find_session_fault
from common.state import read_json, utc_now, write_json_atomic, write_text_atomic
from common.tablerow import find_doubt
from screen.results import read_pytest_exit, read_tests

SIDES = ("off", "on")
DEFAULT_BAND = 0.02
STEP_MS = 1e-6  # what the figures of a run.log are rounded to
ON_HOST = "the host device measures no time"
OWN = "gemscreen_"  # kernels of this project's timers: no operator's


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
    band: float
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


@dataclass
class Sides:
    """What one key (op_name, dtype, mode, shape, number of such a row in its log) got in each round of each side."""
    times: dict     # {side: [ms per round or None]}
    methods: set    # {(timer, cache)}
    launches: dict  # {side: [(us that a launch cost, launches of a call), or None]}
    lack: str = ""  # what the last round without a figure had instead
    doubt: str = ""  # what a figure's own row says against it


def make_sides(rounds):
    return Sides({side: [None] * rounds for side in SIDES}, set(), {side: [None] * rounds for side in SIDES})


def read_rounds(folder, rounds):
    """({key: Sides}, {(number, side): RunLog, an empty one where there is none})."""
    table, logs = {}, {}
    for side in SIDES:
        for number in range(1, rounds + 1):
            path = folder / f"round-{number}-{side}" / "run.log"
            log = logs[number, side] = parse_runlog(path if path.is_file() else "")
            seen = Counter()
            for row in log.rows:
                key = (row.op_name, row.dtype, row.mode, row.shape)
                seen[key] += 1
                sides = table.setdefault((*key, seen[key]), make_sides(rounds))
                if row.status == "SUCCESS":
                    sides.times[side][number - 1], sides.launches[side][number - 1] = row.latency_ms, row.launch
                    doubt = find_doubt(row.reason)
                    sides.doubt = sides.doubt or (doubt and f"round {number} {side}: {doubt}")
                    sides.methods.add((row.timer or log.header.get("timer", ""), row.cache or log.header.get("cache", "")))
                else:
                    sides.lack = f"{row.status} {row.reason}".strip()
    return table, logs


def read_correctness(folder, side):
    """`passed`, or what else its tests' process came to; `skipped` where none of them ran."""
    if not (folder / f"tests-{side}").is_dir():
        return "not run"
    exit_status = read_pytest_exit(folder / f"tests-{side}")
    if exit_status == 0 and not any(t.get("outcome") == "passed" for t in read_tests(folder / f"tests-{side}" / "tests.jsonl")):
        return "skipped"
    return {0: "passed", 1: "failed", 5: "no tests"}.get(exit_status, "crashed" if exit_status is None else "error")


def find_fault(logs, correctness):
    """Why no figure of this operator can be believed, or None."""
    for side in SIDES:
        if correctness[side] not in ("passed", "skipped", "no tests"):
            return f"correctness {correctness[side]} with {side}"
    if correctness["off"] != correctness["on"]:
        return f"correctness {correctness['off']} with off, but {correctness['on']} with on"
    headers = [log.header for log in logs.values()]
    if any(header.get("cache") == "host" for header in headers):
        return ON_HOST
    if any("forced" in header.get("replay", "") and header.get("replay_from") for header in headers):
        return "a record was replayed by force (REPLAY_FORCE)"
    return None


def find_process_fault(folder, rounds, logs):
    """Which process crashed, ended otherwise than the first, or does not prove that it launched the recorded configs; or None."""
    first = read_pytest_exit(folder / "round-1-off")
    for number in range(1, rounds + 1):
        for side in SIDES:
            run_dir = folder / f"round-{number}-{side}"
            path, ended = run_dir / "run.log", read_pytest_exit(run_dir)
            if ended is None:
                return f"round {number} {side}: crashed"
            if ended != first:
                return f"round {number} {side}: pytest ended with {ended}, that of round 1 off with {first}"
            cut = find_session_fault(run_dir, logs[number, side])
            if cut:
                return f"round {number} {side}: {cut}"
            text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
            fault = find_replay_fault(run_dir, text, is_recording=(number, side) == (1, "off"))
            if fault:
                return f"round {number} {side}: {fault}: not the recorded configs"
    return None


def find_row_fault(sides):
    """Why this row's figures cannot be compared, or None."""
    for number, pair in enumerate(zip(*(sides.times[s] for s in SIDES)), 1):
        for side, time in zip(SIDES, pair):
            if time is None:
                return f"no figure in round {number} {side}" + (f" ({sides.lack})" if sides.lack else "")
    if len(sides.methods) > 1:
        return "timed differently: " + ", ".join(sorted(" ".join(method) for method in sides.methods))
    return None


def read_noise_band(run, settings, op, methods):
    """The band of a row: BAND, what NOISE says of its timer, or DEFAULT_BAND. UserError for a NOISE that does not fit."""
    if settings.get("band"):
        return settings["band"]
    if not settings.get("noise") or len(methods) != 1 or ("host", "host") in methods:
        return DEFAULT_BAND
    record = read_json(run / settings["repo"] / op / "round-1-off" / "autotune.json") or {}
    return read_band(Path(settings["noise"]), record.get("meta", {}).get("device") or settings["device"], *min(methods))


def read_kernels(folder):
    """The Kernels that an operator's process compiled: not those of the timers."""
    return {kernel for kernel in read_cache(folder / "cache" / "triton") if not kernel.name.startswith(OWN)}


def summarize_op(run, settings, op):
    """The rows of one operator, each with its Comparison, whose p-value is not corrected yet."""
    folder, rounds = run / settings["repo"] / op, int(settings["rounds"])
    table, logs = read_rounds(folder, rounds)
    correctness = {side: read_correctness(folder, side) for side in SIDES}
    fault, process_fault = find_fault(logs, correctness), find_process_fault(folder, rounds, logs)
    # In the last round both sides replay, so that each has compiled what it launches and nothing else.
    kernels = {side: read_kernels(folder / f"round-{rounds}-{side}") for side in SIDES}
    code = compare_kernels(kernels["off"], kernels["on"])[0]
    converts = {side: sum(k.converts or 0 for k in kernels[side]) if kernels[side] else None for side in SIDES}
    nothing = {("", "", "", "", 1): make_sides(rounds)}
    for key, sides in (table or nothing).items():
        op_name, dtype, mode, shape, number = key
        times, band = sides.times, read_noise_band(run, settings, op, sides.methods)
        why = fault or find_row_fault(sides) or process_fault
        launches = sides.launches
        shift = 0.0 if why else verdict.find_gap_shift([*times["off"], *times["on"]], [*launches["off"], *launches["on"]])
        result = verdict.compare_sides(times["off"], times["on"], band, shift=shift, step=STEP_MS)
        if why:
            result = verdict.Comparison("invalid", why, result.rounds)
        elif sides.doubt:
            result = verdict.replace(result, verdict="ambiguous", reason=sides.doubt, p_value=None)
        medians = {s: statistics.median(t for t in times[s] if t) if any(times[s]) and fault != ON_HOST else None
                   for s in SIDES}
        ways = [sorted(x) for x in zip(*sides.methods)] or [[], []]
        shape = (shape if op_name in (op, "") else f"{op_name}: {shape}") + (f" #{number}" if number > 1 else "")
        yield AbRow(1, settings["repo"], op, dtype, mode, "+".join(dict.fromkeys(ways[0])), "+".join(dict.fromkeys(ways[1])),
                    shape, medians["off"], medians["on"], result.ratio, result.low, result.high, result.mde, band, result.p_value,
                    result.rounds, result.verdict, result.reason, correctness["off"], correctness["on"], code,
                    converts["off"], converts["on"]), result


def correct_rows(pairs):
    """Rows with Benjamini-Hochberg p-values over all of them, and the verdicts that follow."""
    adjusted = verdict.adjust_bh([result.p_value for _, result in pairs])
    for (row, result), p_value in zip(pairs, adjusted):
        if p_value is not None:
            alpha = 1 - verdict.LEVEL
            decided = verdict.decide(verdict.replace(result, p_value=p_value), row.band, alpha)
            row.p_adjusted, row.verdict, row.reason = p_value, decided.verdict, decided.reason
            if row.verdict == "ambiguous" and result.p_value < alpha <= p_value:
                row.reason = f"p={result.p_value:.2g} alone, {p_value:.2g} as one of {len(pairs)} rows"
        yield row


def write_csv(rows, path):
    text = io.StringIO()
    writer = csv.DictWriter(text, list(AbRow.__dataclass_fields__), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in asdict(row).items()})
    write_text_atomic(path, text.getvalue())


def print_table(rows, settings):
    shown = [(r.op, r.dtype, r.shape[:48], r.off_ms, r.on_ms, r.ratio,
              None if r.ci_low is None else f"[{r.ci_low:.3f},{r.ci_high:.3f}]", None if r.mde is None else f"{r.mde:.1%}",
              r.verdict, r.code, None if None in (r.converts_off, r.converts_on) else f"{r.converts_off}->{r.converts_on}",
              r.reason)
             for r in rows]
    print(tabulate(shown, headers=("op", "dtype", "shape", "off_ms", "on_ms", "ratio", "interval", "mde", "verdict", "code",
                                   "converts", "reason"), tablefmt="plain", floatfmt=".4g"))
    counts = {v: sum(r.verdict == v for r in rows) for v in ("faster", "slower", "same", "ambiguous", "invalid")}
    print(f"\n{settings['switch']}: on={settings['on']} against off={settings['off']}, {settings['rounds']} rounds, "
          f"{len(rows)} rows: " + ", ".join(f"{n} {v}" for v, n in counts.items() if n))
    untested = dict.fromkeys(f"{r.op} ({r.correctness_on})" for r in rows if r.correctness_on in ("skipped", "no tests"))
    if untested:
        print(f"correctness not shown, no test ran: {', '.join(untested)}")


def main(argv):
    """See the header."""
    if argv[:1] == ["--begin"] and len(argv) > 2:
        return begin(Path(argv[1]), argv[2:])
    if len(argv) != 1 or argv[0].startswith("-"):
        print(__doc__)
        return DONE if argv in (["-h"], ["--help"]) else 2
    run = Path(argv[0])
    settings = read_json(run / "ab.json")
    if not isinstance(settings, dict) or not {"ops", "repo", "rounds", "switch", "off", "on"} <= set(settings):
        raise UserError(f"{run / 'ab.json'}: missing or cut; name a run directory of ab_test.sh")
    if os.environ.get("BAND") or os.environ.get("NOISE"):
        settings |= {"band": os.environ.get("BAND"), "noise": os.environ.get("NOISE")}
    settings["band"] = parse_band(settings["band"]) if settings.get("band") else None
    pairs = [pair for op in settings["ops"].split(",") for pair in summarize_op(run, settings, op)]
    rows = list(correct_rows(pairs))
    write_csv(rows, run / "ab.csv")
    print_table(rows, settings)
    print(f"{run / 'ab.csv'}")
    return BAD_RESULT if any(r.verdict in ("slower", "invalid") for r in rows) else DONE


if __name__ == "__main__":
    run_main(main)
