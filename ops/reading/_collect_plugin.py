"""pytest plugin of rebuild_inventory.py: writes what pytest has collected to the JSON file COLLECT_OUT.

Usage: COLLECT_OUT=out.json PYTHONPATH=ops/reading python -m pytest -p _collect_plugin --collect-only -q
       --rootdir TREE TREE/benchmark
Writes, as the session ends (its absence means that pytest did not end by itself):
  {"schema": 1, "items": 1188, "pytest_exit": 0, "device": "NVIDIA H200",
   "functions": [{"node": "benchmark/test_mul.py::test_mul", "cases": [{"id": "", "marks": ["mul"], "skips": []}]}],
   "skipped": [{"node": "benchmark/test_x.py", "text": "no vllm"}],
   "errors": [{"node": "benchmark/test_broken.py", "text": "ImportError: no module named vllm", "mismatch": false}]}
Marks are in iter_markers()'s order and include pytest's own; `id` is the text in brackets. A function whose cases all
have the same marks has one case with the id "" and "count" of them.
"""

import json
import os
import sys

import pytest


class Collector:
    """Gathers items and failed collectors of one session."""

    def __init__(self, path):
        self.path = path
        self.items, self.skipped, self.errors = [], [], []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        # First of all: upstream's conftest may empty the list.
        self.items = list(items)

    def pytest_collectreport(self, report):
        if report.failed:
            # Two files of one name in folders that are no packages: the second can only be collected by itself.
            mismatch = "import file mismatch" in str(report.longrepr)
            self.errors.append({"node": report.nodeid, "text": last_line(report.longrepr), "mismatch": mismatch})
        elif report.skipped:
            self.skipped.append({"node": report.nodeid, "text": last_line(report.longrepr)})

    def pytest_sessionfinish(self, exitstatus):
        data = {
            "schema": 1,
            "items": len(self.items),
            "pytest_exit": int(exitstatus),
            "device": name_device(),
            "functions": group_functions(self.items),
            "skipped": self.skipped,
            "errors": self.errors,
        }
        with open(self.path + ".tmp", "w", encoding="utf-8") as stream:
            json.dump(data, stream)
        os.replace(self.path + ".tmp", self.path)


def name_device():
    """What the device calls itself, by the flag_gems that the tree's conftest.py has imported; `unknown` without one."""
    gems, torch = sys.modules.get("flag_gems"), sys.modules.get("torch")
    module = getattr(torch, getattr(gems, "device", ""), None)
    try:
        return module.get_device_name(0)
    except (AttributeError, AssertionError, RuntimeError):
        return getattr(gems, "vendor_name", "unknown")


def last_line(longrepr):
    """The line that says what went wrong: of a traceback the one that pytest marks with `E`, of a skip its reason."""
    if isinstance(longrepr, tuple):
        return str(longrepr[2])
    lines = [line.strip() for line in str(longrepr).splitlines() if line.strip()]
    marked = [line[1:].strip() for line in lines if line.startswith("E ")]
    return (marked or lines or ["no text"])[-1]


def group_functions(items):
    groups = {}
    for item in items:
        name = getattr(item, "originalname", None)
        node = f"{item.parent.nodeid}::{name}" if name else item.nodeid
        marks = [mark.name for mark in item.iter_markers()]
        case_id = item.name[len(name or item.name):][1:-1]      # test_x[a-b] -> a-b
        case = {"id": case_id, "marks": marks, "skips": describe_skips(item)}
        groups.setdefault(node, []).append(case)
    return [{"node": node, "cases": merge_cases(cases)} for node, cases in groups.items()]


def merge_cases(cases):
    first = cases[0]
    if all(case["marks"] == first["marks"] for case in cases):
        return [{**first, "id": "", "count": len(cases)}]
    return cases


def describe_skips(item):
    found = []
    for mark in item.iter_markers():
        if mark.name in ("skip", "skipif"):
            # skip("reason") and skip(reason="reason"), skipif(condition, reason="reason")
            words = [text for text in mark.args if isinstance(text, str)] if mark.name == "skip" else []
            found.append(f"{mark.name}: {mark.kwargs.get('reason', words[0] if words else '')}")
    return found


def pytest_configure(config):
    if os.environ.get("COLLECT_OUT"):
        config.pluginmanager.register(Collector(os.environ["COLLECT_OUT"]), "gemscreen-collector")
