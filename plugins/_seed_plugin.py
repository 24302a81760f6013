"""pytest plugin: every process draws the same random inputs.

Purpose: some of upstream's benchmarks draw a pad, a length or an index with Python's `random` and never seed it (19 files
         at ed2508b; constant_pad_nd's pad is a compile-time constant of its kernel). Two processes then time two
         workloads under one row's name, and no comparison of theirs, from night to night or cell to cell, means anything.
Use:     SEED=0 python -m pytest -p _seed_plugin -s benchmark/test_pad.py      (plugins/ on PYTHONPATH)
Reads:   SEED  a whole number; unset or `none`: nothing is seeded
Does:    seeds Python's `random`, NumPy and torch (its devices too) before the collection, and before each test anew from SEED
         and the test's node id: a test's inputs do not depend on which tests ran before it.
         run_pytest.sh sets PYTHONHASHSEED from SEED as well (the order of sets), which only a process' start can do.
Limits:  what a benchmark seeds itself stays its own; os.urandom, `secrets` and generators made without a seed are not reached.
         Kernels that draw numbers are seeded through torch's generators, as far as they use these.
"""
import os
import random
import sys
import zlib

import pytest


def pytest_configure(config):
    text = os.environ.get("SEED") or "none"
    if text == "none":
        return
    if not text.isascii() or not text.isdigit():
        raise pytest.UsageError(f"SEED: {text}: is no whole number; give one, as SEED=0, or SEED=none")
    config.pluginmanager.register(Seeds(text), "seeds")


class Seeds:
    """Seeds everything, from one text and the name of what is about to run."""

    def __init__(self, text):
        self.text = text

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self):
        seed_all(f"{self.text} collection")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        seed_all(f"{self.text} {item.nodeid}")


def seed_all(name):
    """Seed the generators of all modules that this process has imported; `name` is any text."""
    seed = zlib.crc32(name.encode("utf-8", "backslashreplace"))  # 0 to 2**32 - 1, what NumPy takes
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
