"""timing.py - the times of a campaign as ratios, and what its own noise allows to say: pure.

Times: {(round, replicate): {row: {cell: ms}}} per task; a row is one line of the benchmark's tables. A (round,
replicate) is one fresh process per cell: the unit of replication. With d = ln(candidate / off), p = ln(mask0 / off):

    placebo     p, over all rows of the campaign, is the noise: off and mask0 are the same code
    null rows   d of the tasks whose binaries are the same in off and candidate: their share with p-value < 1 - level
                is the false-alarm rate that is published; beyond twice the nominal level (and more than one alarm, for
                one among few says nothing) no time of the campaign is trusted
    shifts      {row: share}: by how much the launch gap, which was measured with each row, could set its cells apart. It
                may be the same in all processes, so their number does not make it less: a row is tested for what d
                exceeds it by, and interval and MDE are wider by it on either side
    sigma       of one row: the largest of the pooled placebo (1.4826 x median |p|: a few wild rows must not blind the
                rest), the row's own placebo (rms: a wild row must blind itself), the row's own spread over processes,
                and min_noise (what the timer resolves)
    interval    exp(mean d +- (t x sigma / sqrt n + shift))     MDE  (t_level + t_power) x sigma / sqrt n + shift
    rows        p-values of the rows with both rounds, Benjamini-Hochberg over all planned rows
    task        geometric mean over its rows, per round. Rows of one process share its luck, so their number does not
                narrow the task's interval. A round is faster or slower if its ratio leaves the band and exceeds the
                task's own placebo, and its rows' mean shift and t x sigma in that round.

Requirements: scipy. Limits: no input or output.
"""
import math
import statistics
from dataclasses import dataclass, replace

from scipy.special import stdtr, stdtrit

from campaign.classify import Timing
from common.verdict import adjust_bh

POWER = 0.80


@dataclass(frozen=True)
class Rules:
    """Thresholds of the manifest: `band` 0.01 is 1 %, `min_noise` likewise, `level` 0.95."""
    band: float
    level: float
    min_noise: float


@dataclass(frozen=True)
class Noise:
    """The campaign's own noise; sigmas are in log ratio. `alarm_rate` None: no null rows."""
    row_sigma: float
    task_sigma: float
    placebo_rows: int
    placebo_bias: float
    null_rows: int
    null_bias: float | None
    null_sigma: float | None
    alarms: int
    alarm_rate: float | None
    is_usable: bool


@dataclass(frozen=True)
class RowTiming:
    """One row over all its processes; `p_value` is not corrected, `adjusted` is (None where round b lacks)."""
    row: str
    processes: int
    ratio: float
    low: float
    high: float
    mde: float
    placebo: float
    p_value: float
    shift: float = 0.0
    adjusted: float | None = None


def list_logs(times, cell, rounds=("a", "b")):
    """{row: [ln(cell / off), ...]} over the processes of `rounds`, in order."""
    logs = {}
    for (round_, _), rows in sorted(times.items()):
        for row, cells in rows.items():
            if round_ in rounds:
                logs.setdefault(row, []).append(math.log(cells[cell] / cells["off"]))
    return logs


def list_task_logs(times, cell, rounds=("a", "b")):
    """[mean over the rows of ln(cell / off)], one per process."""
    return [statistics.fmean(math.log(cells[cell] / cells["off"]) for cells in rows.values())
            for (round_, _), rows in sorted(times.items()) if round_ in rounds and rows]


# Noise -------------------------------------------------------------------------------------------------------------


def measure_noise(times_by_task, identical, rules, shifts_by_task):
    """Noise of a campaign. `identical`: the tasks whose binaries are the same in off and candidate."""
    placebo = [log for times in times_by_task.values() for logs in list_logs(times, "mask0").values() for log in logs]
    tasks = [log for times in times_by_task.values() for log in list_task_logs(times, "mask0")]
    row_sigma, task_sigma = (max(rules.min_noise, find_robust_sigma(logs)) for logs in (placebo, tasks))
    base = Noise(row_sigma, task_sigma, len(placebo), statistics.fmean(placebo) if placebo else 0.0,
                 0, None, None, 0, None, False)
    found = [(row, logs) for task in sorted(identical & times_by_task.keys())
             for row, logs in judge_rows(times_by_task[task], base, rules, shifts_by_task[task])]
    alarms = sum(row.p_value < 1 - rules.level for row, _ in found)
    nulls = [log for _, logs in found for log in logs]
    rate = alarms / len(found) if found else None
    is_usable = len(placebo) > 1 and not (alarms > 1 and rate > 2 * (1 - rules.level))
    return Noise(row_sigma, task_sigma, base.placebo_rows, base.placebo_bias, len(found),
                 statistics.fmean(nulls) if nulls else None, find_robust_sigma(nulls) if nulls else None, alarms, rate,
                 is_usable)


def find_robust_sigma(logs):
    """1.4826 x median of |log|: the standard deviation about 0 of a normal distribution, blind to a few wild values."""
    return 1.4826 * statistics.median(map(abs, logs)) if logs else 0.0


def find_rms(logs):
    return math.sqrt(statistics.fmean(log * log for log in logs)) if logs else 0.0


# Rows --------------------------------------------------------------------------------------------------------------


def judge_rows(times, noise, rules, shifts):
    """[(RowTiming, its log ratios)] of a task, not corrected."""
    placebos = list_logs(times, "mask0")
    return [(judge_row(row, logs, placebos[row], noise, rules, shifts.get(row, 0.0)), logs) for row, logs in list_logs(times, "candidate").items()]


def judge_row(row, logs, placebo, noise, rules, shift):
    sigma = max(noise.row_sigma, find_rms(placebo), statistics.stdev(logs) if len(logs) > 1 else 0.0)
    mean, error = statistics.fmean(logs), sigma / math.sqrt(len(logs))
    t_level, t_power, tail = find_quantiles(noise.placebo_rows - 1, rules.level)
    half_width, excess = t_level * error + shift, max(0.0, abs(mean) - shift)
    return RowTiming(row, len(logs), math.exp(mean), math.exp(mean - half_width), math.exp(mean + half_width),
                     math.expm1((t_level + t_power) * error + shift), math.exp(statistics.fmean(placebo)), 2 * tail(excess / error), shift)


def find_quantiles(freedom, level):
    """(two-sided t of `level`, one-sided t of POWER, upper tail function) for `freedom` degrees of freedom."""
    freedom = max(1, freedom)
    return (float(stdtrit(freedom, (1 + level) / 2)), float(stdtrit(freedom, POWER)),
            lambda value: float(stdtr(freedom, -value)))


def adjust_rows(rows_by_task, planned):
    """{task: [RowTiming]} with Benjamini-Hochberg over `planned` rows; given are those with both rounds."""
    flat = [(task, row) for task, rows in sorted(rows_by_task.items()) for row in rows]
    adjusted = adjust_bh([row.p_value for _, row in flat], planned)
    found = {task: [] for task in rows_by_task}
    for (task, row), value in zip(flat, adjusted):
        found[task].append(replace(row, adjusted=value))
    return found


# Tasks -------------------------------------------------------------------------------------------------------------


def judge_task(times, rows, noise, rules, shifts):
    """Timing of a task with both rounds; `rows` are its corrected RowTimings."""
    logs, placebo = list_task_logs(times, "candidate"), list_task_logs(times, "mask0")
    shift = statistics.fmean(shifts.get(row.row, 0.0) for row in rows)
    sigma = max(noise.task_sigma, find_rms(placebo), statistics.stdev(logs) if len(logs) > 1 else 0.0)
    t_level, t_power, _ = find_quantiles(noise.placebo_rows - 1, rules.level)
    mean, error = statistics.fmean(logs), sigma / math.sqrt(len(logs))
    per_round = {round_: list_task_logs(times, "candidate", (round_,)) for round_ in ("a", "b")}
    directions = {round_: find_round_direction(per_round[round_], list_task_logs(times, "mask0", (round_,)), shift, noise, t_level, rules)
                  for round_ in ("a", "b")}
    standing = [row for row in rows if row.adjusted is not None and row.adjusted < 1 - rules.level]
    return Timing("ok", "", *(math.exp(statistics.fmean(per_round[r])) for r in ("a", "b")), math.exp(mean - t_level * error - shift),
                  math.exp(mean + t_level * error + shift), math.expm1((t_level + t_power) * error + shift), directions["a"], directions["b"],
                  sum(row.ratio < 1 / (1 + rules.band) for row in standing), sum(row.ratio > 1 + rules.band for row in standing))


def find_round_direction(logs, placebo, shift, noise, t_level, rules):
    """faster, slower, or "" where the round's ratio lies inside the band, its own placebo, the launch's, or the pooled noise."""
    mean = statistics.fmean(logs)
    least = max(math.log1p(rules.band), abs(statistics.fmean(placebo)), shift + t_level * noise.task_sigma / math.sqrt(len(logs)))
    if abs(mean) <= least:
        return ""
    return "faster" if mean < 0 else "slower"
