"""gap.py - what a launch costs inside a graph now: the time from one node to the next, if the kernels have nothing to do.

It is part of every figure, and it is not constant. On an H200 it moves between levels 0.18 us apart (0.85, 1.02, 1.20 us),
within a process, without a known cause: a kernel of 1.7 us is 11 or 21 % slower after such a move, its own samples as steady
as before (docs/timing.md, "The launch gap"). So it is taken before and after each block of a graph's samples:

    moved within a block     the block is void, and taken again
    above the process's own  the row says how much of its figure is that
    kept with the figure     gap_us in TIMER lines and samples.jsonl; who compares two processes compares their gaps, too

A call that launches `nodes` kernels, copies or memsets holds the gap so many times.
"""
import math

CALLS, REPLAYS = 200, 3
MOVE = 0.05    # of the gap: less is its own noise, 1 %
SHARE = 0.005  # of a figure: less is not worth a word


class GapProbe:
    """The gap of one device, by a graph of its own that is captured once. Raises what a replay raises."""

    def __init__(self, device):
        self.device, self.graph, self.least_us = device, None, math.inf

    def read(self):
        """us from node to node now; nan where there is no graph."""
        with self.device.stream():
            if self.graph is None:
                self.graph = self._capture()
            if not self.graph:
                return math.nan
            gap_us = 1e3 * min(self.graph.replay() for _ in range(REPLAYS)) / CALLS
        self.least_us = min(self.least_us, gap_us)
        return gap_us

    def _capture(self):
        def run():
            for _ in range(CALLS):
                self.device.launch_nothing()
        try:
            with self.device.scratch_rng():
                return self.device.capture(run)
        except Exception:  # noqa: BLE001 - no graphs after all: the operator's own capture says why
            return False


def has_moved(one_us, other_us, latency_ms, nodes):
    """True if two gaps differ by more than noise, and by so much that a figure of `latency_ms` over `nodes` is another one."""
    difference = abs(one_us - other_us)  # nan compares as False
    return difference > MOVE * min(one_us, other_us) and nodes * difference > SHARE * 1e3 * latency_ms


def find_move(before_us, after_us, latency_ms, nodes):
    """Why a block between two readings is void, or ""."""
    if not has_moved(before_us, after_us, latency_ms, nodes):
        return ""
    return f"launch gap moved from {before_us:.2f} to {after_us:.2f} us"


def find_excess(gap_us, least_us, latency_ms, nodes):
    """[a note] if a figure holds a larger gap than this process has seen."""
    if not has_moved(gap_us, least_us, latency_ms, nodes) or gap_us < least_us:
        return []
    times = f", {nodes:g} times in it" if nodes > 1 else ""
    return [f"launch gap {gap_us:.2f} us{times}, it was {least_us:.2f} before: so much of the figure is the launch"]
