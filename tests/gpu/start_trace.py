"""pytest plugin for speed_check.py: what an operator's process spends its time on.

Reads   STARTED, RUN_DIR of run_pytest.sh. Writes RUN_DIR/start.json:
          {"imported": 0.4, "collected": 0.6, "first_begins": 0.7, "first_ends": 1.6, "last_ends": 8.1, "left": 8.3,
           "columns": [30, 6.4], "compiles": [9, 2.1], "launchers": [3, 0.9], "trials": [24, 3.0]}
        The first six are seconds from the start of run_pytest.sh; first_begins is the first call of Benchmark.get_latency
        (inputs are made, nothing is compiled), first_ends its return, last_ends that of the last. The others are numbers and
        seconds: of columns; within them of compiles that the cache did not have (threads add up), of the C compiler for
        launchers, and of a tuner's trials, compiles of theirs included.
"""
import functools
import json
import os
import sys
import time

import pytest

TIMES = {}


def note(name):
    """Seconds from the start of run_pytest.sh."""
    TIMES[name] = round(time.time() - float(os.environ["STARTED"]), 3)


def add(name, seconds):
    count, total = TIMES.get(name, (0, 0.0))
    TIMES[name] = count + 1, round(total + seconds, 3)


def watch(function, name):
    """`function`, whose calls are counted and timed as `name`."""
    @functools.wraps(function)
    def watched(*args, **kwargs):
        began = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            add(name, time.perf_counter() - began)
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


def pytest_load_initial_conftests():
    note("imported")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    note("collected")
    watch_triton()
    for module in list(sys.modules.values()):
        base = getattr(module, "__dict__", {}).get("Benchmark")
        if isinstance(base, type) and "get_latency" in vars(base):
            base.get_latency = watch_columns(base.get_latency)


def pytest_unconfigure():
    note("left")
    with open(os.path.join(os.environ["RUN_DIR"], "start.json"), "w", encoding="utf-8") as file:
        json.dump(TIMES, file)
