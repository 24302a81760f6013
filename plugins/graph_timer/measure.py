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
from dataclasses import asdict, replace

from . import capture, plan, sampling
from .blocks import Sampler
from .health import NoReader, judge
from .host import OVERTOOK, find_gap_bound, find_launch_bound, time_host, time_host_of
from .rows import DO_BENCH, EVENT, GRAPH, Measurement
from .workload import Call, Workload

WARM_CALLS = 2
MAX_WARM_CALLS = 10
PROBE_CALLS, FEWEST_PROBE_CALLS = 8, 2
PROBE_MS = 4.0             # of calls in the probe; long calls show with fewer how long they are
MAX_COPY_BYTES = 4 << 30
EVENT_MS = 0.2             # of one event-timed span
MAX_HIDDEN_MS = 20.0       # of spinning in front of one event-timed sample
MAX_QUEUED = 500           # launches; the device's queue holds 1024
EMPTY_CALLS = 50           # of one span, to see what an empty kernel takes between events
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
        self.do_bench, self.cache, self.log, self.empty_ms = do_bench, cache, log or (lambda block: None), None
        self.sampler = Sampler(device, watch, self.reader, cache, self.log, limits)

    def measure(self, fn, method, recipe=None, options=None, on_fallback=print, is_fallback=False):
        """The Measurement of `fn` by `method`.

        recipe       (op, args, kwargs) behind fn; needed to copy a backward pass
        options      upstream's own warmup, rep and grad_to_none, which do_bench gets
        is_fallback  do_bench is what the row's other column fell back to, not what was asked for: it is called as there
        Raises what fn raises when called plainly, and LostDevice. on_fallback(Fallback) hears why there is no graph.
        """
        began = self.device.clock()
        with self.device.scratch_rng():
            try:
                if method == GRAPH:
                    found, why = self._try_graph(fn, recipe)
                    if why:
                        on_fallback(why)
                        found = self._time_fallback(fn, recipe, options, is_uncapturable=why.phase != "warmup")
                        found = replace(found, notes=[f"no graph: {why}", *found.notes])
                    return self._finish(found, began)
                if method == EVENT:
                    return self._finish(self._time_events(fn, recipe), began)
                if is_fallback:
                    return self._finish(self._time_fallback(fn, recipe, options, is_uncapturable=False), began)
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
        self.sampler.gap.read()  # its graph is made before anything of the operator's is
        self.device.trim()
        with self._phase("warmup"), self.device.stream():
            call, warm_ms = self._warm_up(fn, recipe)
            plan.check_copies(call.facts(0.0), self.cache)
        graphs, workload = contextlib.ExitStack(), None
        with graphs, self.device.stream():
            try:
                with self._phase("capture"):
                    chosen = plan.plan_replay(self._probe_graph(call, warm_ms, graphs), self.cache, self._room())
                    workload = Workload(self.device, call, chosen)
                    graph = self._capture(workload.run, graphs)
                    self._check_work(graph, chosen.launches)
                    cold_fault = self.cache == "cold" and plan.find_warmth(
                        chosen, call.input_bytes * chosen.copies, sum(workload.written.values()), self._room())
                    if cold_fault:
                        raise plan.CannotPlan(cold_fault)
                with self._phase("replay"):
                    found = self.sampler.sample(GRAPH, workload, graph.replay, call, self._room(), {"nodes": graph.nodes})
                    return replace(found, host_us=1e3 * time_host(self.device, workload))
            finally:
                call.restore()

    def _time_events(self, fn, recipe):
        with self.device.stream():
            call, _ = self._warm_up(fn, recipe)
            try:
                chosen, host_ms, notes = self._plan_events(call)
                workload = Workload(self.device, call, chosen)
                hide_ms = 1.5 * chosen.launches * host_ms
                found = self.sampler.sample(EVENT, workload, lambda: self.device.time_calls(workload.run, hide_ms), call,
                                            self._room(), {})
                overtook = self.device.overtook
                found = replace(found, host_us=1e3 * host_ms)
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
        probe = Workload(self.device, call, plan.plan_probe(call.facts(0.0), PROBE_CALLS, self._room()))
        host_ms = time_host(self.device, probe)
        times = []
        for _ in range(3):
            probe.prepare()
            times.append(self.device.time_calls(probe.run, 2 * probe.plan.launches * host_ms))
        call_ms = min(times) / probe.plan.launches
        call.restore()
        most = max(1, min(MAX_QUEUED, int(MAX_HIDDEN_MS / max(host_ms, 1e-3))))
        try:
            room = self._room(target_ms=EVENT_MS, shortest_ms=0.0, max_launches=most)
            return plan.plan_replay(call.facts(call_ms), self.cache, room), host_ms, []
        except plan.CannotPlan as error:  # one call at a time, flushed before: sound for all but short kernels
            is_cold, restore = self.cache == "cold", call.mutates and not call.fixed
            return plan.Plan(1, 1, is_cold, restore, "flush" if is_cold else ""), host_ms, [str(error)]

    def _time_do_bench(self, fn, options, is_fallback=False, is_uncapturable=False):
        self._call_until_quiet(fn)
        if self.device.can_capture and not is_uncapturable:
            self._check_launches(fn)
        arguments = {k: v for k, v in options.items() if k in ("warmup", "rep", "grad_to_none")}
        number, void = 0, ""
        while not number or self.sampler.retries.allow(void, number):
            number += 1
            mark, before = self.watch.mark(), self.reader.read()
            with self.device.outside_dispatch() if is_fallback else contextlib.nullcontext():  # asked for: as upstream's
                times = self.do_bench(fn, **arguments, return_mode="all")
            after = self.reader.read()
            void = judge(before, after) or self.sampler.find_compiles(mark)
            self.sampler.log_block(DO_BENCH, times, void, number, before, after, {})
        summary = sampling.summarize(times)
        found = Measurement(DO_BENCH, "cold", summary.median, samples=len(times), spread=summary.spread, how="flush",
                            fault=sampling.find_fault(summary.median), notes=[void] if void else [])
        found.host_us = 1e3 * time_host_of(self.device, [fn])
        found.notes += find_launch_bound(found)
        return found if not found.fault else replace(found, latency_ms=math.nan)

    def _check_launches(self, fn):
        """Raise Invalid if a call launches nothing, where a graph can tell: do_bench would show the time of two bare events."""
        try:
            with contextlib.ExitStack() as graphs, self._phase("capture"), self.device.stream():
                self._check_work(self._capture(fn, graphs), 1)
        except Fallback:
            return

    def _time_fallback(self, fn, recipe, options, is_uncapturable=True):
        call = Call(self.device, fn, recipe)
        call.save_inputs(self._room().budget_bytes)
        call.look(fn())
        if call.mutates or self.cache == "warm":
            return self._time_events(fn, recipe)
        quick = {**(options or {}), "warmup": FALLBACK_WARMUP_MS, "rep": FALLBACK_REP_MS}
        return self._time_do_bench(fn, quick, is_fallback=True, is_uncapturable=is_uncapturable)

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
        """Call until nothing is compiled or tuned any more; the Call with what was seen, and ms that one takes at most."""
        call = Call(self.device, fn, recipe)
        call.save_inputs(self._room().budget_bytes)
        self.device.synchronize()
        output, warm_ms = self._call_until_quiet(fn)
        call.look(output)
        return call, warm_ms

    def _call_until_quiet(self, fn):
        """Finish tuning, compiling and allocating: (output of the last of at least WARM_CALLS calls, ms from its start until
        all is done)."""
        quiet = 0
        for _ in range(MAX_WARM_CALLS):
            mark, began = self.watch.mark(), self.device.clock()
            output = fn()
            quiet = quiet + 1 if self.watch.mark() == mark else 0
            if quiet >= WARM_CALLS:
                break
        else:
            raise Invalid(f"it is compiled or tuned anew in each of {MAX_WARM_CALLS} calls")
        self.device.synchronize()
        return output, 1e3 * (self.device.clock() - began)

    def _probe_graph(self, call, warm_ms, graphs):
        """Facts of the call with its ms, roughly, from a small graph; a call that cannot be captured fails here, and cheaply."""
        calls = max(FEWEST_PROBE_CALLS, min(PROBE_CALLS, int(PROBE_MS / max(warm_ms, 1e-6))))
        probe = Workload(self.device, call, plan.plan_probe(call.facts(0.0), calls, self._room()))
        graph = self._capture(probe.run, graphs)
        self._check_work(graph, probe.plan.launches)
        times = []
        for _ in range(3):
            probe.prepare()
            times.append(graph.replay())
        call.restore()
        return call.facts(min(times) / probe.plan.launches, probe.host_ms)

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

    def _room(self, **changes):
        budget = min(MAX_COPY_BYTES, self.device.free_bytes() // 4)
        return plan.Room(self.device.l2_bytes, budget, **changes)
