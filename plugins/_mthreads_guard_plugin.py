"""pytest plugin: on Moore Threads, drops the skip guards that ask for CUDA although the test would run.

Purpose: torch.cuda.is_available() is False on MUSA by design, and FlagGems dispatches to the card all the same. Tests
         that gate on it are skipped there and reported as not measured.
Use:     python -m pytest -p _mthreads_guard_plugin -s benchmark/test_fft.py      (plugins/ on PYTHONPATH)
Reads:   MTHREADS_GUARDS  the pin list; unset: ops/mthreads_guards.csv of this project (mthreads_guard/pins.py)
Does:    nothing unless FlagGems has dispatched to the vendor mthreads. Then a guard is dropped if
           - a pin names this file and this exact skip reason, is `verified`, and gives date, device and commit;
           - the guard says "no CUDA" and nothing else. One joined with a capability, version or package check stays;
           - it is a skipif of the test, its class or its module (a module's pytestmark is not on the test itself, so
             the whole chain of nodes is walked), or `if not torch.cuda.is_available(): pytest.skip("...")` in a body.
         torch.cuda.is_available itself is left as it is: other code is right to ask it.
         A test that runs only because of this plugin, or whose file picks "cpu" where there is no CUDA, fails if all
         tensors of a measurement are on the CPU: that figure would not be the card's.
Output:  mthreads guard: dropped 'CUDA required' from benchmark/test_x.py::test_x, 12 cases (verified 2026-10-09 on MTT S5000
             at ed2508b)
         mthreads guard: kept 'CUDA required' on benchmark/test_y.py::test_y: joined with another check: not (... and SM90)
         mthreads guard: 3 guards have a pin that is not verified and stay: benchmark/test_fft.py 'CUDA is not available', ...
Left in place deliberately, whatever a pin says:
         test_grid_sample.py        its input helper's device argument defaults to the literal "cuda": unskipped, all 90
                                    collected cases fail in aten::empty.
         test_cutlass_scaled_mm.py  gates on vLLM as well; without vLLM there is nothing to run.
Needs:   pytest. Limits: `from pytest import skip` and skips in a condition this cannot follow stay.
"""

import functools
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from mthreads_guard import pins as pin_list
from mthreads_guard import source

DEFAULT_PINS = Path(__file__).resolve().parent.parent / "ops" / "mthreads_guards.csv"
PACKAGES = (("flaggems_vllm", "vllm"), ("flag_gems", "main"))  # the tree's own package first: it may import the other


def find_dispatch():
    """(repo, vendor) of the FlagGems package that this process has imported, or (None, None)."""
    for package, repo in PACKAGES:
        vendor = getattr(sys.modules.get(package), "vendor_name", None)
        if vendor:
            return repo, vendor
    return None, None


def say(text):
    print(f"mthreads guard: {text}", flush=True)


def load_pins(path):
    """Pins by (repo, file, reason). pytest.UsageError for a list that cannot be read or a pin that is wrong."""
    try:
        rows = pin_list.read_pins(path)
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"MTHREADS_GUARDS: {path}: {error}; mend it or unset MTHREADS_GUARDS") from None
    for number, pin in rows:
        if pin.find_fault():
            raise pytest.UsageError(f"MTHREADS_GUARDS: {path}: line {number}: {pin.find_fault()}")
    return {(pin.repo, pin.file, pin.reason): pin for _, pin in rows}


def describe_evidence(pin):
    return f"verified {pin.date} on {pin.device} at {pin.commit}"


def name_scope(node):
    """`TestX.test_y` of a test or class, "" of a module: as mthreads_guard/source.py names scopes."""
    names = [part.originalname if isinstance(part, pytest.Function) else part.name
             for part in node.listchain() if isinstance(part, (pytest.Class, pytest.Function))]
    return ".".join(names)


def find_device_types(values):
    """The device types of all tensors in nested arguments, by duck typing: any object with `.device.type`."""
    types, waiting = set(), [values]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, (list, tuple)):
            waiting.extend(value)
        elif getattr(getattr(value, "device", None), "type", None):
            types.add(value.device.type)
    return types


class GuardDropper:
    """The hooks of one session on Moore Threads."""

    def __init__(self, root, path):
        self.root, self.path, self.pins = Path(root), path, None
        self.repo = self.watched = None
        self.guards, self.picking = {}, {}
        self.dropped, self.kept, self.unverified = Counter(), {}, set()
        self.freed = set()

    def is_active(self):
        """True once FlagGems has dispatched to mthreads; reads the pins the first time."""
        self.repo, vendor = find_dispatch()
        if vendor == "mthreads" and self.pins is None:
            self.pins = load_pins(self.path)
        return vendor == "mthreads"

    def relate(self, path):
        """The path relative to the tree, as pins name it; a file elsewhere keeps its absolute path."""
        path = Path(path)
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)

    def read_source(self, path):
        """(guards, picks its device) of a test file; what cannot be parsed has none."""
        if path not in self.guards:
            try:
                text = Path(path).read_text(encoding="utf-8")
                self.guards[path], self.picking[path] = source.find_guards(text), source.picks_device(text)
            except (OSError, SyntaxError, ValueError):
                self.guards[path], self.picking[path] = [], False
        return self.guards[path], self.picking[path]

    def find_pin(self, path, reason):
        """The pin of a guard in this file if it may be applied, else None; notes unverified ones."""
        name = self.relate(path)
        pin = self.pins.get((self.repo, name, reason))
        if pin is None or Path(name).name in pin_list.LEFT_IN_PLACE:
            return None
        if not pin.applies():
            self.unverified.add((name, reason))
            return None
        return pin

    # -- marks

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        if not self.is_active():
            return
        for item in items:
            for node in item.listchain():
                if isinstance(node, (pytest.Module, pytest.Class, pytest.Function)):
                    self.strip_marks(node)
            if self.has_lost_guard(item):
                self.freed.add(item.nodeid)
        self.report()

    def strip_marks(self, node):
        """Remove the droppable skipif marks of one node from the list that pytest evaluates."""
        for mark in [mark for mark in node.own_markers if mark.name == "skipif"]:
            reason = mark.kwargs.get("reason")
            pin = self.find_pin(node.path, reason)
            if pin is None:
                continue
            scope = name_scope(node)
            found = [guard for guard in self.read_source(node.path)[0]
                     if guard.form != "body" and guard.scope == scope and guard.reason == reason]
            name = f"{self.relate(node.path)}{'::' if scope else ''}{scope.replace('.', '::')}"
            joined = [guard.condition for guard in found if not guard.pure]
            if found and not joined:  # two marks of one scope may share a reason: then all of them must be pure
                node.own_markers.remove(mark)
                self.dropped[name, reason, describe_evidence(pin)] += 1
            else:
                why = f"joined with another check: {joined[0]}" if joined else "its condition is not in this file"
                self.kept[name, reason] = why

    def has_lost_guard(self, item):
        file, scopes = self.relate(item.path), [name_scope(node) for node in item.listchain()]
        names = {f"{file}{'::' if scope else ''}{scope.replace('.', '::')}" for scope in scopes}
        return any(name in names for name, _, _ in self.dropped)

    def report(self):
        for (name, reason, evidence), cases in sorted(self.dropped.items()):
            count = f", {cases} cases" if cases > 1 else ""
            say(f"dropped {reason!r} from {name}{count} ({evidence})")
        for (name, reason), why in sorted(self.kept.items()):
            say(f"kept {reason!r} on {name}: {why}")
        if self.unverified:
            names = ", ".join(f"{name} {reason!r}" for name, reason in sorted(self.unverified))
            say(f"{len(self.unverified)} guards have a pin that is not verified and stay: {names}")

    # -- pytest.skip() in bodies

    def pytest_sessionstart(self):
        self.original_skip = pytest.skip
        pytest.skip = self.wrap_skip(pytest.skip)

    def pytest_sessionfinish(self):
        pytest.skip = self.original_skip

    def wrap_skip(self, original):
        """pytest.skip that returns where the call is a pinned pure guard, and skips everywhere else."""

        @functools.wraps(original)
        def skip(*args, **kwargs):
            __tracebackhide__ = True
            frame = sys._getframe(1)
            if self.is_active() and self.may_pass(frame.f_code.co_filename, frame.f_lineno):
                return None
            return original(*args, **kwargs)

        skip.Exception = original.Exception
        return skip

    def may_pass(self, path, line):
        """True if the pytest.skip() at this line is a droppable guard; says so."""
        for guard in self.read_source(path)[0]:
            if guard.form == "body" and guard.line <= line <= guard.end and guard.reason:
                pin = self.find_pin(path, guard.reason)
                if pin is not None and guard.pure:
                    name = f"{self.relate(path)}:{guard.line}"
                    say(f"dropped {guard.reason!r} in {name}, {guard.scope or 'module'} ({describe_evidence(pin)})")
                    self.freed.add(self.watched)
                    return True
                if pin is not None:
                    place = f"{self.relate(path)}:{guard.line}"
                    say(f"kept {guard.reason!r} in {place}: joined with another check: {guard.condition}")
        return False

    # -- measurements on the CPU

    def pytest_collection_finish(self):
        if not self.is_active():
            return
        for module in list(sys.modules.values()):
            benchmark = getattr(module, "__dict__", {}).get("Benchmark")
            if isinstance(benchmark, type) and "get_latency" in vars(benchmark):
                benchmark.get_latency = self.guard_latency(benchmark.get_latency)

    def guard_latency(self, original):
        @functools.wraps(original)
        def get_latency(benchmark, op, *args, **kwargs):
            if self.watched in self.freed and find_device_types([args, kwargs]) == {"cpu"}:
                raise RuntimeError("mthreads guard: all tensors of this measurement are on the CPU: the test picks its "
                                   "device by torch.cuda.is_available(), so the figure would not be the card's")
            return original(benchmark, op, *args, **kwargs)

        return get_latency

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item):
        self.watched = item.nodeid
        if self.is_active() and self.read_source(item.path)[1]:
            self.freed.add(item.nodeid)


def pytest_configure(config):
    path = os.environ.get("MTHREADS_GUARDS") or DEFAULT_PINS
    config.pluginmanager.register(GuardDropper(config.rootpath, path), "mthreads_guard_dropper")
