"""pytest plugin for speed_check.py: when an operator's first measurement began and ended, as seconds from its start.

Reads   STARTED, RUN_DIR of run_pytest.sh. Writes RUN_DIR/start.json:
          {"imported": 0.4, "collected": 0.6, "first_begins": 0.7, "first_ends": 1.6}
        first_begins is the first call of Benchmark.get_latency (inputs are made, nothing is compiled); first_ends its return.
"""
import json
import os
import sys
import time

import pytest

TIMES = {}


def note(name):
    """Seconds from the start of run_pytest.sh, once for each name."""
    TIMES.setdefault(name, round(time.time() - float(os.environ["STARTED"]), 3))


def watch(get_latency):
    def get_watched_latency(*args, **kwargs):
        note("first_begins")
        try:
            return get_latency(*args, **kwargs)
        finally:
            note("first_ends")
    return get_watched_latency


def pytest_load_initial_conftests():
    note("imported")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    note("collected")
    for module in list(sys.modules.values()):
        base = getattr(module, "__dict__", {}).get("Benchmark")
        if isinstance(base, type) and "get_latency" in vars(base):
            base.get_latency = watch(base.get_latency)


def pytest_unconfigure():
    with open(os.path.join(os.environ["RUN_DIR"], "start.json"), "w", encoding="utf-8") as file:
        json.dump(TIMES, file)
