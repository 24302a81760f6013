"""phases.py - which part of a benchmark a launch belongs to.

    construction   everything else: inputs, fixtures, the forward pass that a backward benchmark needs once
    tuning         inside Autotuner._bench, whoever called it
    warmup         one call of the operator under measurement, just before its timer starts: compiles and tunes all
    (timed)        the timer itself: nothing is counted
    measured       one call of the same function, just after: the launches of one call, exactly
    baseline       one call of torch's side just before its timer: only a baseline that is itself Triton has launches

A benchmark's get_latency gives its timer a function; that function is what is called. Upstream's torch side is told
by `op is torch_op` outside use_gems(). A timer that is none of TIMERS leaves a benchmark unseparated: a problem.
"""
import contextlib
import functools
import sys

TIMERS = {"triton.testing": ("do_bench", "do_bench_cudagraph"), "triton.musa_testing": ("do_bench",)}
BENCHMARK_METHODS = ("get_latency", "get_input_iter")
ITERATION_COUNTER = "get_iter_count"  # benchmark/base.py gives it the function in wrapper and operator mode


class Measurement:
    """One call of get_latency: `function` is what its timer was given."""

    def __init__(self, is_baseline):
        self.is_baseline = is_baseline
        self.function = None
        self.late = []  # variants loaded while it was timed


class BenchmarkWatch:
    """Tells a Ledger which phase a benchmark is in."""

    def __init__(self, ledger):
        self.ledger = ledger
        self.measurement = None
        self.gems_depth = 0
        self.calls = 0  # of operators, counted in the phase `measured`
        self.late, self.unseparated = {}, {}  # hash -> Variant; benchmark class -> reason
        self.wrapped = set()

    # Tuning -----------------------------------------------------------------------------------------------------

    def watch_tuner(self):
        """Launches below Autotuner._bench are trials; flag_gems' and flaggems_vllm's LibTuner inherit it."""
        from triton.runtime.autotuner import Autotuner

        self.wrap(Autotuner, "_bench", self.count_as_tuning)

    def count_as_tuning(self, bench):
        def bench_counted(tuner, *args, **kwargs):
            self.ledger.tuning_depth += 1
            try:
                return bench(tuner, *args, **kwargs)
            finally:
                self.ledger.tuning_depth -= 1

        return bench_counted

    # Measuring --------------------------------------------------------------------------------------------------

    def watch_benchmarks(self):
        """Once all benchmark files are imported: wrap get_latency where it is defined, and use_gems()."""
        for module in list(sys.modules.values()):
            classes = [value for value in list(getattr(module, "__dict__", {}).values()) if is_benchmark_class(value)]
            for cls in {part for value in classes for part in [*value.__mro__, *find_subclasses(value)]}:
                self.wrap(cls, "get_latency", self.measure)
        for package in ("flag_gems", "flaggems_vllm"):
            context = getattr(sys.modules.get(package), "use_gems", None)
            if isinstance(context, type):
                self.wrap(context, "__enter__", functools.partial(self.note_gems, 1))
                self.wrap(context, "__exit__", functools.partial(self.note_gems, -1))

    def wrap(self, cls, name, wrapper):
        """Replace a method in the class that defines it, once."""
        if name in vars(cls) and (cls, name) not in self.wrapped:
            self.wrapped.add((cls, name))
            setattr(cls, name, functools.wraps(vars(cls)[name])(wrapper(vars(cls)[name])))

    def note_gems(self, change, method):
        def method_noted(context, *args, **kwargs):
            self.gems_depth += change
            return method(context, *args, **kwargs)

        return method_noted

    def measure(self, get_latency):
        def get_latency_counted(bench, op, *args, **kwargs):
            if self.measurement is not None:  # a subclass's get_latency that calls the base class's
                return get_latency(bench, op, *args, **kwargs)
            measurement = self.measurement = Measurement(self.is_baseline(bench, op))
            try:
                with self.replace_timers(type(bench)):
                    latency = get_latency(bench, op, *args, **kwargs)
                self.finish(measurement, bench)
                return latency
            finally:
                self.measurement = None
                self.ledger.start_counting("construction")

        return get_latency_counted

    def is_baseline(self, bench, op):
        return op == getattr(bench, "torch_op", None) and op != getattr(bench, "gems_op", None) and not self.gems_depth

    @contextlib.contextmanager
    def replace_timers(self, cls):
        """While a benchmark measures, the timers tell us what they are given. Only then, so that ours is the outermost
        whatever plugins replaced a timer before, and a tuner outside a measurement meets none of this."""
        places = [(sys.modules.get(module), name) for module, names in TIMERS.items() for name in names]
        places += [(sys.modules.get(part.__module__), ITERATION_COUNTER) for part in cls.__mro__]
        before = {(module, name): getattr(module, name) for module, name in places if hasattr(module, name)}
        for (module, name), timer in before.items():
            setattr(module, name, self.announce(timer))
        try:
            yield
        finally:
            for (module, name), timer in before.items():
                setattr(module, name, timer)

    def announce(self, timer):
        @functools.wraps(timer)
        def timer_announced(function, *args, **kwargs):
            measurement = self.measurement
            if measurement is not None and measurement.function is None:  # else one timer inside another, or a tuner's
                measurement.function = function
                self.ledger.start_counting("baseline" if measurement.is_baseline else "warmup")
                function()
                measurement.late = self.ledger.stop_counting()
            return timer(function, *args, **kwargs)

        return timer_announced

    def finish(self, measurement, bench):
        """After the timer: one counted call, and what was loaded too late to be counted."""
        if measurement.function is None:
            self.unseparated[type(bench).__name__] = "gave its function to no timer that is known"
        elif not measurement.is_baseline:
            self.late.update((variant.hash, variant) for variant in measurement.late)
            self.ledger.start_counting("measured")
            measurement.function()
            self.calls += 1


def is_benchmark_class(value):
    # Not isinstance(): that asks the value for its class, and some module attributes of torch warn when touched.
    return issubclass(type(value), type) and all(callable(getattr(value, n, None)) for n in BENCHMARK_METHODS)


def find_subclasses(cls):
    """All classes below `cls`."""
    return {part for child in cls.__subclasses__() for part in [child, *find_subclasses(child)]}
