"""pytest plugin: times upstream's kernel mode by CUDA-graph replay, torch's column and FlagGems' alike.

Purpose: upstream's default timer, Triton's do_bench, reads 68 us for a kernel of 1.1 us: below about 100 us it measures
         the launch from Python. Here many launches are captured and replayed (graph_timer/, docs/timing.md).
Use:     RUN_DIR=out python -m pytest -p _cudagraph_plugin -s benchmark/test_abs.py      (plugins/ on PYTHONPATH)
Reads:   HOST_TARGET  set: does nothing, the host device has no time to measure; nor does it in a child of the
                      parallel warm-up (PARALLEL_WARMUP_SHARD), which measures nothing
         TIMER        graph | do_bench | event; unset: graph on NVIDIA cards, event elsewhere
         CACHE        cold | warm; unset: cold, as upstream's kernel mode
         RUN_DIR      the run directory; unset: no samples.jsonl
Output:  after each table one line per row, which common/runlog.py reads (here it is broken; it is one line):
           TIMER: Operator=abs dtype=torch.float16 row=1 timer=graph cache=cold how=flush launches=1000 copies=1000
             samples=14 spread=0.0004 stop=spread gap_us=0.85 nodes=1 host_us=61.2 host_us_base=4.91 reason=<<<>>>
         where a call cannot be captured, at once:
           CUDAGRAPH_FALLBACK phase=capture reason=AcceleratorError: CUDA error: ... (op=abs dtype=float16 column=gems)
         A time that is none is printed as nan; summary.csv has the row as INVALID, with the reason, without a ratio.
         RUN_DIR/samples.jsonl: every sample in the order it was taken, with the state of the card around it:
           {"schema": 1, "kind": "block", "op": "abs", "node": ..., "dtype": "float16", "detail": "[torch.Size([64, 64])]",
            "column": "gems", "pid": 7, "block": 3, "at": "...", "timer": "graph", "cache": "cold", "try": 1, "void": "",
            "samples_ms": [0.0011, ...], "median_ms": ..., "spread": ..., "outliers": [], "launches": 1000, ...,
            "before": {"sm_mhz": 1980, ...}, "after": {...}}
           {"schema": 1, "kind": "column", ...}   what became of the blocks: latency_ms, fault, notes, host_us, seconds
Needs:   torch, triton, pytest. Other modes than kernel are timed as upstream does; their rows are labelled.
Limits:  what times by itself, not through Benchmark.get_latency, is not seen.
"""

import dataclasses
import functools
import json
import os
import sys
import time

import pytest

TIMERS, CACHES = ("graph", "do_bench", "event"), ("cold", "warm")
OTHER_MODES = {"operator": ("wall", "warm"), "wrapper": ("wall", "warm"), "cudagraph": ("do_bench_cudagraph", "warm")}
FIGURES = {"torch": "latency_base", "gems": "latency"}  # of a BenchmarkMetrics
NOTE = "gemscreen_row"  # of a BenchmarkMetrics: the Row behind its figures; copy.copy keeps it
BENCHMARK_METHODS = ("run", "get_latency", "get_input_iter", "set_dtypes")


@dataclasses.dataclass
class Column:
    """What upstream asked to be timed: `fn`, the (op, args, kwargs) behind it, and whether FlagGems stood for torch."""

    fn: object
    recipe: tuple
    options: dict
    in_gems: bool


class ColumnTimer:
    """The hooks of one session: knows which column of which row is timed, and patches upstream's classes."""

    def __init__(self, environ):
        self.environ = environ
        self.timer = self.method = self.original = self.session = None
        self.row = self.metric = self.bench = self.recipe = None
        self.dtype = self.node = ""
        self.gems_depth = self.blocks = 0
        self.timing, self.is_busy = "", False  # the column that is being timed; our timer is at work on it
        self.wrapped = set()

    # ---- setting up

    def pytest_collection_finish(self, session):
        """Only now is every benchmark file imported, and with it every subclass and every tuner."""
        self.session = session
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", {})
            if not all(isinstance(names.get(name), type) for name in ("BenchmarkMetrics", "BenchmarkResult")):
                continue
            bases = [value for value in names.values() if is_benchmark_class(value)]
            if bases and (self.timer or self.open_timer(find_base_module(bases[0]))):
                for cls in dict.fromkeys(c for base in bases for c in [base, *find_subclasses(base)]):
                    self.wrap_once(cls, "get_latency", self.watch_latency)
                    self.wrap_once(cls, "get_input_iter", self.watch_inputs)
                self.wrap_once(module.BenchmarkMetrics, "__init__", self.watch_metrics)
                self.wrap_once(module.BenchmarkResult, "__str__", self.add_lines)

    def open_timer(self, base):
        """Make the timer for the device of `base`, upstream's benchmark/base.py. False where there is none to be had."""
        import triton.testing
        from graph_timer import device, health, measure, watch

        vendor, cache = str(getattr(base, "vendor_name", "")), self.environ.get("CACHE") or "cold"
        opened = device.open_device(getattr(base, "torch_device_fn", None), str(getattr(base, "device", "")), vendor)
        if opened is None:
            say("upstream's own, for this torch has no events for its device")
            return False
        self.method = self.choose_method(opened)
        reader = health.open_reader(vendor, opened.uuid)
        self.original, triton.testing.do_bench = triton.testing.do_bench, self.do_bench
        self.timer = measure.Timer(opened, watch.CompileWatch().install(), reader, self.original, cache, self.write)
        for name in ("flag_gems", "flaggems_vllm"):
            if hasattr(sys.modules.get(name), "use_gems"):
                sys.modules[name].use_gems = self.watch_gems(sys.modules[name].use_gems)
        say(f"{self.method}, {cache} L2 of {opened.l2_bytes >> 20} MiB" + (f"; no health: {reader.why}" if reader.why else ""))
        return True

    def choose_method(self, opened):
        """The method of kernel mode; graphs only where they are known, or proven in a child, to work."""
        asked = self.environ.get("TIMER") or ("graph" if opened.can_capture else "event")
        if asked == "graph" and not opened.can_capture and not opened.probe_graphs():
            print(f"CUDAGRAPH_FALLBACK phase=warmup reason=no graphs on {opened.name}, all is timed by event", flush=True)
            return "event"
        return asked

    def wrap_once(self, cls, name, make):
        if name in vars(cls) and (cls, name) not in self.wrapped:
            self.wrapped.add((cls, name))
            setattr(cls, name, functools.wraps(vars(cls)[name])(make(vars(cls)[name])))

    # ---- what upstream does, row by row

    def pytest_runtest_call(self, item):
        self.node = item.nodeid

    def pytest_runtest_teardown(self):
        self.end_row()

    def end_row(self):
        """Let go of the row's inputs."""
        if self.row is not None:
            self.row.forget()
        self.row = self.metric = self.bench = None

    def watch_inputs(self, get_input_iter):
        def note_dtype(bench, dtype, *args, **kwargs):
            self.dtype = str(dtype)
            return get_input_iter(bench, dtype, *args, **kwargs)

        return note_dtype

    def watch_metrics(self, init):
        """Upstream makes a BenchmarkMetrics for each row, before it measures."""

        def init_and_begin_row(metric, *args, **kwargs):
            init(metric, *args, **kwargs)
            self.end_row()
            self.metric = metric

        return init_and_begin_row

    def watch_latency(self, get_latency):
        def note_column(bench, op, *args, **kwargs):
            __tracebackhide__ = True
            outer, self.recipe = self.timing, (op, args, kwargs)
            if outer:  # a subclass's that calls the base class's, with inputs of its own
                return get_latency(bench, op, *args, **kwargs)
            self.bench, self.timing = bench, self.name_column(bench, op)
            try:
                latency = get_latency(bench, op, *args, **kwargs)
            finally:
                self.timing, self.recipe = "", None
            self.label_row(bench)
            return latency

        return note_column

    def name_column(self, bench, op):
        """`torch` for the first figure of a row that is taken with torch's own operators, else `gems`."""
        begun = self.row is not None and "torch" in self.row.columns
        is_gems = op is bench.gems_op and op is not bench.torch_op
        return "gems" if begun or self.gems_depth or is_gems else "torch"

    def label_row(self, bench):
        """Modes that are not timed here: say by what they were."""
        if self.row is None and self.metric is not None:
            from graph_timer import rows

            mode = find_base_module(type(bench)).Config.mode.value
            timer, cache = OTHER_MODES.get(mode, ("upstream", self.timer.cache))
            row = rows.Row(None, timer)
            row.columns["gems"] = rows.Measurement(timer, cache)
            setattr(self.metric, NOTE, row)

    def watch_gems(self, use_gems):
        """use_gems as it is; when it ends, a torch column that has to be timed again is."""
        hooks = self

        class WatchedGems:
            def __init__(self, *args, **kwargs):
                self.inner = use_gems(*args, **kwargs)

            def __enter__(self):
                entered = self.inner.__enter__()
                hooks.gems_depth += 1
                return entered

            def __exit__(self, kind, error, trace):
                hooks.gems_depth -= 1
                swallowed = self.inner.__exit__(kind, error, trace)
                if kind is None and not hooks.gems_depth:
                    hooks.settle_row()
                return swallowed

            def __getattr__(self, name):
                return getattr(self.inner, name)

        return WatchedGems

    # ---- timing

    def do_bench(self, fn, *args, **kwargs):
        """Stands for triton.testing.do_bench: upstream's get_latency gets the new timer; tuners and others the old one."""
        if not self.timing or self.is_busy or self.metric is None or self.timer.watch.tuning:
            return self.original(fn, *args, **kwargs)
        if self.row is None:
            from graph_timer import rows

            self.row = rows.Row(self.measure, self.method)
            setattr(self.metric, NOTE, self.row)
        latency = self.row.time(self.timing, Column(fn, self.recipe, kwargs, bool(self.gems_depth)))
        if not self.gems_depth:
            self.settle_row()
        return latency

    def settle_row(self):
        """Time again what was timed by another method than the row's. Called where torch's operators are torch's."""
        for column in self.row.find_unsettled() if self.row is not None else ():
            outer, self.timing = self.timing, column
            try:
                in_gems = self.row.calls[column].in_gems  # not reached by upstream's order, torch before gems
                setattr(self.metric, FIGURES[column], float("nan") if in_gems else self.row.settle(column))
            finally:
                self.timing = outer

    def measure(self, asked, column, method):
        """Row's measure(): a Column to its Measurement."""
        from graph_timer import measure

        self.is_busy = True
        try:
            return self.timer.measure(asked.fn, method, asked.recipe, asked.options, self.report_fallback,
                                      is_fallback=method != self.method)
        except measure.LostDevice as error:
            self.session.shouldfail = f"{error}: the device's context is gone, nothing more can be measured in this process"
            raise
        finally:
            self.is_busy = False

    def report_fallback(self, why):
        print(f"CUDAGRAPH_FALLBACK {why} (op={self.bench.op_name} dtype={self.dtype} column={self.timing})", flush=True)

    # ---- output

    def add_lines(self, to_text):
        """A table's text, and a TIMER line for each of its rows."""

        def append_lines(result):
            rows = [(number, getattr(metric, NOTE, None)) for number, metric in enumerate(result.result, 1)]
            lines = [row.describe(result.op_name, result.dtype, number) for number, row in rows if row]
            return to_text(result) + "".join(f"{line}\n" for line in lines if line)

        return append_lines

    def write(self, block):
        """One line of samples.jsonl; a block is numbered through the process."""
        if not self.environ.get("RUN_DIR"):
            return
        self.blocks += block["kind"] == "block"
        place = {"schema": 1, "kind": block["kind"], "op": self.bench.op_name, "node": self.node,
                 "dtype": self.dtype.replace("torch.", ""), "detail": str(self.metric.shape_detail), "column": self.timing,
                 "pid": os.getpid(), "block": self.blocks, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}  # fmt: skip
        with open(os.path.join(self.environ["RUN_DIR"], "samples.jsonl"), "a", encoding="utf-8") as file:
            file.write(json.dumps({**place, **block}, default=str) + "\n")


def is_benchmark_class(value):
    # Not isinstance(): that asks the value for its class, and some attributes of torch warn when touched.
    return issubclass(type(value), type) and all(callable(getattr(value, name, None)) for name in BENCHMARK_METHODS)


def find_base_module(cls):
    """The module of upstream's base class (benchmark/base.py), which knows the device, and holds Config."""
    base = next(c for c in reversed(cls.__mro__) if is_benchmark_class(c))
    return sys.modules[base.__module__]


def find_subclasses(cls):
    """All classes below `cls`."""
    return [c for direct in cls.__subclasses__() for c in (direct, *find_subclasses(direct))]


def say(text):
    print(f"timer: {text}", flush=True)


def check_switches(environ):
    """pytest.UsageError for a TIMER or CACHE that there is not."""
    for name, valid in (("TIMER", TIMERS), ("CACHE", CACHES)):
        if environ.get(name) and environ[name] not in valid:
            raise pytest.UsageError(f"{name}: {environ[name]}: unknown; valid are {', '.join(valid)}")
    if (environ.get("TIMER"), environ.get("CACHE")) == ("do_bench", "warm"):
        raise pytest.UsageError("CACHE: warm: do_bench always flushes the L2; take another timer, or CACHE=cold")


def pytest_configure(config):
    if not os.environ.get("HOST_TARGET") and not os.environ.get("PARALLEL_WARMUP_SHARD"):
        check_switches(os.environ)
        config.pluginmanager.register(ColumnTimer(os.environ), "gemscreen-timer")
