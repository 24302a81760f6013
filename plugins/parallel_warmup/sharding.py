"""sharding.py - what a child of the parallel warm-up does: its share of the inputs, each operator once.

Input number k of the session, counted over all benchmarks, belongs to shard k mod N; input 0 to every shard, as a
control. Torch's column is not run. Upstream's timers call their function once, which tunes it; a tuner's own trials
are timed as ever, one at a time on this device. Each shard tries a kernel's configs from another place in their list:
the compile cache is shared, so that the shards compile different ones at first and then find each other's. (Not on the
host device, where the first config that compiles wins.)
"""
import functools
import os
import sys
import time

BENCHMARK_METHODS = ("run", "get_latency", "get_input_iter", "set_dtypes")
NO_TIME = 1.0  # ms; stands in the child's tables, which nobody reads


class Shard:
    """The pytest hooks of child `number` (from 0) of `count`."""

    def __init__(self, number, count):
        self.number, self.count = number, count
        self.seen = self.taken = 0
        self.in_latency = self.trials = 0
        self.gems_depth, self.sees_gems = 0, False
        self.began = None
        self.wrapped = set()

    def pytest_collection_finish(self):
        import triton.testing
        from triton.runtime.autotuner import Autotuner

        self.wrap_once(Autotuner, "_bench", self.count_trials)
        if not os.environ.get("HOST_TARGET"):
            self.wrap_once(Autotuner, "prune_configs", self.rotate_configs)
        for name in ("do_bench", "do_bench_cudagraph"):
            setattr(triton.testing, name, self.replace_timer(getattr(triton.testing, name)))
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", {})
            for base in [value for value in names.values() if is_benchmark_class(value)]:
                for cls in [base, *find_subclasses(base)]:
                    self.wrap_once(cls, "get_input_iter", self.share_inputs)
                    self.wrap_once(cls, "get_latency", self.run_once)
            if callable(names.get("get_iter_count")) and "BenchmarkMetrics" in names:
                module.get_iter_count = lambda fn: (0, 1)  # operator and wrapper mode
            if "BenchmarkResult" in names and callable(names["BenchmarkResult"]):
                self.wrap_once(module.BenchmarkResult, "__str__", lambda to_text: lambda result: "")
        for name in ("flag_gems", "flaggems_vllm"):
            context = getattr(sys.modules.get(name), "use_gems", None)
            if isinstance(context, type):  # else the columns cannot be told apart, and both run
                self.sees_gems = True
                self.wrap_once(context, "__enter__", functools.partial(self.count_gems, 1))
                self.wrap_once(context, "__exit__", functools.partial(self.count_gems, -1))
        self.began = time.monotonic()

    def pytest_sessionfinish(self):
        seconds = time.monotonic() - self.began if self.began else 0.0
        print(f"\nPARALLEL_WARMUP_SHARD number={self.number} inputs={self.taken} of={self.seen} sweep={seconds:.1f}", flush=True)

    def wrap_once(self, cls, name, make):
        if name in vars(cls) and (cls, name) not in self.wrapped:
            self.wrapped.add((cls, name))
            setattr(cls, name, functools.wraps(vars(cls)[name])(make(vars(cls)[name])))

    def share_inputs(self, get_input_iter):
        def get_share(bench, *args, **kwargs):
            for item in get_input_iter(bench, *args, **kwargs):
                number, self.seen = self.seen, self.seen + 1
                if number == 0 or number % self.count == self.number:
                    self.taken += 1
                    yield item

        return get_share

    def run_once(self, get_latency):
        """Torch's column is skipped; FlagGems' runs through the replaced timers."""

        def run_gems_only(bench, op, *args, **kwargs):
            by_itself = bench.gems_op or (self.sees_gems and not self.gems_depth)
            is_torch = op is bench.torch_op and op is not bench.gems_op and by_itself
            if is_torch and not self.in_latency:
                return NO_TIME
            self.in_latency += 1
            try:
                return get_latency(bench, op, *args, **kwargs)
            finally:
                self.in_latency -= 1

        return run_gems_only

    def replace_timer(self, timer):
        def time_or_run(fn, *args, **kwargs):
            if self.trials or not self.in_latency:
                return timer(fn, *args, **kwargs)
            fn()
            return NO_TIME

        return time_or_run

    def count_trials(self, bench):
        def bench_counted(tuner, *args, **kwargs):
            self.trials += 1
            try:
                return bench(tuner, *args, **kwargs)
            finally:
                self.trials -= 1

        return bench_counted

    def rotate_configs(self, prune_configs):
        def prune_and_rotate(tuner, *args, **kwargs):
            configs = list(prune_configs(tuner, *args, **kwargs))
            start = len(configs) * self.number // self.count
            return configs[start:] + configs[:start]

        return prune_and_rotate

    def count_gems(self, change, method):
        def method_counted(context, *args, **kwargs):
            self.gems_depth += change
            return method(context, *args, **kwargs)

        return method_counted


def is_benchmark_class(value):
    # Not isinstance(): that asks the value for its class, and some attributes of torch warn when touched.
    return issubclass(type(value), type) and all(callable(getattr(value, name, None)) for name in BENCHMARK_METHODS)


def find_subclasses(cls):
    """All classes below `cls`."""
    return [c for direct in cls.__subclasses__() for c in (direct, *find_subclasses(direct))]
