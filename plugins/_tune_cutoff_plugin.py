"""pytest plugin: a tuner's trial of a configuration that cannot win ends after a launch or three, not after eight or more.

Purpose  A sweep times each of its configurations alike: Triton's do_bench launches it once, five times to see how long that
         takes, and then for a warm-up and for its samples. For kernels of milliseconds, whose worst configurations take many
         times as long as the best, that is nearly all of a sweep, and spent on losers. What can win is timed as ever.
Use      PYTHONPATH=plugins python -m pytest -p _tune_cutoff_plugin NODE ...
Reads    TUNE_CUTOFF  0: does nothing; nor with HOST_TARGET, for on the host device nothing is timed, nor on other than NVIDIA's
         cards, where it has not been tried
How      best = the least median of this sweep so far. If it is LONG_MS or more, a configuration is launched between two events,
         and what the host needed meanwhile is taken off: at least so long the device was busy. Is that
         more than AT_ONCE times best, its trial ends. Else it is launched twice more, and the trial ends if the least of the
         three is more than SURELY times best. Shorter kernels would be all host, and their trials are bounded anyhow. One that
         was compiled in its first launch is timed in full: meanwhile the device was idle, and its clocks may have fallen.
Sound    Nothing is flushed and the host is taken off, so that a loser's time is rather too short than too long. It stands in
         the tuner's database as that configuration's: good for the order, no measurement.
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


def pytest_collection_finish(session):
    """Once whoever wants to has imported Triton."""
    autotuner = getattr(sys.modules.get("triton.runtime.autotuner"), "Autotuner", None)
    is_off = os.environ.get("TUNE_CUTOFF") == "0" or os.environ.get("HOST_TARGET") or os.environ.get("GEMS_VENDOR", "nvidia") != "nvidia"
    if is_off or not hasattr(autotuner, "do_bench"):
        return
    cutoff = Cutoff(time_launch)
    watch_sweeps(cutoff.begin_sweep, cutoff.run_trial)
    session.config.pluginmanager.register(cutoff, "gemscreen-tune-cutoff")


class Cutoff:
    """Ends trials early; `time_call(call)` gives the ms that what call() launches takes the device, at least, and
    the host's until it returned."""

    def __init__(self, time_call):
        self.time_call, self.best = time_call, math.inf     # of this sweep
        self.trials = self.short = 0

    def begin_sweep(self, *_):
        """Other configurations, other inputs."""
        self.best = math.inf

    def run_trial(self, bench, tuner, *args, **meta):
        """The tuner's own trial, but for what times its launches."""
        time_fully = tuner.do_bench
        tuner.do_bench = functools.partial(self.try_config, time_fully)
        try:
            timings = bench(tuner, *args, **meta)
        finally:
            tuner.do_bench = time_fully
        self.best = min(self.best, timings[0] if isinstance(timings, (list, tuple)) else timings)
        return timings

    def try_config(self, time_fully, call, quantiles):
        """The timings of one configuration, as `time_fully` gives them; see the top of this file. Raises what call() raises."""
        self.trials += 1
        if not LONG_MS <= self.best < math.inf:
            return time_fully(call, quantiles=quantiles)
        least = self.find_too_slow(call)
        if least is None:
            return time_fully(call, quantiles=quantiles)
        self.short += 1
        return [least] * len(quantiles)

    def find_too_slow(self, call):
        """The least ms that call() takes, if it cannot win, else None."""
        least, host = self.time_call(call)
        if host > COMPILED_MS:
            return None
        if least > AT_ONCE * self.best:
            return least
        least = min(least, *(self.time_call(call)[0] for _ in range(2)))
        return least if least > SURELY * self.best else None

    def pytest_terminal_summary(self, terminalreporter):
        if self.short:
            terminalreporter.write_line(f"TUNE_CUTOFF trials={self.trials} short={self.short}")


def time_launch(call):
    """(ms between two events around call(), on the device of Triton's driver, less `host`; `host`: ms until call() returned). Waits."""
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
