"""pytest plugin for speed_check.py: what an operator's process spends its time on.

Reads   STARTED, RUN_DIR of run_pytest.sh. Writes RUN_DIR/start.json:
          {"imported": 0.4, "collected": 0.6, "first_begins": 0.7, "first_ends": 1.6, "last_ends": 8.1, "left": 8.3,
           "columns": [30, 6.4], "compiles": [9, 2.1], "launchers": [3, 0.9], "trials": [24, 3.0]}
        The first six are seconds from the start of run_pytest.sh; first_begins is the first call of Benchmark.get_latency
        (inputs are made, nothing is compiled), first_ends its return, last_ends that of the last. The others are numbers and
        seconds: of columns; within them of compiles that the cache did not have (threads add up), of the C compiler for
        launchers, and of a tuner's trials, compiles of theirs included. "database" is what LibTuner's asking and writing took,
        and "steps" {"warm up": [30, 0.2], ...} of the timer: some lie within others (STEPS).
"""
import functools
import json
import os
import sys
import time

import pytest

TIMES, STEPS_TAKEN = {}, {}
STEPS = (  # what it is called, module, class, method; indented: part of the one above
    ("warm up", "measure", "Timer", "_warm_up"), ("probe", "measure", "Timer", "_probe_graph"),
    ("copies", "workload", "Workload", "__init__"), ("capture", "measure", "Timer", "_capture"),
    ("sample", "blocks", "Sampler", "sample"), (" settle", "blocks", "Sampler", "_settle"),
    (" health", "health", "NvmlReader", "read"), ("gap", "gap", "GapProbe", "read"), ("trim", "device", "TorchDevice", "trim"),
    ("host", "measure", "", "time_host"), ("release", "capture", "CudaGraph", "release"), ("all", "measure", "Timer", "measure"))
DATABASE = (("BenchmarkCache", "get"), ("BenchmarkCache", "set"), ("ConfigCache", "set"))


def note(name):
    """Seconds from the start of run_pytest.sh."""
    TIMES[name] = round(time.time() - float(os.environ["STARTED"]), 3)


def add(name, seconds, times=TIMES):
    count, total = times.get(name, (0, 0.0))
    times[name] = count + 1, round(total + seconds, 6)


def watch(function, name, times=TIMES):
    """`function`, whose calls are counted and timed as `name`."""
    @functools.wraps(function)
    def watched(*args, **kwargs):
        began = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            add(name, time.perf_counter() - began, times)
    return watched


def watch_columns(get_latency):
    timed = watch(get_latency, "columns")

    @functools.wraps(get_latency)
    def get_watched_latency(*args, **kwargs):
        first = "first_begins" not in TIMES
        if first:
            note("first_begins")
        try:
            return timed(*args, **kwargs)
        finally:
            for name in ("first_ends", "last_ends") if first else ("last_ends",):
                note(name)
    return get_watched_latency


def watch_triton():
    import triton

    def hear(*, times, cache_hit, **_):
        if not cache_hit:
            add("compiles", times.total / 1e6)
    triton.knobs.compilation.listener = hear
    triton.runtime.build._build = watch(triton.runtime.build._build, "launchers")
    triton.runtime.Autotuner._bench = watch(triton.runtime.Autotuner._bench, "trials")


def watch_methods(module, names):
    """Time methods of `module`, as far as it has them: (name, class or "", method, where to) each."""
    for name, cls, method, times in names:
        owner = getattr(module, cls, None) if cls else module
        if owner is not None and hasattr(owner, method):
            setattr(owner, method, watch(getattr(owner, method), name, times))


def pytest_load_initial_conftests():
    note("imported")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    note("collected")
    watch_triton()
    watch_methods(sys.modules.get("flag_gems.utils.libentry"), [("database", *place, TIMES) for place in DATABASE])
    for name, module, cls, method in STEPS:
        watch_methods(sys.modules.get(f"graph_timer.{module}"), [(name, cls, method, STEPS_TAKEN)])
    named = [getattr(module, "__dict__", {}).get("Benchmark") for module in list(sys.modules.values())]
    for base in {each for each in named if isinstance(each, type)}:     # several modules may have the same one
        if "get_latency" in vars(base):
            base.get_latency = watch_columns(base.get_latency)


def pytest_unconfigure():
    note("left")
    with open(os.path.join(os.environ["RUN_DIR"], "start.json"), "w", encoding="utf-8") as file:
        json.dump({**TIMES, "steps": STEPS_TAKEN}, file)
