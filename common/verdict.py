"""verdict.py - faster, slower, same, or not to be said: two sides compared over fresh processes.

The unit of replication is a process, not a sample (MEASURING: with samples, identical code is called different in
50 to 78 of 100 cases at a nominal 5 %). Round i gives one figure per side, measured next to each other; the pairs'
log ratios carry the verdict:

    d_i = ln(candidate_i / base_i)          i = 1..n rounds
    ratio     exp(mean d)                   below 1: the candidate is faster
    interval  exp(mean d +- t * s / sqrt n)     Student's t with n-1 degrees of freedom
    MDE       (t_level + t_power) * s / sqrt n  the smallest |ln ratio| that these rounds would have shown
    s         at least what rounding the times to `step` makes it: equal figures are no proof of no noise
    shift     what the launch gap may have done (find_gap_shift): the interval and the MDE are wider by it on either side,
              and d is tested for what it exceeds it by

      verdict    when
      invalid    a figure is missing, zero, negative or not finite, or the caller says so
      same       the whole interval lies inside 1 +- band
      faster     significant, and the ratio lies below the band
      slower     significant, and the ratio lies above the band
      ambiguous  anything else; the reason says what was lacking

Over many rows the caller corrects the p-values first (adjust_bh over the planned rows) and passes them on.
Requirements: scipy. Limits: pure functions, no input or output.
"""
import math
from dataclasses import dataclass, replace

from scipy.special import stdtr, stdtrit  # scipy.stats takes a second to import

LEVEL, POWER = 0.95, 0.80
GAP_NOISE = 0.05  # of a launch gap, as the timer has it (plugins/graph_timer/gap.py)


@dataclass(frozen=True)
class Comparison:
    """Figures are ratios of times (candidate over base; below 1 is faster); `mde` is a relative effect, 0.02 is 2 %."""
    verdict: str
    reason: str
    rounds: int
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    mde: float | None = None
    p_value: float | None = None
    shift: float = 0.0


def find_gap_shift(latencies_ms, launches):
    """By how much the launch gap alone could set these times of one row apart, as a share of the shortest; 0 where it is unknown.

    It is measured with each figure, and moves between levels 0.18 us apart on an H200: a tenth of a kernel of 1.7 us. A
    call holds it as often as it launches: `launches` are (gap in us, launches of a call), or None.
    """
    known = [launch for launch in launches if launch is not None]
    gaps, nodes = [gap for gap, _ in known] or [0.0], [number for _, number in known] or [0.0]
    moved = max(gaps) - min(gaps)
    return max(nodes) * moved / (1e3 * min(latencies_ms)) if moved > GAP_NOISE * min(gaps) else 0.0


def compare_sides(base, candidate, band, level=LEVEL, shift=0.0, step=0.0):
    """Compare per-process times (any unit) of equal length, paired by round. `band` 0.02 means within 2 % is the same, and
    `step` is what the times are rounded to.

    Never raises for a figure: one that is no time makes the row invalid.
    """
    if len(base) != len(candidate) or not base:
        return Comparison("invalid", f"{len(base)} base and {len(candidate)} candidate figures", min(len(base), len(candidate)))
    wrong = [x for x in (*base, *candidate) if x is None or not math.isfinite(x) or x <= 0]
    if wrong:
        return Comparison("invalid", f"{wrong[0]} is no time", len(base))
    logs = [math.log(c / b) for b, c in zip(base, candidate)]
    rounds, mean = len(logs), math.fsum(logs) / len(logs)
    if rounds < 2:
        return Comparison("ambiguous", "one round shows no spread; ask for 2 or more", rounds, ratio=math.exp(mean))
    rounding = step / min(*base, *candidate)  # of a difference: the variance of two roundings, step^2 / 12 each
    error = math.sqrt(max(math.fsum((x - mean) ** 2 for x in logs) / (rounds - 1), rounding**2 / 6) / rounds)
    t_level = float(stdtrit(rounds - 1, (1 + level) / 2))
    t_power = float(stdtrit(rounds - 1, POWER))
    excess, half_width = max(0.0, abs(mean) - shift), t_level * error + shift
    p_value = 2 * stdtr(rounds - 1, -excess / error) if error else float(excess == 0)
    figures = Comparison("", "", rounds, math.exp(mean), math.exp(mean - half_width), math.exp(mean + half_width),
                         math.expm1((t_level + t_power) * error + shift), float(p_value), shift)
    return decide(figures, band, 1 - level)


def decide(figures, band, alpha):
    """Verdict and reason for a Comparison that has its figures; `alpha` is what its p-value is held against."""
    low, high = 1 / (1 + band), 1 + band
    if low <= figures.low and figures.high <= high:
        return replace(figures, verdict="same", reason=f"interval inside {band:.1%}")
    significant = figures.p_value < alpha
    launch = f", {figures.shift:.1%} of it for a launch gap that moved" if figures.shift else ""
    if significant and figures.ratio < low:
        return replace(figures, verdict="faster", reason=f"p={figures.p_value:.2g}")
    if significant and figures.ratio > high:
        return replace(figures, verdict="slower", reason=f"p={figures.p_value:.2g}")
    if significant:
        return replace(figures, verdict="ambiguous", reason=f"a difference, but not beyond the band of {band:.1%}")
    why = f"effects below {figures.mde:.1%} cannot be seen in {figures.rounds} rounds{launch}"
    return replace(figures, verdict="ambiguous", reason=why)


def adjust_bh(p_values, planned=None):
    """Benjamini-Hochberg: adjusted p-values, in order; None stays None.

    `planned` is the number of rows that were to be tested (default: all given), so that rows which fell out do not
    make the rest easier. (Benjamini and Hochberg 1995, J. R. Stat. Soc. B 57, step-up procedure.)
    """
    return _step(p_values, planned, lambda rank, count: count / rank, smallest_first=False)


def adjust_holm(p_values, planned=None):
    """Holm: adjusted p-values for the family-wise claim "this op regressed". (Holm 1979, Scand. J. Stat. 6.)"""
    return _step(p_values, planned, lambda rank, count: count - rank + 1, smallest_first=True)


def _step(p_values, planned, factor, smallest_first):
    """Multiply the rank-th smallest p-value by factor(rank, count), monotone from the smallest up or the largest down."""
    order = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    count = max(planned or len(p_values), len(order))
    scaled = [(min(1.0, p * factor(rank, count)), i) for rank, (p, i) in enumerate(order, 1)]
    adjusted, worst = [None] * len(p_values), 0.0 if smallest_first else 1.0
    for p, i in scaled if smallest_first else reversed(scaled):
        worst = max(worst, p) if smallest_first else min(worst, p)
        adjusted[i] = worst
    return adjusted
