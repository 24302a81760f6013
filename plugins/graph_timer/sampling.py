"""sampling.py - when to stop sampling, and which times are no times. Pure: numbers in, numbers out.

All times of one block are samples of the same thing, kept in the order they were taken; outliers are named, never
dropped. The median speaks for the block.
"""
import math
import statistics
from dataclasses import dataclass

# No kernel is faster: an empty one takes about 0.8 us in a graph on the fastest cards of 2026.
FLOOR_MS = 0.0002
# No memory is faster: the fastest cards of 2026 write 8 TB/s.
CEILING_BYTES_PER_MS = 20e9
SETTLE_WINDOW = 3
SETTLE_SHARE = 0.01
DRIFT_SHARE = 0.02
OUTLIER_MADS = 8.0


@dataclass(frozen=True)
class Limits:
    """When one block has enough. Seconds are wall time; `half_width` is a share of the median."""
    min_samples: int = 10
    max_samples: int = 200
    seconds: float = 0.1
    half_width: float = 0.001
    settle_seconds: tuple = (0.02, 0.3)  # least and most; clocks rise under load, a kernel is up to 30 % slow before


@dataclass(frozen=True)
class Summary:
    """Median in ms; spread is the interquartile range, half_width that of the median's 95 % interval, as shares of it."""
    median: float
    spread: float
    half_width: float
    outliers: tuple


def find_stop(samples, seconds, limits):
    """Why to stop after `samples` that took `seconds`: spread, count or time; "" to go on."""
    if len(samples) >= limits.min_samples and summarize(samples).half_width <= limits.half_width:
        return "spread"
    if len(samples) >= limits.max_samples:
        return "count"
    if seconds >= limits.seconds and len(samples) >= min(3, limits.min_samples):
        return "time"
    return ""


def is_settled(times):
    """True if the last SETTLE_WINDOW times agree with those before them: the clocks have risen, the caches are filled."""
    if len(times) < 2 * SETTLE_WINDOW:
        return False
    last, before = times[-SETTLE_WINDOW:], times[-2 * SETTLE_WINDOW:-SETTLE_WINDOW]
    last, before = statistics.median(last), statistics.median(before)
    return abs(last - before) <= SETTLE_SHARE * before


def summarize(samples):
    """Summary of at least one sample.

    Half-width: 1.57 IQR / sqrt(n), the notch of McGill, Tukey and Larsen (1978).
    """
    median = statistics.median(samples)
    if len(samples) < 2 or median == 0:
        return Summary(median, 0.0, math.inf, ())
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    spread = (high - low) / abs(median)
    deviation = statistics.median(abs(x - median) for x in samples)
    edge = max(OUTLIER_MADS * deviation, SETTLE_SHARE * abs(median))
    outliers = tuple(i for i, x in enumerate(samples) if abs(x - median) > edge)
    return Summary(median, spread, 1.57 * spread / math.sqrt(len(samples)), outliers)


def find_drift(samples):
    """What the samples of one block do in its course, if that is more than their noise; else ""."""
    third = len(samples) // 3
    if third < 3:
        return ""
    first, last = statistics.median(samples[:third]), statistics.median(samples[-third:])
    noise = max(summarize(part).half_width for part in (samples[:third], samples[-third:]))
    if first <= 0 or abs(last / first - 1) <= max(DRIFT_SHARE, 2 * noise):
        return ""
    return f"the times moved by {last / first - 1:+.1%} while they were taken"


def find_fault(ms, written_bytes=0):
    """Why `ms` is no time of a call that wrote `written_bytes` to memory of its own, or ""."""
    if ms is None or not math.isfinite(ms):
        return f"{ms} ms is no time"
    if ms <= 0:
        return f"{ms:g} ms is no time"
    if ms < FLOOR_MS:
        return f"{ms * 1e6:.3g} ns is below what any launch takes ({FLOOR_MS * 1e6:g} ns)"
    if ms < written_bytes / CEILING_BYTES_PER_MS:
        return f"{ms:.3g} ms is too short to write {written_bytes / 2**20:.0f} MiB: not all of the work was timed"
    return ""
