"""pytest plugin: a tuner's trial of a configuration that cannot win ends after a launch or two, not after eight or more.

Purpose  A sweep times each of its configurations alike: Triton's do_bench launches it once, five times to see how long that
         takes, and then for a warm-up and for its samples. For kernels of milliseconds, whose worst configurations take fifty
         times as long as the best, that is nearly all of a sweep, and spent on losers. What can win is timed as ever.
Use      PYTHONPATH=plugins python -m pytest -p _tune_cutoff_plugin NODE ...
Reads    TUNE_CUTOFF  0: does nothing; HOST_TARGET set: the same, for on the host device nothing is timed
How      best = the least median of this sweep so far. If it is LONG_MS or more, a configuration is launched between two events.
         Is that, less what the host needed (it may have compiled), more than AT_ONCE times best, its trial ends. It is launched
         once more: the launch before keeps the device busy while the host prepares this one, so nothing is taken off. More
         than AT_ONCE times best: it ends; else it is timed twice more, and ends if the least of the three is more than SURELY
         times best. For kernels shorter than LONG_MS the host would not be hidden, and their trials are bounded anyhow.
Sound    The cache is not flushed, so that a loser's time is rather too short than too long. It stands in the tuner's database
         as that configuration's: good for the order, no measurement.
Output   in the terminal summary, where a trial was cut short: TUNE_CUTOFF trials=162 short=119
Limits   A Triton whose driver names its device interface (3.2 and later).
"""
import functools
import math
import os
import time

from _tuner_sweep import watch_sweeps

LONG_MS = 0.4
AT_ONCE, SURELY = 2.0, 1.3


def pytest_load_initial_conftests(early_config):
    """Before, and so inside, whatever else looks at a tuner's trials: what is launched here belongs to them."""
    if os.environ.get("TUNE_CUTOFF") == "0" or os.environ.get("HOST_TARGET"):
        return
    try:
        from triton.runtime.autotuner import Autotuner
    except ImportError:
        return
    cutoff = Cutoff(time_launch)
    cutoff.install(Autotuner)
    early_config.pluginmanager.register(cutoff, "gemscreen-tune-cutoff")


class Cutoff:
    """Ends trials early; `time_call(call)` gives the ms on the device of what call() launches, and the host's to launch it."""

    def __init__(self, time_call):
        self.time_call, self.best = time_call, math.inf     # of this sweep
        self.trials = self.short = 0

    def install(self, autotuner):
        """Patch the class; what derives from it, as FlagGems' LibTuner, calls its _bench()."""
        bench = autotuner._bench

        def bench_with_cutoff(tuner, *args, config, **meta):
            time_fully = tuner.do_bench
            tuner.do_bench = functools.partial(self.try_config, time_fully)
            try:
                timings = bench(tuner, *args, config=config, **meta)
            finally:
                tuner.do_bench = time_fully
            self.best = min(self.best, timings[0] if isinstance(timings, (list, tuple)) else timings)
            return timings

        autotuner._bench = bench_with_cutoff
        watch_sweeps(self.begin_sweep)

    def begin_sweep(self, *_):
        """Other configurations, other inputs."""
        self.best = math.inf

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
        took, host = self.time_call(call)
        if took - host > AT_ONCE * self.best:
            return took - host
        took, _ = self.time_call(call)
        if took > AT_ONCE * self.best:
            return took
        least = min(took, *(self.time_call(call)[0] for _ in range(2)))
        return least if least > SURELY * self.best else None

    def pytest_terminal_summary(self, terminalreporter):
        if self.short:
            terminalreporter.write_line(f"TUNE_CUTOFF trials={self.trials} short={self.short}")


def time_launch(call):
    """(ms between two events around call(), on the device of Triton's driver, ms until call() returned). Waits."""
    from triton.runtime import driver

    device = driver.active.get_device_interface()
    start, end = device.Event(enable_timing=True), device.Event(enable_timing=True)
    start.record()
    began = time.perf_counter()
    call()
    host_ms = 1e3 * (time.perf_counter() - began)
    end.record()
    device.synchronize()
    return start.elapsed_time(end), host_ms
