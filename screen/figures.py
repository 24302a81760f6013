"""From the results of a run to its figures: the rows of summary.csv, and one group per op and dtype.

A group never mixes what must not be compared: mode, level, timer, cache and attempt are part of its
key. A ratio is Torch latency / Gems latency, above 1 where Gems is faster; it is averaged by geometric
mean and stands beside the number of rows it rests on; rows that failed are counted, never dropped.
On the host device times are no times: no ratio, no TFLOPS, no bandwidth; the cells are empty, never 0.
Requirements: the standard library.
"""

import csv
import io
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Optional

from common.outcome import STATUSES
from common.state import SCHEMA

SUMMARY_COLUMNS = ("schema", "repo", "op", "status", "dtype", "mode", "level", "timer", "cache", "shape",
                   "latency_base_ms", "latency_ms", "speedup", "host_us", "tflops", "gbps_base", "gbps",
                   "row_status", "attempt", "fallback", "device", "reason")


@dataclass
class Group:
    """The rows of one op and dtype, measured in one way. geomean is None without a ratio."""
    result: object
    dtype: str
    mode: str
    level: str
    timer: str
    cache: str
    statuses: Counter = field(default_factory=Counter)
    ratios: list = field(default_factory=list)

    @property
    def rows(self):
        return sum(self.statuses.values())

    @property
    def bad(self):
        return self.rows - self.statuses["SUCCESS"]

    @property
    def geomean(self) -> Optional[float]:
        return math.exp(math.fsum(map(math.log, self.ratios)) / len(self.ratios)) if self.ratios else None

    @property
    def method(self):
        """How it was measured, `kernel core do_bench cold`; "" where no table says it."""
        return " ".join(dict.fromkeys(filter(None, (self.mode, self.level, self.timer, self.cache))))


def list_summary_rows(results):
    """The rows of summary.csv as tuples in SUMMARY_COLUMNS' order; an op without a table has one row."""
    rows = []
    for result in results:
        head = (SCHEMA, result.repo, result.op, result.status)
        tail = (result.attempt, result.fallback, result.device)
        header, is_host = result.log.header, result.is_host
        if not result.log.rows:
            rows.append(head + find_run_method(result) + ("",) * 9 + tail + (add_force(header, result.reason),))
        for row in result.log.rows:
            shape = row.shape if row.op_name == result.op else f"{row.op_name}: {row.shape}"
            ratios = (None,) * 5 if is_host else (row.speedup, row.host_us, row.tflops, row.gbps_base, row.gbps)
            rows.append(head + (row.dtype, row.mode, row.level, *find_method(result, row), shape, row.latency_base_ms,
                                row.latency_ms) + ratios + (row.status,) + tail
                        + (add_force(header, row.reason or result.reason),))
    return rows


def find_run_method(result):
    """(dtype, mode, level, timer, cache) of an op without a row: what the run was asked for; tests are not timed."""
    header = result.log.header
    if result.is_tests:
        return "", "tests", "", "", ""
    return "", header.get("mode", ""), header.get("level", ""), result.timer, result.cache


def add_force(header, reason):
    """`reason`, and that the run replayed a record which does not fit (REPLAY_FORCE=1), if it did."""
    is_forced = header.get("replay_from") and "forced" in header.get("replay", "").split()
    return "; ".join(filter(None, (f"replay forced from {header['replay_from']}" if is_forced else "", reason)))


def find_method(result, row):
    """(timer, cache) of one row: what the row says, else what the run was asked for."""
    return row.timer or result.timer, result.cache if result.is_host else row.cache or result.cache


def format_summary_csv(rows):
    """summary.csv's text. None is an empty cell; a float is written so that it reads back equal."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(SUMMARY_COLUMNS)
    writer.writerows(rows)
    return stream.getvalue()


def group_rows(results):
    """The Groups of `results` in table order; an op without a table is one group of 0 rows."""
    groups = []
    for result in results:
        own = {}
        for row in result.log.rows:
            key = row.dtype, row.mode, row.level, *find_method(result, row)
            group = own.get(key) or own.setdefault(key, Group(result, *key))
            group.statuses[row.status] += 1
            if row.speedup is not None and not result.is_host:
                group.ratios.append(row.speedup)
        groups += own.values() or [Group(result, *find_run_method(result))]
    return groups


def count_statuses(results):
    """{status: number of ops} in the order of STATUSES, without those that do not occur."""
    counts = Counter(result.status for result in results)
    return {status: counts[status] for status in STATUSES if counts[status]}
