"""timing.py - the times of a campaign as ratios, and what its own noise allows to say: pure.

Times: {(round, replicate): {row: {cell: ms}}} per task; a row is one line of the benchmark's tables. A (round,
replicate) is one fresh process per cell: the unit of replication. With d = ln(candidate / off), p = ln(mask0 / off):

    placebo     p is the noise, for off and mask0 are the same code
    null rows   d of the tasks whose binaries are the same in off and candidate: their share with p-value < 1 - level
                is the false-alarm rate that is published; beyond twice the nominal level (and more than one alarm, for
                one among few says nothing) no time of the campaign is trusted
    shifts      {row: share}: by how much the launch gap, which was measured with each row, could set its cells apart. It
                may be the same in all processes, so their number does not make it less: a row is tested for what d
                exceeds it by, its noise is what p exceeds it by, and interval and MDE are wider by it on either side
    sigma       of one row: some rows are steady and some are not (a kernel of 2 us, data-dependent work), and a few
                processes do not tell which. So a row's variance (its own placebo about 0, its own spread over the
                processes) is moderated by that of all rows, as Smyth (2004, Stat. Appl. Genet. Mol. Biol. 3, section 3)
                does for genes: a weighted mean, whose degrees of freedom grow by as many as the rows' variances
                are alike. (One pooled sigma called 3 of 28 null rows changed: campaign/results.) min_noise, what the timer
                resolves, is the least of a variance.
    interval    exp(mean d +- (t x sigma / sqrt n + shift))     MDE  (t_level + t_power) x sigma / sqrt n + shift
                t has sigma's degrees of freedom
    rows        p-values of the rows with both rounds, Benjamini-Hochberg over all planned rows
    task        geometric mean over its rows, per round. Rows of one process share its luck, so their number does not
                narrow the task's interval; its sigma is moderated by the other tasks'. A round is faster or slower if
                its ratio leaves the band and exceeds the task's own placebo, and its rows' mean shift and t x sigma.

Requirements: scipy. Limits: no input or output.
"""
import math
import statistics
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize
from scipy.special import betaln, fdtr, stdtr, stdtrit

from campaign.classify import Timing
from common.verdict import adjust_bh

POWER = 0.80
LEAST_FREEDOM = 0.1
MOST_LOG = 700.0  # exp() of more overflows: an interval that wide says nothing anyhow


@dataclass(frozen=True)
class Rules:
    """Thresholds of the manifest: `band` 0.01 is 1 %, `min_noise` likewise, `level` 0.95."""
    band: float
    level: float
    min_noise: float


@dataclass(frozen=True)
class Noise:
    """The campaign's own noise; sigmas are in log ratio, each with the degrees of freedom that it adds to a row's or a
    task's own. `alarm_rate` None: no null rows."""
    row_sigma: float
    row_freedom: float
    task_sigma: float
    task_freedom: float
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
    rows = [find_variance(*row) for task, times in times_by_task.items() for _, *row in list_rows(times, shifts_by_task[task])]
    tasks = [find_task_variance(times, shifts_by_task[task]) for task, times in times_by_task.items()]
    base = Noise(*fit_prior(rows, rules.min_noise), *fit_prior(tasks, rules.min_noise), len(placebo),
                 statistics.fmean(placebo) if placebo else 0.0, 0, None, None, 0, None, False)
    found = [(row, logs) for task in sorted(identical & times_by_task.keys())
             for row, logs in judge_rows(times_by_task[task], base, rules, shifts_by_task[task])]
    alarms = sum(row.p_value < 1 - rules.level for row, _ in found)
    nulls = [log for _, logs in found for log in logs]
    rate = alarms / len(found) if found else None
    is_usable = len(placebo) > 1 and not (alarms > 1 and rate > 2 * (1 - rules.level))
    return replace(base, null_rows=len(found), null_bias=statistics.fmean(nulls) if nulls else None,
                   null_sigma=statistics.stdev(nulls) if len(nulls) > 1 else None,
                   alarms=alarms, alarm_rate=rate, is_usable=is_usable)


def find_variance(placebo, logs, shift):
    """(variance, degrees of freedom) of the log ratios `logs`, whose placebo varies about 0 by more than `shift`."""
    mean, freedom = statistics.fmean(logs), len(placebo) + len(logs) - 1
    return (sum(max(0.0, abs(log) - shift) ** 2 for log in placebo) + sum((log - mean) ** 2 for log in logs)) / freedom, freedom


def fit_prior(variances, least):
    """(sigma, degrees of freedom) of what [(variance, degrees of freedom), ...] have in common.

    A variance over sigma squared follows F(its freedom, the prior's) if the true ones scatter as Smyth (2004, section 3)
    supposes. Both by maximum likelihood; of what is below `least` squared only that is known. No more freedom than all
    together have; none (nothing in common) from fewer than two.
    """
    if len(variances) < 2:
        return least, 0.0
    found, own = np.array(variances, dtype=float).T
    known, total = found > least ** 2, float(own.sum())
    if not known.any():
        return least, total

    def find_misfit(point):
        scale, freedom = math.exp(2 * point[0]), math.exp(point[1])
        x, n = found[known] / scale, own[known]
        density = (n / 2 * np.log(n / freedom) + (n / 2 - 1) * np.log(x) - (n + freedom) / 2 * np.log1p(n * x / freedom)
                   - betaln(n / 2, freedom / 2) - 2 * point[0])
        return -density.sum() - np.log(np.maximum(fdtr(own[~known], freedom, least ** 2 / scale), 1e-300)).sum()

    bounds = [(math.log(least), math.log(found.max()) / 2), (math.log(LEAST_FREEDOM), math.log(total))]
    start = [max(bounds[0][0], math.log(np.median(found[known])) / 2), math.log(min(4.0, total))]
    sigma, freedom = np.exp(minimize(find_misfit, start, method="Nelder-Mead", bounds=bounds).x)
    return float(f"{sigma:.3g}"), float(f"{freedom:.3g}")  # what verify finds anew, with whatever SciPy


def moderate(found, sigma, freedom, least):
    """(sigma, degrees of freedom) of one row or task: its own `found` (variance, freedom) with those of the prior."""
    variance, own = found
    together = own + freedom
    return math.sqrt((own * max(variance, least ** 2) + freedom * sigma ** 2) / together), together


# Rows --------------------------------------------------------------------------------------------------------------


def list_rows(times, shifts):
    """[(row, its placebo, its log ratios, its shift)] of a task."""
    placebos = list_logs(times, "mask0")
    return [(row, placebos[row], logs, shifts.get(row, 0.0)) for row, logs in list_logs(times, "candidate").items()]


def judge_rows(times, noise, rules, shifts):
    """[(RowTiming, its log ratios)] of a task, not corrected."""
    return [(judge_row(row, placebo, logs, shift, noise, rules), logs) for row, placebo, logs, shift in list_rows(times, shifts)]


def judge_row(row, placebo, logs, shift, noise, rules):
    sigma, freedom = moderate(find_variance(placebo, logs, shift), noise.row_sigma, noise.row_freedom, rules.min_noise)
    mean, error = statistics.fmean(logs), sigma / math.sqrt(len(logs))
    p_value = 2 * float(stdtr(freedom, -max(0.0, abs(mean) - shift) / error))
    return RowTiming(row, len(logs), math.exp(mean), *find_bounds(mean, error, shift, freedom, rules.level),
                     math.exp(statistics.fmean(placebo)), p_value, shift)


def find_bounds(mean, error, shift, freedom, level):
    """(low, high, MDE) as ratios, MDE as a share, of a mean log ratio with its standard error."""
    half_width = find_reach(error, freedom, level) + shift
    mde = half_width + float(stdtrit(freedom, POWER)) * error
    return math.exp(mean - half_width), math.exp(min(mean + half_width, MOST_LOG)), math.expm1(min(mde, MOST_LOG))


def find_reach(error, freedom, level):
    """How far from 0 chance takes what has this standard error: two-sided t of `level`."""
    return float(stdtrit(freedom, (1 + level) / 2)) * error


def adjust_rows(rows_by_task, planned):
    """{task: [RowTiming]} with Benjamini-Hochberg over `planned` rows; given are those with both rounds."""
    flat = [(task, row) for task, rows in sorted(rows_by_task.items()) for row in rows]
    adjusted = adjust_bh([row.p_value for _, row in flat], planned)
    found = {task: [] for task in rows_by_task}
    for (task, row), value in zip(flat, adjusted):
        found[task].append(replace(row, adjusted=value))
    return found


# Tasks -------------------------------------------------------------------------------------------------------------


def find_task_variance(times, shifts):
    """(variance, degrees of freedom) of a task's mean over its rows."""
    return find_variance(list_task_logs(times, "mask0"), list_task_logs(times, "candidate"), find_task_shift(times, shifts))


def find_task_shift(times, shifts):
    return statistics.fmean(shift for *_, shift in list_rows(times, shifts))


def judge_task(times, rows, noise, rules, shifts):
    """Timing of a task with both rounds; `rows` are its corrected RowTimings."""
    shift = find_task_shift(times, shifts)
    sigma, freedom = moderate(find_task_variance(times, shifts), noise.task_sigma, noise.task_freedom, rules.min_noise)
    logs = list_task_logs(times, "candidate")
    per_round = {round_: list_task_logs(times, "candidate", (round_,)) for round_ in ("a", "b")}
    reach = find_reach(sigma, freedom, rules.level)
    directions = [find_round_direction(each, list_task_logs(times, "mask0", (round_,)), shift, reach, rules)
                  for round_, each in per_round.items()]
    standing = [row for row in rows if row.adjusted is not None and row.adjusted < 1 - rules.level]
    return Timing("ok", "", *(math.exp(statistics.fmean(each)) for each in per_round.values()),
                  *find_bounds(statistics.fmean(logs), sigma / math.sqrt(len(logs)), shift, freedom, rules.level), *directions,
                  sum(row.ratio < 1 / (1 + rules.band) for row in standing), sum(row.ratio > 1 + rules.band for row in standing))


def find_round_direction(logs, placebo, shift, reach, rules):
    """faster, slower, or "" where the round's ratio lies inside the band, its own placebo, or the launch's and `reach`, the
    noise of one process."""
    mean = statistics.fmean(logs)
    least = max(math.log1p(rules.band), abs(statistics.fmean(placebo)), shift + reach / math.sqrt(len(logs)))
    if abs(mean) <= least:
        return ""
    return "faster" if mean < 0 else "slower"
