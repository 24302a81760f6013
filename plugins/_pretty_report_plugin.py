"""pytest plugin: keeps every measured row, shortens the tables without loss, records each test's outcome.

Purpose: upstream's Benchmark.run prints a dtype's table only after its last shape. When a shape raises, the rows
         measured before it are lost; this plugin prints them, and what was not measured.
Use:     python -m pytest -p _pretty_report_plugin -s benchmark/test_abs.py      (plugins/ on PYTHONPATH)
Reads:   RUN_DIR      the run directory; unset: neither tests.jsonl nor session.jsonl
         HOST_TARGET  set: the host device's times are no times, so speedup, TFLOPS and GBPS are left out
Output:  upstream's table as it is, but for constant inputs, which move to a legend (`#1` stands for the text):
           Operator: mm  Performance Test (dtype=torch.float16, mode=kernel,level=core)
           Legend: #1 = torch.Size([64, 64])
           Status       Torch Latency (ms)    Gems Latency (ms)         Gems Speedup          Size Detail
           ----------------------------------------------------------------------------------------------
           SUCCESS                0.006000            0.005000               1.200          [torch.Size([8, 64]), #1]
           FAILED                      N/A                 N/A                 N/A          [torch.Size([9, 64]), #1]
           FAILED: Operator=mm dtype=torch.float16 row=2 err=<<<RuntimeError: out of memory>>>
           NOT MEASURED: Operator=mm dtype=torch.float32 reason=<<<after failure of torch.float16>>>
         RUN_DIR/tests.jsonl, one line per test as it ends:
           {"schema": 1, "node": "benchmark/test_abs.py::test_abs", "outcome": "failed", "when": "call",
            "seconds": 1.5, "error": "RuntimeError: out of memory", "reason": "out of memory"}
         RUN_DIR/session.jsonl, by which a run that ended early or a log that lost rows is told (common/session.py):
           {"schema": 1, "event": "started"}
           {"schema": 1, "event": "collected", "nodes": ["benchmark/test_abs.py::test_abs"]}
           {"schema": 1, "event": "table", "op": "abs", "dtype": "torch.float16", "rows": ["0.005000", "FAILED"]}
           {"schema": 1, "event": "finished", "exit": 0}
Needs:   pytest. Limits: tables are visible with `-s`; a run() that overrides the base class's and asks
         get_input_iter for nothing is printed as upstream prints it.
"""

import copy
import functools
import os
import re
import signal
import sys
import threading

import pytest
from _run_records import JsonLines, SessionRecorder, TestRecorder, describe_error, find_cause
from _term_style import TermStyle, fold_details

BENCHMARK_METHODS = ("run", "get_input_iter", "set_dtypes")


# Rows -----------------------------------------------------------------------------------------------------------


class RunRecord:
    """What one Benchmark.run() has done: the dtypes it began, and the metrics of the last one."""

    def __init__(self):
        self.dtypes = []
        self.steps = []  # of the last dtype, per input: the BenchmarkMetrics made for it
        self.making_input = True
        self.printed = False

    def watch(self, get_input_iter):
        """`get_input_iter` with a record of what is asked of it. Holds no input: they may be most of the memory."""

        def get_watched_inputs(dtype, *args, **kwargs):
            self.dtypes.append(dtype)
            self.steps, self.making_input, self.printed = [], True, False
            return _WatchedInputs(self, iter(get_input_iter(dtype, *args, **kwargs)))

        return get_watched_inputs

    def split_rows(self):
        """(metrics of the measured inputs, the metric that was being measured or None)."""
        # Upstream makes a metric anew in some steps; the last one is what it keeps.
        done, last = (self.steps, []) if self.making_input else (self.steps[:-1], self.steps[-1])
        return [step[-1] for step in done if step], (last[-1] if last else None)


class _WatchedInputs:
    def __init__(self, record, inputs):
        self.record, self.inputs = record, inputs

    def __iter__(self):
        return self

    def __next__(self):
        __tracebackhide__ = True
        self.record.making_input = True
        item = next(self.inputs)
        self.record.making_input = False
        self.record.steps.append([])
        return item


class TableReporter:
    """Wraps a tree's Benchmark, BenchmarkMetrics and BenchmarkResult classes; see the module's docstring."""

    def __init__(self, style, on_host, session):
        self.style = style
        self.on_host = on_host
        self.session = session  # the SessionRecorder that is told of each table, or None
        self.record = None  # of the run() that is under way
        self.wrapped = set()

    def pytest_collection_finish(self, session):
        # Only now are all benchmark files imported, and with them the subclasses that have a run() of their own.
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", {})
            if not all(isinstance(names.get(name), type) for name in ("BenchmarkMetrics", "BenchmarkResult")):
                continue
            for base in [value for value in names.values() if is_benchmark_class(value)]:
                for cls in [base, *find_subclasses(base)]:
                    self.wrap_once(cls, "run", self.watch_run)
            self.wrap_once(module.BenchmarkMetrics, "__init__", self.watch_metrics)
            self.wrap_once(module.BenchmarkResult, "__str__", self.format_table)

    def wrap_once(self, cls, name, wrap):
        if name in vars(cls) and (cls, name) not in self.wrapped:
            self.wrapped.add((cls, name))
            setattr(cls, name, functools.wraps(vars(cls)[name])(wrap(vars(cls)[name])))

    def watch_metrics(self, init):
        def init_and_record(metric, *args, **kwargs):
            init(metric, *args, **kwargs)
            if self.record is not None and self.record.steps:
                self.record.steps[-1].append(metric)

        return init_and_record

    def watch_run(self, run):
        def run_and_rescue(bench, *args, **kwargs):
            __tracebackhide__ = True
            if self.record is not None:  # a subclass's run() that calls the base class's
                return run(bench, *args, **kwargs)
            record = self.record = RunRecord()
            own = vars(bench).get("get_input_iter")
            bench.get_input_iter = record.watch(bench.get_input_iter)
            try:
                return run(bench, *args, **kwargs)
            except BaseException as error:
                self.rescue(bench, record, error)
                raise
            finally:
                self.record = None
                del bench.get_input_iter
                if own is not None:
                    bench.get_input_iter = own

        return run_and_rescue

    def rescue(self, bench, record, error):
        """Print what the run() that ended in `error` measured and did not print. Touches no device."""
        if not record.dtypes:
            return  # nothing began: the test's own failure says it all
        dtype, title = record.dtypes[-1], f"Operator={bench.op_name} dtype="
        ended, reason = classify_end(error)
        module = find_base_module(type(bench))
        if not record.printed:
            rows, failed = record.split_rows()
            if ended == "failure":
                row = copy.copy(rows[-1]) if rows else module.BenchmarkMetrics()
                for name in vars(row):
                    setattr(row, name, None)
                row.shape_detail = getattr(failed, "shape_detail", None)
                row.error_msg = reason
                rows = [*rows, row]
            if rows:
                config = module.Config
                print(module.BenchmarkResult(op_name=bench.op_name, dtype=str(dtype), mode=config.mode.value,
                                             level=config.bench_level.value, result=rows))  # fmt: skip
            if ended == "failure":
                print(self.style.paint("FAILED", "bad") + f": {title}{dtype} row={len(rows)} err=<<<{reason}>>>")
            else:
                print(f"NOT MEASURED: {title}{dtype} reason=<<<{reason}>>>")
        elif ended == "failure":
            print(f"NOTE: {title}{dtype} after its table: {reason}")
        for other in bench.to_bench_dtypes:
            if other not in record.dtypes:
                print(f"NOT MEASURED: {title}{other} reason=<<<after {ended} of {dtype}>>>")
        sys.stdout.flush()

    def format_table(self, to_text):
        def fold_and_paint(result):
            shown = copy.copy(result)
            shown.result = [copy.copy(row) for row in result.result]
            details, legend = fold_details([row.shape_detail for row in shown.result])
            for row, detail in zip(shown.result, details):
                if legend and row.shape_detail is not None:
                    row.shape_detail = detail
                if self.on_host:  # a ratio of two run-once times on a CPU says nothing about any card
                    row.speedup = row.tflops = row.gbps_base = row.gbps = None
            text = self.paint_table(to_text(shown), legend)
            if self.record is not None:
                self.record.printed = True  # only now: upstream's own text fails where there is no row
                if self.session is not None:
                    self.session.add_table(result)
            return text

        return fold_and_paint

    def paint_table(self, text, legend):
        head, title, body = text.partition("\nOperator: ")
        name, newline, body = body.partition("\n")
        lines = "".join(f"Legend: #{n} = {meaning}\n" for n, meaning in enumerate(legend, 1))
        if self.style.colour:
            name, lines = self.style.paint(name, "title"), self.style.paint(lines[:-1], "dim") + lines[-1:]
            body = re.sub(r"^SUCCESS", self.style.paint("SUCCESS", "good"), body, flags=re.M)
            body = re.sub(r"^FAILED", self.style.paint("FAILED", "bad"), body, flags=re.M)
        return head + title + name + newline + lines + body


def is_benchmark_class(value):
    return isinstance(value, type) and all(callable(getattr(value, name, None)) for name in BENCHMARK_METHODS)


def find_base_module(cls):
    """The module of upstream's base class (benchmark/base.py), which holds Config and the result classes."""
    base = next(c for c in reversed(cls.__mro__) if is_benchmark_class(c))
    return sys.modules[base.__module__]


def find_subclasses(cls):
    """All classes below `cls`, each once."""
    found = []
    for child in cls.__subclasses__():
        found += [c for c in [child, *find_subclasses(child)] if c not in found]
    return found


def classify_end(error):
    """("failure" | "skip" | "interruption", text on one line) of the exception that ended a run()."""
    if isinstance(error, pytest.skip.Exception):
        return "skip", "skipped: " + " ".join(str(error).split())
    if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit, pytest.exit.Exception)):
        return "interruption", "interrupted: " + describe_error(error)
    return "failure", describe_error(find_cause(error))


# Plugin ---------------------------------------------------------------------------------------------------------


def raise_on_terminate():
    """Make SIGTERM end pytest as Ctrl-C does, so that a time limit does not cost the rows measured so far."""

    def interrupt(signum, frame):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the group and the parent may both send one
        raise KeyboardInterrupt("SIGTERM")

    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, interrupt)


def pytest_configure(config):
    run_dir, session = os.environ.get("RUN_DIR"), None
    if run_dir:
        session = SessionRecorder(JsonLines(os.path.join(run_dir, "session.jsonl")))
        config.pluginmanager.register(session, "gemscreen-session")
        config.pluginmanager.register(TestRecorder(JsonLines(os.path.join(run_dir, "tests.jsonl"))), "gemscreen-tests")
    style = TermStyle.for_stream(sys.stdout, os.environ)
    config.pluginmanager.register(TableReporter(style, bool(os.environ.get("HOST_TARGET")), session), "gemscreen-tables")
    raise_on_terminate()


def pytest_sessionstart(session):
    """Let pytest print paths as they are in the tree: it makes them relative to where it runs, the run directory."""
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if os.environ.get("RUN_DIR") and reporter is not None:
        session.config.cwd_relative_nodeid = lambda nodeid: nodeid
        reporter.startpath = session.config.rootpath
