"""blocks.py - samples of one column, in blocks: settle, sample, judge, and take a void block again.

    found = Sampler(device, watch, reader, cache, log, limits).sample("graph", workload, graph.replay, call, room, {})

A block is void while something was compiled or tuned, the times drifted, the card was throttled or shared, or its launch gap
moved. What is known of the process is kept here: which tries are left, whether the clocks have risen, the gap.
"""
import math

from . import plan, sampling
from .gap import GapProbe, find_excess, find_move
from .health import Retries, judge
from .rows import DO_BENCH, GRAPH, Measurement


class Sampler:
    """Takes the samples of one process' columns. See the top of this file; log(dict) gets every block."""

    def __init__(self, device, watch, reader, cache, log, limits):
        self.device, self.watch, self.reader = device, watch, reader
        self.cache, self.log, self.limits = cache, log, limits
        self.retries, self.is_warm, self.gap = Retries(), False, GapProbe(device)

    def sample(self, timer, workload, take, call, room, more):
        """Samples of take() -> ms per replay, in blocks; the Measurement of the last block. `more` goes to the log."""
        launches = workload.plan.launches
        more = {**more, "launches": launches, "copies": workload.plan.copies, "how": workload.plan.how,
                "input_bytes": call.input_bytes}
        read_gap = self.gap.read if timer == GRAPH else lambda: math.nan
        nodes = sum((more.get("nodes") or {}).values()) / launches or 1.0
        number, void = 0, ""
        while not number or self.retries.allow(void, number):
            number += 1
            settled = self._settle(workload, take)
            gaps = [read_gap()]  # with clocks that have risen
            mark, before = self.watch.mark(), self.reader.read()
            times, stop, began = [], "", self.device.clock()
            while not stop:
                workload.prepare()
                times.append(take() / launches)
                stop = sampling.find_stop(times, self.device.clock() - began, self.limits)
            after = self.reader.read()
            gaps.append(read_gap())
            summary = sampling.summarize(times)
            void = (judge(before, after) or self.find_compiles(mark) or sampling.find_drift(times)
                    or find_move(*gaps, summary.median, nodes))
            self.log_block(timer, times, void, number, before, after,
                           {**more, "written_bytes": sum(workload.written.values()), "stop": stop,
                            "settle_seconds": settled, "gaps_us": gaps})
        notes = [void] if void else find_excess(gaps[-1], self.gap.least_us, summary.median, nodes)
        notes += plan.find_coldness(workload.plan, self.cache, call.input_bytes, room)
        fault = sampling.find_fault(summary.median, call.output_bytes) or self.find_compiles(mark)
        return Measurement(timer, self.cache, math.nan if fault else summary.median, fault, [] if fault else notes,
                           gap_us=gaps[-1], nodes=nodes, launches=launches, copies=workload.plan.copies, how=workload.plan.how,
                           samples=len(times), spread=summary.spread, stop=stop)

    def _settle(self, workload, take):
        """Repeat until the times no longer move, within a limit; the seconds that it took.

        The first time in a process it lasts longer: clocks that have not begun to rise do not move either.
        """
        times, began, seconds = [], self.device.clock(), 0.0
        least = self.limits.settle_seconds[0 if self.is_warm else 1]
        while seconds < least or (not sampling.is_settled(times) and seconds < self.limits.settle_seconds[1]):
            workload.prepare()
            times.append(take())
            seconds = self.device.clock() - began
        self.is_warm = True
        return seconds

    def find_compiles(self, mark):
        """What was compiled or tuned since `mark`, or ""."""
        return "" if self.watch.mark() == mark else f"while it was timed: {self.watch.describe(mark)}"

    def log_block(self, timer, times, void, number, before, after, more):
        """One block as samples.jsonl has it."""
        summary = sampling.summarize(times)
        self.log({"kind": "block", "timer": timer, "cache": "cold" if timer == DO_BENCH else self.cache, "try": number,
                  "void": void, "samples_ms": list(times), "median_ms": summary.median, "spread": summary.spread,
                  "outliers": list(summary.outliers), **more, "before": before, "after": after})
