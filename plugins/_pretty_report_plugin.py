"""pytest plugin: keeps every measured row, shortens the tables without loss, records each test's outcome.

Purpose: upstream's Benchmark.run prints a dtype's table only after its last shape. When a shape raises, the rows
         measured before it are lost; this plugin prints them, and what was not measured.
Use:     python -m pytest -p _pretty_report_plugin -s benchmark/test_abs.py      (plugins/ on PYTHONPATH)
Reads:   RUN_DIR      the run directory; unset: no tests.jsonl
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
Needs:   pytest. Limits: tables are visible with `-s`; a run() that overrides the base class's and asks
         get_input_iter for nothing is printed as upstream prints it.
"""

import copy
import functools
import json
import os
import re
import signal
import sys
import threading

import pytest
from _term_style import TermStyle, fold_details

BENCHMARK_METHODS = ("run", "get_input_iter", "set_dtypes")
LINE_KEYS = ("outcome", "when", "seconds", "error", "reason")
MAX_REASON = 8000  # characters of a message that tests.jsonl keeps


# Errors ---------------------------------------------------------------------------------------------------------


def find_cause(error):
    """The exception that upstream hid in `pytest.fail(str(e))`, else `error` itself."""
    cause = error.__context__
    hidden = isinstance(error, pytest.fail.Exception) and cause is not None and str(cause) == str(error)
    return cause if hidden else error


def describe_error(error):
    """`Type: text` on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


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

    def __init__(self, style, on_host):
        self.style = style
        self.on_host = on_host
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


# Outcomes -------------------------------------------------------------------------------------------------------


class TestRecorder:
    """Appends one line per test to `path` as the test ends."""

    __test__ = False  # pytest would take it for a test class by its name

    def __init__(self, path):
        self.path = path
        self.ended = {}  # node -> line of a test that is under way

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        outcome = yield
        if call.excinfo is not None:
            outcome.get_result().cause = find_cause(call.excinfo.value)

    def pytest_runtest_logreport(self, report):
        line = self.ended.setdefault(report.nodeid, {"outcome": "passed", "when": "call", "seconds": 0.0})
        line["seconds"] += report.duration
        if report.outcome == "passed" or line["outcome"] in ("failed", "error"):
            return
        outcome = "error" if report.failed and report.when != "call" else report.outcome
        line.update(outcome=outcome, when=report.when, **describe_report(report))

    def pytest_runtest_logfinish(self, nodeid):
        if nodeid in self.ended:
            self.write(nodeid, self.ended.pop(nodeid))

    def pytest_collectreport(self, report):
        if not report.passed:
            outcome = "error" if report.failed else "skipped"
            line = {"outcome": outcome, "when": "collect", "seconds": 0.0}
            self.write(report.nodeid, {**line, **describe_report(report)})

    def write(self, node, line):
        line = {"error": "", "reason": "", **line, "seconds": round(line["seconds"], 3)}
        line = {"schema": 1, "node": node, **{key: line[key] for key in LINE_KEYS}}
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def describe_report(report):
    """{"error": "Type: first line", "reason": the whole message} of a report that is not passed."""
    cause = getattr(report, "cause", None)
    if isinstance(report.longrepr, tuple):  # (file, line, "Skipped: why")
        return {"error": "", "reason": report.longrepr[2].removeprefix("Skipped: ")}
    if cause is not None:
        first = (str(cause).splitlines() or [""])[0]
        error = f"{type(cause).__name__}: {first}".removesuffix(": ")
        return {"error": error, "reason": str(cause)[:MAX_REASON]}
    text = str(report.longrepr or "")
    errors = [line[1:].strip() for line in text.splitlines() if re.match(r"E\s", line)]
    return {"error": (errors or text.strip().splitlines() or [""])[0], "reason": text[:MAX_REASON]}


# Plugin ---------------------------------------------------------------------------------------------------------


def raise_on_terminate():
    """Make SIGTERM end pytest as Ctrl-C does, so that a time limit does not cost the rows measured so far."""

    def interrupt(signum, frame):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the group and the parent may both send one
        raise KeyboardInterrupt("SIGTERM")

    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, interrupt)


def pytest_configure(config):
    style = TermStyle.for_stream(sys.stdout, os.environ)
    config.pluginmanager.register(TableReporter(style, bool(os.environ.get("HOST_TARGET"))), "gemscreen-tables")
    run_dir = os.environ.get("RUN_DIR")
    if run_dir:
        config.pluginmanager.register(TestRecorder(os.path.join(run_dir, "tests.jsonl")), "gemscreen-tests")
    raise_on_terminate()
