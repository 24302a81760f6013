"""measure.py - one column of one row: warm up, look at the call, plan, capture or time by events, sample, judge.

    timer = Timer(device, watch, reader, do_bench, cache="cold", log=blocks.append)
    found = timer.measure(fn, "graph", recipe=(op, args, kwargs))       -> rows.Measurement

Methods: graph; event (the same plan, launched one by one between a pair of events); do_bench (Triton's, as upstream
calls it). A graph that cannot be had ends in do_bench, or in event where do_bench would be unsound: it always flushes,
so it has no warm L2, and it runs an operator that changes its inputs over and over on the same ones. Every block of
samples, void ones too, goes to log() as a dict.
"""
import contextlib
import math
import statistics
from dataclasses import asdict, replace

from . import capture, plan, sampling
from .gap import GapProbe, find_excess, find_move
from .health import NoReader, Retries, judge
from .rows import DO_BENCH, EVENT, GRAPH, Measurement
from .workload import Call, Workload

WARM_CALLS = 2
MAX_WARM_CALLS = 10
PROBE_CALLS = 8
HOST_BATCHES, HOST_BATCH_SECONDS, HOST_BATCH_CALLS = 5, 0.001, 20
MAX_COPY_BYTES = 4 << 30
EVENT_MS = 0.2             # of one event-timed span
MAX_HIDDEN_MS = 20.0       # of spinning in front of one event-timed sample
MAX_QUEUED = 500           # launches; the device's queue holds 1024
EMPTY_CALLS = 50           # of one span, to see what an empty kernel takes between events
LAUNCH_SHARE = 0.1         # of a kernel's time; if launching may add more to an event-timed figure, the row says so
LAUNCH_MARGIN = 1.25       # launching may take so much more than with an empty kernel: 1.9 us against 1.7 on an H200
OVERTOOK = "launch-bound: the device was idle before all was launched (the call waits for it), so the host's time is in the figure"
FALLBACK_WARMUP_MS, FALLBACK_REP_MS = 25, 100  # Triton's own; the card is warm by then


class LostDevice(RuntimeError):
    """The device's context is gone: nothing can be measured in this process any more."""


class Fallback(Exception):
    """A graph of this call cannot be had; `phase` is warmup, capture or replay."""

    def __init__(self, phase, reason):
        super().__init__(f"phase={phase} reason={reason}")
        self.phase, self.reason = phase, reason


class Invalid(Exception):
    """There is no time of this call, by any method; the text says why."""


def describe_error(error):
    """`Type: first line`."""
    first = next(iter(str(error).splitlines()), "").strip()
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


class Timer:
    """Measures callables on one device. See the top of this file."""

    def __init__(self, device, watch, reader=None, do_bench=None, cache="cold", log=None, limits=sampling.Limits()):
        self.device, self.watch, self.reader = device, watch, reader or NoReader("none")
        self.do_bench, self.cache, self.limits = do_bench, cache, limits
        self.log = log or (lambda block: None)
        self.retries, self.is_warm, self.empty_ms, self.gap = Retries(), False, None, GapProbe(device)

    def measure(self, fn, method, recipe=None, options=None, on_fallback=print):
        """The Measurement of `fn` by `method`.

        recipe   (op, args, kwargs) behind fn; needed to copy a backward pass
        options  upstream's own warmup, rep and grad_to_none, which do_bench gets
        Raises what fn raises when called plainly, and LostDevice. on_fallback(Fallback) hears why there is no graph.
        """
        began = self.device.clock()
        with self.device.scratch_rng():
            try:
                if method == GRAPH:
                    found, why = self._try_graph(fn, recipe)
                    if why:
                        on_fallback(why)
                        found = self._time_fallback(fn, recipe, options)
                        found = replace(found, notes=[f"no graph: {why}", *found.notes])
                    return self._finish(found, began)
                if method == EVENT:
                    return self._finish(self._time_events(fn, recipe), began)
                return self._finish(self._time_do_bench(fn, options or {}), began)
            except Invalid as fault:
                return self._finish(Measurement(method, self.cache, fault=str(fault)), began)
            except LostDevice:
                raise
            except Exception as error:
                if self.device.is_lost(error):
                    raise LostDevice(describe_error(error)) from error
                raise

    def _finish(self, found, began):
        self.log({"kind": "column", **asdict(found), "seconds": self.device.clock() - began})
        return found

    # ---- the three methods

    def _try_graph(self, fn, recipe):
        """(Measurement, None), or (None, Fallback) without the frames of what failed, which hold copies of the inputs."""
        try:
            return self._time_graph(fn, recipe), None
        except Fallback as why:
            return None, Fallback(why.phase, why.reason)

    def _time_graph(self, fn, recipe):
        self.gap.read()  # its graph is made before anything of the operator's is
        self.device.trim()
        with self._phase("warmup"), self.device.stream():
            call = self._warm_up(fn, recipe)
        graphs, workload = contextlib.ExitStack(), None
        with graphs, self.device.stream():
            try:
                with self._phase("capture"):
                    call_ms = self._probe_graph(call, graphs)
                    chosen = plan.plan_replay(call.facts(call_ms), self.cache, self._room())
                    workload = Workload(self.device, call, chosen)
                    graph = self._capture(workload.run, graphs)
                    self._check_work(graph, chosen.launches)
                    cold_fault = self.cache == "cold" and plan.find_warmth(
                        chosen, call.input_bytes * chosen.copies, sum(workload.written.values()), self._room())
                    if cold_fault:
                        raise plan.CannotPlan(cold_fault)
                with self._phase("replay"):
                    found = self._sample(GRAPH, workload, graph.replay, call, {"nodes": graph.nodes})
                    return self._add_host_time(found, workload)
            finally:
                call.restore()

    def _time_events(self, fn, recipe):
        with self.device.stream():
            call = self._warm_up(fn, recipe)
            try:
                chosen, host_ms, notes = self._plan_events(call)
                workload = Workload(self.device, call, chosen)
                hide_ms = 1.5 * chosen.launches * host_ms
                found = self._sample(EVENT, workload, lambda: self.device.time_calls(workload.run, hide_ms), call, {})
                overtook = self.device.overtook
                found = self._add_host_time(found, workload)
                if not self.device.hides_launches:
                    notes += find_launch_bound(found)
                else:
                    notes += [OVERTOOK] if overtook else find_gap_bound(found, self._time_empty())
                return replace(found, notes=found.notes + notes)
            finally:
                call.restore()

    def _time_empty(self):
        """ms that a call takes between events if its kernel has nothing to do: a stream's gap between two kernels."""
        def run():
            for _ in range(EMPTY_CALLS):
                self.device.launch_nothing()
        if self.empty_ms is None:
            began = self.device.clock()
            run()
            host_ms = 1e3 * (self.device.clock() - began)
            self.device.synchronize()
            self.empty_ms = min(self.device.time_calls(run, 1.5 * host_ms) for _ in range(3)) / EMPTY_CALLS
        return self.empty_ms

    def _plan_events(self, call):
        """(Plan, ms that one call costs the host, notes) for calls that are launched between a pair of events."""
        probe = Workload(self.device, call, plan.plan_probe(call.facts(0.0), PROBE_CALLS))
        host_ms = self._time_host(probe)
        times = []
        for _ in range(3):
            probe.prepare()
            times.append(self.device.time_calls(probe.run, 2 * PROBE_CALLS * host_ms))
        call_ms = min(times) / PROBE_CALLS
        call.restore()
        most = max(1, min(MAX_QUEUED, int(MAX_HIDDEN_MS / max(host_ms, 1e-3))))
        try:
            room = self._room(target_ms=EVENT_MS, shortest_ms=0.0, max_launches=most)
            return plan.plan_replay(call.facts(call_ms), self.cache, room), host_ms, []
        except plan.CannotPlan as error:  # one call at a time, flushed before: sound for all but short kernels
            is_cold, restore = self.cache == "cold", call.mutates and not call.fixed
            return plan.Plan(1, 1, is_cold, restore, "flush" if is_cold else ""), host_ms, [str(error)]

    def _time_do_bench(self, fn, options, outside=False):
        self._call_until_quiet(fn)
        arguments = {k: v for k, v in options.items() if k in ("warmup", "rep", "grad_to_none")}
        number, void = 0, ""
        while not number or self.retries.allow(void, number):
            number += 1
            mark, before = self.watch.mark(), self.reader.read()
            with self.device.outside_dispatch() if outside else contextlib.nullcontext():
                times = self.do_bench(fn, **arguments, return_mode="all")
            after = self.reader.read()
            void = judge(before, after) or self._find_compiles(mark)
            self._log_block(DO_BENCH, times, void, number, before, after, {})
        summary = sampling.summarize(times)
        found = Measurement(DO_BENCH, "cold", summary.median, samples=len(times), spread=summary.spread, how="flush",
                            fault=sampling.find_fault(summary.median), notes=[void] if void else [])
        found.host_us = 1e3 * self._time_host_of([fn])
        found.notes += find_launch_bound(found)
        return found if not found.fault else replace(found, latency_ms=math.nan)

    def _time_fallback(self, fn, recipe, options):
        call = Call(self.device, fn, recipe)
        call.save_inputs(self._room().budget_bytes)
        call.look(fn())
        if call.mutates or self.cache == "warm":
            return self._time_events(fn, recipe)
        quick = {**(options or {}), "warmup": FALLBACK_WARMUP_MS, "rep": FALLBACK_REP_MS}
        return self._time_do_bench(fn, quick, outside=True)

    # ---- steps

    @contextlib.contextmanager
    def _phase(self, name):
        """Turn what goes wrong inside into a Fallback that names the phase, unless nothing can work any more."""
        try:
            yield
        except (Fallback, Invalid, LostDevice):
            raise
        except Exception as error:
            if self.device.is_lost(error):
                raise LostDevice(describe_error(error)) from error
            if capture.leaves_work_behind(error):
                raise Invalid("work was left on another stream, no event of this one sees its end") from error
            text = str(error) if isinstance(error, plan.CannotPlan) else describe_error(error)
            raise Fallback(name, text) from error

    def _warm_up(self, fn, recipe):
        """Call until nothing is compiled or tuned any more; the Call with what was seen."""
        call = Call(self.device, fn, recipe)
        call.save_inputs(self._room().budget_bytes)
        self.device.synchronize()
        call.look(self._call_until_quiet(fn))
        return call

    def _call_until_quiet(self, fn):
        """Finish tuning, compiling and allocating: the output of the last of at least WARM_CALLS calls."""
        quiet = 0
        for _ in range(MAX_WARM_CALLS):
            mark = self.watch.mark()
            output = fn()
            quiet = quiet + 1 if self.watch.mark() == mark else 0
            if quiet >= WARM_CALLS:
                break
        else:
            raise Invalid(f"it is compiled or tuned anew in each of {MAX_WARM_CALLS} calls")
        self.device.synchronize()
        return output

    def _probe_graph(self, call, graphs):
        """ms of one call, roughly, from a small graph; a call that cannot be captured fails here, and cheaply."""
        probe = Workload(self.device, call, plan.plan_probe(call.facts(0.0), PROBE_CALLS))
        graph = self._capture(probe.run, graphs)
        self._check_work(graph, PROBE_CALLS)
        times = []
        for _ in range(3):
            probe.prepare()
            times.append(graph.replay())
        call.restore()
        return min(times) / PROBE_CALLS

    def _capture(self, run, graphs):
        """A graph of run() that compiled nothing; released with `graphs`."""
        for _ in range(2):
            mark = self.watch.mark()
            with self.device.scratch_rng():
                graph = self.device.capture(run)
            graphs.callback(graph.release)
            if self.watch.mark() == mark:
                return graph
        raise RuntimeError(f"while it was captured: {self.watch.describe(mark)}")

    def _check_work(self, graph, calls):
        """Raise Invalid for a graph in which nothing, or not every call, was captured."""
        if graph.nodes is None:  # this torch does not show them
            return
        total = sum(graph.nodes.values())
        if not total:
            raise Invalid("empty capture: nothing was launched on the current stream (a view, a cached result, or a "
                          "launch on another stream)")
        if total < calls:
            raise Invalid(f"{calls} calls launched {total} times: some calls did nothing")

    def _sample(self, timer, workload, take, call, more):
        """Samples of take() -> ms per replay, in blocks; the Measurement of the last block."""
        launches = workload.plan.launches
        more = {**more, "launches": launches, "copies": workload.plan.copies, "how": workload.plan.how,
                "input_bytes": call.input_bytes}
        read_gap = self.gap.read if timer == GRAPH else lambda: math.nan
        nodes = sum((more.get("nodes") or {}).values()) / launches or 1.0
        number, void = 0, ""
        while not number or self.retries.allow(void, number):
            number += 1
            gaps = [read_gap()]
            settled = self._settle(workload, take)
            mark, before = self.watch.mark(), self.reader.read()
            times, stop, began = [], "", self.device.clock()
            while not stop:
                workload.prepare()
                times.append(take() / launches)
                stop = sampling.find_stop(times, self.device.clock() - began, self.limits)
            after = self.reader.read()
            gaps.append(read_gap())
            summary = sampling.summarize(times)
            void = judge(before, after) or self._find_compiles(mark) or sampling.find_drift(times) or find_move(*gaps, summary.median, nodes)
            self._log_block(timer, times, void, number, before, after,
                            {**more, "written_bytes": sum(workload.written.values()), "stop": stop,
                             "settle_seconds": settled, "gaps_us": gaps})
        notes = [void] if void else find_excess(gaps[-1], self.gap.least_us, summary.median, nodes)
        notes += plan.find_coldness(workload.plan, self.cache, call.input_bytes, self._room())
        fault = sampling.find_fault(summary.median, call.output_bytes) or self._find_compiles(mark)
        return Measurement(timer, self.cache, math.nan if fault else summary.median, fault, [] if fault else notes, gap_us=gaps[-1],
                           nodes=nodes, launches=launches, copies=workload.plan.copies, how=workload.plan.how, samples=len(times),
                           spread=summary.spread, stop=stop)

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

    def _find_compiles(self, mark):
        return "" if self.watch.mark() == mark else f"while it was timed: {self.watch.describe(mark)}"

    def _log_block(self, timer, times, void, number, before, after, more):
        summary = sampling.summarize(times)
        self.log({"kind": "block", "timer": timer, "cache": "cold" if timer == DO_BENCH else self.cache, "try": number,
                  "void": void, "samples_ms": list(times), "median_ms": summary.median, "spread": summary.spread,
                  "outliers": list(summary.outliers), **more, "before": before, "after": after})

    def _room(self, **changes):
        budget = min(MAX_COPY_BYTES, self.device.free_bytes() // 4)
        return plan.Room(self.device.l2_bytes, budget, **changes)

    # ---- the host's share

    def _add_host_time(self, found, workload):
        found.host_us = 1e3 * self._time_host(workload)
        return found

    def _time_host(self, workload):
        """ms that one call costs the host, nothing waited for inside a batch."""
        most = len(workload.calls) if workload.plan.restore else HOST_BATCH_CALLS
        return self._time_host_of(workload.calls, workload.prepare, min(most, HOST_BATCH_CALLS))

    def _time_host_of(self, calls, prepare=lambda: None, most=HOST_BATCH_CALLS):
        clock, once, batches = self.device.clock, math.inf, []
        for _ in range(1 + HOST_BATCHES):
            count = max(1, min(most, int(HOST_BATCH_SECONDS / max(once, 1e-9))))
            prepare()
            self.device.synchronize()
            began = clock()
            for number in range(count):
                calls[number % len(calls)]()
            once = (clock() - began) / count
            batches.append(once)
        self.device.synchronize()
        return 1e3 * statistics.median(batches[1:])  # the first one was a single call, to see how many make a batch


def find_gap_bound(found, empty_ms):
    """A note if launching may add more than LAUNCH_SHARE to the kernel's time, though the host's part of it is hidden."""
    launch_ms = LAUNCH_MARGIN * empty_ms
    if launch_ms > LAUNCH_SHARE * (found.latency_ms - launch_ms):
        return [f"launch-bound: an empty kernel takes {1e3 * empty_ms:.2g} us between events, about so much of it is the launch"]
    return []


def find_launch_bound(found):
    """A note if the figure may be the host's launch time and not the kernel's."""
    if math.isfinite(found.host_us) and found.latency_ms * 1e3 < 1.2 * found.host_us:
        return [f"launch-bound: a call costs the host {found.host_us:.3g} us, its kernels may be faster"]
    return []
