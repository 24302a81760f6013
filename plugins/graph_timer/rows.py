"""rows.py - the two columns of one row, timed by one method, and the line that says how. Pure.

    TIMER: Operator=abs dtype=torch.float16 row=1 timer=graph cache=cold how=flush launches=1000 copies=1000 samples=14 \
spread=0.0004 stop=spread gap_us=0.85 nodes=1 host_us=61.2 host_us_base=4.91 reason=<<<>>>

One such line per row stands after the row's table (here it is broken; it is one line). launches to nodes are those of
the Gems column; host_us is what one call of it costs the host, host_us_base that of the Torch column; reason says why
a time is none, why another timer than the wanted one was used, or what is wrong with the figure all the same.
"""
import math
from dataclasses import dataclass, field

from .gap import has_moved

GRAPH, DO_BENCH, EVENT = "graph", "do_bench", "event"
COLUMNS = ("torch", "gems")


@dataclass
class Measurement:
    """One column of one row. latency_ms is nan where `fault` says why it is no time; `notes` leave it standing."""
    timer: str
    cache: str
    latency_ms: float = math.nan
    fault: str = ""
    notes: list = field(default_factory=list)
    host_us: float = math.nan
    launches: int = 1
    copies: int = 1
    how: str = ""
    samples: int = 0
    spread: float = math.nan
    stop: str = ""
    gap_us: float = math.nan  # of graph: what a launch costs in it
    nodes: float = 1.0        # launches of one call

    @property
    def method(self):
        return self.timer, self.cache


class Row:
    """Times the columns of one row with measure(call, column, method) -> Measurement; what a call is, measure() knows.

    Only `graph` can end in another method than the asked one; the row then keeps to that, and a column that was timed
    differently is timed again by settle(). Holds the callables, and with them the inputs, until it is dropped.
    """

    def __init__(self, measure, method):
        self.measure, self.method = measure, method
        self.columns, self.calls = {}, {}

    def time(self, column, call):
        """ms of `call` as `column`; nan if that is no time."""
        self.calls[column] = call
        found = self.columns[column] = self.measure(call, column, self.method)
        self.method = found.timer
        return found.latency_ms

    def find_unsettled(self):
        """The columns that were timed by another method than the row's."""
        return [column for column, found in self.columns.items() if found.timer != self.method]

    def settle(self, column):
        """Time `column` again, by the row's method; its new ms."""
        return self.time(column, self.calls[column])

    def forget(self):
        """Let go of the inputs."""
        self.calls.clear()

    def describe(self, op_name, dtype, number):
        """The TIMER line of this row, the `number`-th of its table; "" if nothing was timed."""
        if not self.columns:
            return ""
        shown = self.columns.get("gems") or self.columns["torch"]
        base = self.columns.get("torch")
        hosts = {"host_us": shown if "gems" in self.columns else None, "host_us_base": base}
        parts = [f"TIMER: Operator={op_name} dtype={dtype} row={number} timer={shown.timer} cache={shown.cache}"]
        parts += [f"how={shown.how}"] if shown.how else []
        parts += [f"launches={shown.launches} copies={shown.copies} samples={shown.samples}"] if shown.samples else []
        parts += [f"spread={shown.spread:.2g}"] if math.isfinite(shown.spread) else []
        parts += [f"stop={shown.stop}"] if shown.stop else []
        parts += [f"gap_us={shown.gap_us:.3g} nodes={shown.nodes:.3g}"] if math.isfinite(shown.gap_us) else []
        parts += [f"{name}={m.host_us:.4g}" for name, m in hosts.items() if m and math.isfinite(m.host_us)]
        return " ".join(parts) + f" reason=<<<{self.explain()}>>>"

    def explain(self):
        """What the reader of the row must know, on one line, faults first; "" if there is nothing."""
        said, found = {}, [(column, self.columns[column]) for column in COLUMNS if column in self.columns]
        faults = [(column, m.fault) for column, m in found if m.fault]
        for column, text in faults + [(column, note) for column, m in found for note in m.notes]:
            said.setdefault(" ".join(text.split()), []).append(column)
        if len(methods := {m.method for m in self.columns.values()}) > 1:
            said[f"columns timed differently: {sorted(methods)}"] = []
        gaps = [m.gap_us for _, m in found]
        if len(found) == 2 and has_moved(*gaps, min(m.latency_ms for _, m in found), max(m.nodes for _, m in found)):
            said["launch gap of torch {:.2f} us, of gems {:.2f}: the ratio holds that difference".format(*gaps)] = COLUMNS
        return "; ".join(f"{' and '.join(who)}: {text}" if len(who) == 1 else text for text, who in said.items())
