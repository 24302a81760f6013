"""Pytest plugin: run Triton's kernels on a machine with no accelerator.

Purpose   Installs host_device before flag_gems is imported, lets benchmarks run each function once, and fails an
          operator whose tests passed without launching a single kernel: they would prove nothing.
Usage     HOST_TARGET=cuda:90 PYTHONPATH=plugins python -m pytest -p _host_device_plugin NODE ...
Input     HOST_TARGET (unset: this plugin does nothing), HOST_MODE=execute|compile, RUN_DIR,
          HOST_ANY_VERSION=1 (only for `make host-matrix`: skip the list of passed versions)
Output    RUN_DIR/launches.json at the end of the session, where RUN_DIR is set:
            {"schema": 1, "target": "cuda:90", "mode": "execute",
             "variants": [{"name": "abs_func", "hash": "3f...", "launches": 2, "num_warps": 4,
                           "shared": 0, "convert_layout": 0}, ...]}
          and one line in the terminal summary.
Limits    See host_device/__init__.py. Times are not those of any device. Exit 3 where versions are refused, 2 for a bad
          value.
"""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

BUILTIN_MARKS = ("parametrize", "skip", "skipif", "xfail", "usefixtures", "filterwarnings", "timeout")
NO_LAUNCH = "host device: no Triton kernel was launched"


def pytest_load_initial_conftests(early_config):
    """After ``pythonpath`` of pytest.ini has put a checkout on the path, before any conftest imports flag_gems."""
    from host_device import HostDeviceError, install, read_target

    try:
        target = read_target(os.environ)
        if target is None:
            return
        device = install(target, any_version=os.environ.get("HOST_ANY_VERSION") == "1")
        importlib.util.find_spec("flag_gems")  # the import hook checks its version: refuse it here, not in a traceback
    except HostDeviceError as error:
        leave(error)
    early_config.pluginmanager.register(HostDeviceSession(device), "host-device-session")


def leave(error):
    """End pytest before it has begun: the reason on stderr, no traceback."""
    print(f"_host_device_plugin: error: {error}", file=sys.stderr)
    raise SystemExit(error.code)


def group_of(item):
    """What must launch a kernel at least once: an operator (a file and its mark), or a function that has no mark."""
    path, _, function = item.nodeid.partition("[")[0].partition("::")
    marks = [mark.name for mark in item.iter_markers() if mark.name not in BUILTIN_MARKS]
    return path, marks[0] if marks else function


class HostDeviceSession:
    """The hooks that are active only while the host device is."""

    def __init__(self, device):
        self.device = device
        self.last_cases = set()  # of each group, the node id of the case that runs last
        self.launched = set()  # groups that launched a kernel

    def pytest_report_header(self):
        return f"host device: {self.device.target}, mode {self.device.target.mode}; times mean nothing"

    def pytest_collection_finish(self, session):
        self.last_cases = set({group_of(item): item.nodeid for item in session.items}.values())
        self.run_once()

    def run_once(self):
        """Upstream's wrapper and operator modes repeat a function for a given time: once is enough here."""
        for name, module in list(sys.modules.items()):
            if name.endswith("benchmark.base") and hasattr(module, "get_iter_count"):
                module.get_iter_count = lambda fn: (0, 1)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        """A case may launch nothing (an empty tensor); an operator none of whose cases does is failed in its last."""
        before = self.device.recorder.total_launches
        result = yield
        if self.device.recorder.total_launches > before:
            self.launched.add(group_of(item))
        elif item.nodeid in self.last_cases and group_of(item) not in self.launched:
            pytest.fail(NO_LAUNCH, pytrace=False)
        return result

    def pytest_terminal_summary(self, terminalreporter):
        recorder = self.device.recorder
        terminalreporter.write_line(
            f"host device: {self.device.target}, {recorder.variant_count} variants, "
            f"{recorder.total_launches} launches"
        )

    def pytest_sessionfinish(self):
        run_dir = os.environ.get("RUN_DIR")
        if run_dir:
            self.device.recorder.write(Path(run_dir, "launches.json"), self.device.target)
