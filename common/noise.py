"""noise.py - what a machine's times are worth: spread within and between processes, false alarms, a noise band.

One op is measured N times in fresh processes, nothing changed: an A/A study (aa_study.py). Processes are the unit, not
samples. In mirrored order a b b a a b ... two neighbours make a pair; a pair's log ratio is ln(b/a). Under no change
every pair could as well have been swapped, so a verdict is asked for each of the 2^(n-1) ways to swap n pairs:

    within    interquartile range of one process' samples, over their median      (median over the processes)
    between   standard deviation of the processes' medians, over their mean
    alarms    share of the ways in which the pairs' t interval leaves out 1, at a nominal 5 %
    effect    the 95th percentile of |exp(mean log ratio) - 1| over the ways: what N processes can be off by

The band is the 95th percentile of the rows' effects, rounded up to 0.1 %: below it a ratio is "the same" on this
machine, by this timer, from as many processes. noise.json holds one entry per timer and cache state:

    {"schema": 1, "device": "NVIDIA H200", "processes": 6, "created": "...",
     "timers": {"graph cold": {"rows": 48, "within": 0.0004, "between": 0.0021, "between_p95": 0.006, "alarms": 0.048,
                               "verdicts": 0.0, "band": 0.004}}}

Requirements: the standard library; scipy for verdicts. Limits: fewer than 4 processes show no verdict.
"""
import itertools
import math
import statistics
from dataclasses import dataclass

from common.errors import INTEGRITY, REFUSED, UserError
from common.state import SCHEMA, read_json

BAND_STEP = 0.001


@dataclass(frozen=True)
class Series:
    """One figure over the processes, in their order. times in ms, None where a process has none; spreads as shares."""
    op: str
    dtype: str
    detail: str
    column: str
    timer: str
    cache: str
    times: tuple
    spreads: tuple

    @property
    def method(self):
        return f"{self.timer} {self.cache}"


@dataclass(frozen=True)
class Spread:
    """What a Series says; None where it has too few times. `alarms` and `verdicts` are shares of the ways to swap."""
    median_ms: float | None
    processes: int
    within: float | None = None
    between: float | None = None
    range: float | None = None
    alarms: float | None = None
    verdicts: float | None = None
    effect: float | None = None


def summarize_series(series, band):
    """Spread of one Series; `band` is what the verdicts are held against."""
    times = [t for t in series.times if t is not None and math.isfinite(t) and t > 0]
    if not times:
        return Spread(None, 0)
    within = [s for s in series.spreads if s is not None and math.isfinite(s)]
    found = {"median_ms": statistics.median(times), "processes": len(times),
             "within": statistics.median(within) if within else None}
    if len(times) < 2:
        return Spread(**found)
    found |= {"between": statistics.stdev(times) / statistics.mean(times),
              "range": (max(times) - min(times)) / found["median_ms"]}
    pairs = list_pairs(series.times)
    if len(pairs) < 2:
        return Spread(**found)
    return Spread(**found, **ask_all_swaps(pairs, band))


def list_pairs(times):
    """[(a, b)] of neighbours whose times are both there, in the mirrored order a b b a a b ..."""
    pairs = []
    for number, (first, second) in enumerate(zip(times[::2], times[1::2])):
        if all(t is not None and math.isfinite(t) and t > 0 for t in (first, second)):
            pairs.append((first, second) if number % 2 == 0 else (second, first))
    return pairs


def ask_all_swaps(pairs, band):
    """{alarms, verdicts, effect} over the ways to swap a and b within the pairs (the first stays: mirror images agree)."""
    from common.verdict import LEVEL, compare_sides
    results = []
    for swaps in itertools.product((False, True), repeat=len(pairs) - 1):
        ways = [pair[::-1] if swap else pair for pair, swap in zip(pairs, (False, *swaps))]
        results.append(compare_sides([a for a, _ in ways], [b for _, b in ways], band))
    return {"alarms": sum(r.p_value < 1 - LEVEL for r in results) / len(results),
            "verdicts": sum(r.verdict in ("faster", "slower") for r in results) / len(results),
            "effect": find_percentile([abs(r.ratio - 1) for r in results], 0.95)}


def find_percentile(values, share):
    """The smallest of `values` that at least `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def summarize_methods(found):
    """{method: {...}} as in noise.json, of [(Series, Spread)]. A method without two processes anywhere is left out."""
    methods = {}
    for series, spread in found:
        if spread.between is not None:
            methods.setdefault(series.method, []).append(spread)
    return {method: summarize_method(spreads) for method, spreads in sorted(methods.items())}


def summarize_method(spreads):
    def over(name, combine):
        values = [value for s in spreads if (value := getattr(s, name)) is not None]
        return combine(values) if values else None

    effect = over("effect", lambda values: find_percentile(values, 0.95))
    return {"rows": len(spreads), "within": over("within", statistics.median), "between": over("between", statistics.median),
            "between_p95": over("between", lambda values: find_percentile(values, 0.95)),
            "alarms": over("alarms", statistics.mean), "verdicts": over("verdicts", statistics.mean),
            "band": None if effect is None else round(math.ceil(round(effect / BAND_STEP, 6)) * BAND_STEP, 6)}


def parse_band(text):
    """The share that a user's BAND says. UserError if it is none."""
    try:
        band = float(text)
    except ValueError:
        band = 0.0
    if not 0 < band < 1:
        raise UserError(f"BAND: {text}: give a share, as BAND=0.02")
    return band


def read_band(path, device, timer, cache):
    """The noise band (0.004 is 0.4 %) that a study at `path` (noise.json, or its directory) found for this timer.

    UserError: INTEGRITY if it is no such file, REFUSED if it is of another device or lacks the timer.
    """
    return _read_method(path, device, timer, cache, "band")


def read_single_band(path, device, timer, cache, rows):
    """As read_band, but for one process against one: none of `rows` rows exceeds it by chance in 95 of 100 comparisons.

    Two processes' medians differ by sqrt(2) of the spread between processes; the noisiest rows' is taken (between_p95),
    and Bonferroni's share of 5 % for each row.
    """
    spread = _read_method(path, device, timer, cache, "between_p95")
    return spread * math.sqrt(2) * statistics.NormalDist().inv_cdf(1 - 0.05 / 2 / max(rows, 1))


def _read_method(path, device, timer, cache, figure):
    path = path / "noise.json" if path.is_dir() else path
    noise = read_json(path)
    if not isinstance(noise, dict) or noise.get("schema") != SCHEMA or not isinstance(noise.get("timers"), dict):
        raise UserError(f"{path}: is no noise.json of this version; make one: make aa OPS=...", INTEGRITY)
    if noise.get("device") != device:
        raise UserError(f"{path}: made on {noise.get('device')}, this is {device}; make one here: make aa OPS=...", REFUSED)
    entry = noise["timers"].get(f"{timer} {cache}")
    if isinstance(entry, dict) and entry.get(figure) is None:
        raise UserError(f"{path}: too few processes for a band of timer {timer} with {cache} L2; "
                        "make one of 4 or more: make aa PROCESSES=6 OPS=...", REFUSED)
    found = (entry or {}).get(figure)
    if found is None:
        known = ", ".join(noise["timers"]) or "nothing at all"
        raise UserError(f"{path}: says nothing of timer {timer} with {cache} L2 ({known}); "
                        f"make one: make aa TIMERS={timer} CACHE={cache} OPS=...", REFUSED)
    return found
