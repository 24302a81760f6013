"""One record of upstream's benchmark table: its columns, its figures, its size detail.

Input, one line of a table and what its header says:

    SUCCESS               0.012300            0.024600               0.500          [torch.Size([64, 8])]

Output: Row(op_name, dtype, mode, level, shape="[torch.Size([64, 8])]", status="SUCCESS",
latency_base_ms=0.0123, latency_ms=0.0246, speedup=0.5, ...). common/runlog.py puts tables together.

A column is known by its header text. N/A is None, never 0.
Requirements: the standard library.
"""

import math
import re
from dataclasses import dataclass
from typing import Optional

# Upstream's column titles (benchmark/consts.py, BenchmarkResult.__str__) -> the Row field.
COLUMNS = {
    "torch latency (ms)": "latency_base_ms",
    "gems latency (ms)": "latency_ms",
    "gems speedup": "speedup",
    "tflops": "tflops",
    "torch gbps": "gbps_base",
    "gems gbps": "gbps",
}
FIXED = ("latency_base_ms", "latency_ms", "speedup")
BANDWIDTH = ("gbps_base", "gbps")
# Upstream leaves a figure out of a row that has none, whatever the header says (it is made from the
# first row). The number of figures tells which: TFLOPS is one, the bandwidths are two.
LEFT_OUT = {3: FIXED, 4: FIXED + ("tflops",), 5: FIXED + BANDWIDTH, 6: FIXED + ("tflops",) + BANDWIDTH}
CELL_WIDTH, DETAIL_GAP = 20, 10
_CELL = re.compile(r"( *)(N/A|[-+]?(?:inf|nan|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?))(?= |$)")
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.S)


@dataclass
class Row:
    """One line of a table. Latencies in ms, gbps in GB/s; None where there is no figure.

    status: SUCCESS, FAILED, TRUNCATED (cut, no figures), INVALID (a latency that is no time, no
    ratio) or NOT_MEASURED (that dtype never started, no shape). dtype is without `torch.`. timer and
    cache are those of this row, "" where only the run says it; host_us is what one Gems call costs the host, gap_us
    what a launch cost in the graph that timed it, nodes how often a call launches.
    """
    op_name: str
    dtype: str
    mode: str
    level: str
    shape: str = ""
    status: str = "SUCCESS"
    reason: str = ""
    latency_base_ms: Optional[float] = None
    latency_ms: Optional[float] = None
    speedup: Optional[float] = None
    tflops: Optional[float] = None
    gbps_base: Optional[float] = None
    gbps: Optional[float] = None
    timer: str = ""
    cache: str = ""
    host_us: Optional[float] = None
    gap_us: Optional[float] = None
    nodes: Optional[float] = None

    @property
    def launch(self):
        """(gap_us, nodes), as verdict.find_gap_shift takes it; None where the gap was not measured."""
        return None if self.gap_us is None else (self.gap_us, self.nodes or 1.0)


# What the timer says of a figure that stands though its blocks were void to the last (plugins/graph_timer).
HOST_BOUND = re.compile(r"launch-bound: (?:a call costs the host|the device was idle)")
DOUBT = re.compile(r"throttled: |shared with process |clock (?:at|moved) |the times moved by ")


def find_doubt(reason):
    """Why a row's Gems figure is not one of a card that worked undisturbed, from its reason; "" if it is.

    `torch: ...` is about the other column alone.
    """
    return find_part(DOUBT, reason)


def find_host_bound(reason):
    """Why a row's Gems figure is the time of the host as well as that of its kernels, from its reason; "" if it is not."""
    return find_part(HOST_BOUND, reason)


def find_part(pattern, reason):
    return next((part for part in reason.split("; ") if pattern.search(part) and not part.startswith("torch: ")), "")


def name_columns(header):
    """(Row fields in the order of the table's `header` line, the titles that are unknown).

    The status and the size detail are not among them; an unknown title has the field None.
    """
    titles = re.split(r" {2,}", header.strip())[1:]
    if "Size Detail" in titles:
        titles = titles[:titles.index("Size Detail")]
    fields = tuple(COLUMNS.get(title.lower()) for title in titles)
    return fields, [title for title, name in zip(titles, fields) if name is None]


def split_cells(line):
    """The leading figures of a row as texts, and the index where its size detail begins.

    A cell is 20 wide, the detail comes after 10 blanks: by that a detail that is itself N/A or a
    number is told from a figure.
    """
    cells, position = [], line.find(" ") if " " in line else len(line)
    while match := _CELL.match(line, position):
        pad, figure = len(match[1]), match[2]
        if len(cells) >= len(FIXED) and pad == DETAIL_GAP and pad + len(figure) != CELL_WIDTH:
            break
        cells.append(figure)
        position = match.end()
    return cells, position


def is_closed(detail):
    """True if every bracket and quote of a printed Python value is closed."""
    if "'" in detail or '"' in detail:
        detail = _QUOTED.sub("", detail)
        if "'" in detail or '"' in detail:
            return False
    return (detail.count("[") == detail.count("]") and detail.count("(") == detail.count(")")
            and detail.count("{") == detail.count("}"))


def fill_figures(row, columns, cells):
    """Put the texts `cells` into the fields `columns` of `row`; INVALID if they do not belong together."""
    fields = columns
    if len(cells) != len(columns):
        fields = LEFT_OUT.get(len(cells)) if columns[:len(FIXED)] == FIXED else None
    if fields is None:
        row.status, row.reason = "INVALID", f"{len(cells)} figures under {len(columns)} columns"
        return
    for name, cell in zip(fields, cells):
        if name:
            setattr(row, name, None if cell == "N/A" else float(cell))
    _check_figures(row)


def _check_figures(row):
    """Keep only figures that mean something; a SUCCESS row without a time becomes INVALID.

    A latency of 0, negative, nan or inf is no time and gives no ratio. Upstream prints the speedup
    with three decimals, so that 0.000 is a small one: then the two latencies give it.
    """
    printed, bad = row.speedup, []
    for column, title in (("latency_base_ms", "Torch"), ("latency_ms", "Gems")):
        latency = getattr(row, column)
        if latency is not None and not 0 < latency < math.inf:
            bad.append(f"{title} latency {latency:g} ms is no time")
            setattr(row, column, None)
    for column in ("tflops",) + BANDWIDTH:
        figure = getattr(row, column)
        if figure is not None and not 0 < figure < math.inf:
            setattr(row, column, None)
    row.speedup = None
    if row.status != "SUCCESS":
        return
    if row.latency_ms is None and not bad:
        bad.append("no Gems latency")
    if bad:
        row.status, row.reason = "INVALID", "; ".join(bad)
        row.tflops = row.gbps_base = row.gbps = None
    elif printed is not None and row.latency_base_ms is not None:
        row.speedup = printed if 0 < printed < math.inf else row.latency_base_ms / row.latency_ms
