"""pytest plugin: a tuner's trial of a configuration that cannot win ends after a launch or a few, not after eight or sixteen.

Purpose  A sweep times each of its configurations alike, with Triton's do_bench (a launch, five to see how long that takes, a
         warm-up and samples) or do_bench_cudagraph (six launches, ten replays of a graph). For kernels of milliseconds, whose
         worst configurations take many times as long as the best, that is nearly all of a sweep, and spent on losers.
Use      PYTHONPATH=plugins python -m pytest -p _tune_cutoff_plugin NODE ...
Reads    TUNE_CUTOFF  0: does nothing; nor with HOST_TARGET, for on the host device nothing is timed, nor on other than NVIDIA's
         cards, where it has not been tried
How      best = the least median of this sweep so far. If it is LONG_MS or more, a configuration is launched between two events,
         and what the host needed meanwhile is taken off: at least so long the device was busy. Is that more than AT_ONCE times
         best, its trial ends. Shorter kernels would be all host, and their trials are bounded anyhow. One that was compiled in
         its first launch is timed in full, and one before which another failed to compile: meanwhile the device was idle, and its
         clocks may have fallen. Then
         do_bench: it is launched twice more, and its trial ends if the least of the three is more than SURELY times best.
         do_bench_cudagraph, which FlagGems' LibTuner takes: the same graph and replays, one by one, and its trial ends if the
         least of one or three of them is more than REPLAYED times best. If that one launch was as long as a replay shall be,
         the five that estimate how many calls fill one are left out: the graph has one call.
         Triton's own do_bench takes 25 and 100 ms however short the kernel. Where best is below LONG_MS, or not known yet, its
         samples are taken in parts of PART_MS, until the 95 % interval of the median is within KNOWN, or within ROUGHLY of a
         median more than SLOWER times best.
Sound    do_bench: nothing is flushed and the host is taken off, so that a loser's time is rather too short than too long.
         Replays are what the sweep itself compares, by the median of ten. In 883 blocks of an H200's samples, throttled ones
         too, the least of the first three was at most 1.7 % above the median of all. A loser's time stands in the tuner's
         database as that configuration's: good for the order, no measurement.
Output   in the terminal summary, where a trial was cut short: TUNE_CUTOFF trials=162 short=119
Limits   A Triton whose tuner has its timer as `do_bench` (3.2 and later); others are left alone.
"""
import functools
import math
import os
import sys
import time

from _tuner_sweep import watch_sweeps

LONG_MS = 0.1
COMPILED_MS = 50.0
AT_ONCE, SURELY = 2.0, 1.3
REPLAYED = {1: 1.5, 3: 1.2}
WARMUP_MS, REP_MS, PART_MS, MANY = 25, 100, 20, 50      # the first two are Triton's; fewer samples than MANY in a part: no parts
KNOWN, ROUGHLY, SLOWER = 0.005, 0.02, 1.1
GRAPHS = "triton_cuda_graph_replay_v1"      # FlagGems' name for do_bench_cudagraph


def pytest_collection_finish(session):
    """Once whoever wants to has imported Triton."""
    autotuner = getattr(sys.modules.get("triton.runtime.autotuner"), "Autotuner", None)
    is_nvidia = os.environ.get("GEMS_VENDOR", "nvidia") == "nvidia"
    is_off = os.environ.get("TUNE_CUTOFF") == "0" or os.environ.get("HOST_TARGET") or not is_nvidia
    if is_off or not hasattr(autotuner, "do_bench"):
        return
    cutoff = Cutoff(time_launch, capture)
    watch_sweeps(cutoff.begin_sweep, cutoff.run_trial)
    session.config.pluginmanager.register(cutoff, "gemscreen-tune-cutoff")


class Cutoff:
    """Ends trials early; `time_call(call)` gives the ms that what call() launches takes the device, at least, and
    the host's until it returned; `capture(run)` a function that replays what run() launches, and gives the ms of that."""

    def __init__(self, time_call, capture):
        self.time_call, self.capture, self.best = time_call, capture, math.inf     # of this sweep
        self.trials = self.short = 0
        self.was_idle = False       # the device, since a trial that failed

    def begin_sweep(self, *_):
        """Other configurations, other inputs."""
        self.best = math.inf

    def run_trial(self, bench, tuner, *args, **meta):
        """The tuner's own trial, but for what times its launches."""
        time_fully, protocol = tuner.do_bench, getattr(tuner, "benchmark_protocol", None)
        time_likely = functools.partial(self.replay, protocol) if getattr(protocol, "implementation", None) == GRAPHS else \
            functools.partial(self.launch, time_fully)
        time_short = time_fully
        if getattr(tuner, "_do_bench", True) is None:
            time_short = functools.partial(self.time_in_parts, time_fully)
        tuner.do_bench = functools.partial(self.try_config, time_fully, time_short, time_likely)
        began = time.perf_counter()
        try:
            timings = bench(tuner, *args, **meta)
        finally:
            tuner.do_bench = time_fully
        median = timings[0] if isinstance(timings, (list, tuple)) else timings
        self.was_idle = median == math.inf and (self.was_idle or 1e3 * (time.perf_counter() - began) > COMPILED_MS)
        self.best = min(self.best, median)
        return timings

    def try_config(self, time_fully, time_short, time_likely, call, quantiles):
        """The timings of one configuration, as `time_fully` gives them; see the top of this file. Raises what call() raises."""
        self.trials += 1
        if not LONG_MS <= self.best < math.inf:
            return time_short(call, quantiles=quantiles)
        least, host = self.time_call(call)
        if host > COMPILED_MS or self.was_idle:
            return time_fully(call, quantiles=quantiles)
        if least <= AT_ONCE * self.best:
            return time_likely(least, call, quantiles)
        self.short += 1
        return [least] * len(quantiles)

    def launch(self, time_fully, least, call, quantiles):
        """By the tuner's do_bench, unless two more launches do."""
        least = min(least, *(self.time_call(call)[0] for _ in range(2)))
        if least <= SURELY * self.best:
            return time_fully(call, quantiles=quantiles)
        self.short += 1
        return [least] * len(quantiles)

    def replay(self, protocol, least, call, quantiles):
        """As do_bench_cudagraph does it, whose last replays may be left out."""
        calls = 1 if least >= protocol.per_replay_ms else self.count_calls(call, protocol.per_replay_ms)
        replay, times = self.capture(lambda: [call() for _ in range(calls)]), []
        while len(times) < protocol.n_retries and not min(times, default=0) > REPLAYED.get(len(times), math.inf) * self.best:
            times.append(replay() / calls)
        self.short += len(times) < protocol.n_retries
        return [find_quantile(times, share) for share in quantiles]

    def count_calls(self, call, replay_ms):
        """Of one replay, from five launches, the host's time included."""
        estimate = sum(self.time_call(lambda: [call() for _ in range(5)])) / 5
        return max(1, int(replay_ms / estimate)) if estimate else 1000      # as do_bench_cudagraph

    def time_in_parts(self, time_fully, call, quantiles):
        """By Triton's own do_bench, whose last parts may be left out."""
        times, left = [], REP_MS
        while left and not self.is_known(times):
            part = PART_MS if not times or len(times) >= MANY else left
            times += time_fully(call, warmup=0 if times else WARMUP_MS, rep=part, return_mode="all")
            left -= part
        self.short += left > 0
        return [find_quantile(times, share) for share in quantiles]

    def is_known(self, times):
        """Whether `times` say enough about a configuration."""
        from graph_timer.sampling import summarize

        if len(times) < MANY:
            return False
        summary = summarize(times)
        return summary.half_width <= KNOWN or summary.half_width <= ROUGHLY and summary.median > SLOWER * self.best

    def pytest_terminal_summary(self, terminalreporter):
        if self.short:
            terminalreporter.write_line(f"TUNE_CUTOFF trials={self.trials} short={self.short}")


def find_quantile(times, share):
    """As Triton's, between the two nearest."""
    times, place = sorted(times), share * (len(times) - 1)
    low, high = times[math.floor(place)], times[math.ceil(place)]
    return low + (place - math.floor(place)) * (high - low)


def time_launch(call):
    """(ms between two events around call(), on the device of Triton's driver, less `host`; `host`: ms until call() returned).
    Waits."""
    from triton.runtime import driver

    device = driver.active.get_device_interface()
    start, end = device.Event(enable_timing=True), device.Event(enable_timing=True)
    start.record()
    began = time.perf_counter()
    call()
    host_ms = 1e3 * (time.perf_counter() - began)
    end.record()
    device.synchronize()
    return start.elapsed_time(end) - host_ms, host_ms


def capture(run):
    """A function that replays a graph of run() between two events and waits: ms, as Triton's do_bench_cudagraph takes them."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    torch.cuda.synchronize()

    def replay():
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end)
    return replay
