"""Base classes of the sample benchmarks, with the interface and the behaviour of FlagGems' benchmark/base.py.

Purpose: the plugins and run_pytest.sh meet here what they meet in a real checkout, faults included:
- a shape that raises fails the test before its dtype's table is printed, and the rows measured so far are lost;
- the line printed when making the inputs raises holds a literal `{dtype}` and `{e}`;
- `set_metrics` appends to a list of the class, so operators of one process can affect each other.
The code is gemscreen's own. Latencies are milliseconds.
"""

import gc
import os
import time
from dataclasses import asdict

import flag_gems
import pytest
import torch
import triton
import yaml
from flag_gems.utils import shape_utils

from . import consts
from .conftest import Config, emit_record_logger, update_result
from .consts import BenchmarkMetrics, BenchmarkResult, OperationAttribute, check_metric_dependencies
from .utils import describe, generate_tensor_input, is_float_tensor

device = flag_gems.device
vendor_name = flag_gems.vendor_name
torch_device_fn = flag_gems.runtime.torch_device_fn


def time_calls(fn, count, sync_inside):
    """Mean milliseconds of `count` calls; with `sync_inside` until the device is idle, else until the last returned."""
    torch_device_fn.synchronize()
    start = time.time()
    for _ in range(count):
        fn()
    if sync_inside:
        torch_device_fn.synchronize()
    end = time.time()
    torch_device_fn.synchronize()
    return (end - start) / count * 1000


def get_iter_count(fn):
    """(warm-up calls, measured calls) that fill --warmup and --iter, from five trial calls. Plugins replace it by name."""
    trial_ms = max(time_calls(fn, 5, Config.mode == consts.BenchMode.OPERATOR), 1e-6)
    return max(1, int(Config.warm_up / trial_ms)), max(1, int(Config.repetition / trial_ms))


def time_host_side(fn):
    """Mean wall time per call: operator mode waits for the device, wrapper mode only for the calls to return."""
    warm_calls, calls = get_iter_count(fn)
    for _ in range(warm_calls):
        fn()
    return time_calls(fn, calls, Config.mode == consts.BenchMode.OPERATOR)


class Benchmark:
    """One operator: `run()` measures torch and flag_gems for every dtype and shape and prints a table per dtype.

    Keyword arguments that name an attribute or method of the class replace it (`get_gbps=...`).
    """

    device = device
    DEFAULT_METRICS = consts.DEFAULT_METRICS
    DEFAULT_DTYPES = consts.FLOAT_DTYPES
    DEFAULT_SHAPES = consts.DEFAULT_SHAPES
    DEFAULT_SHAPE_DESC = "M, N"
    DEFAULT_SHAPE_FILES = "core_shapes.yaml"

    def __init__(self, op_name, torch_op, dtypes=None, is_backward=False, is_inplace=False, **kwargs):
        suffix = "_backward" if is_backward and "_backward" not in op_name else ""
        self.op_name = op_name + suffix
        self.torch_op = torch_op
        self.gems_op = kwargs.pop("gems_op", None)
        self.is_backward = is_backward
        self.is_inplace = is_inplace
        self.dtypes = self.DEFAULT_DTYPES if dtypes is None else dtypes
        self.metrics = self.DEFAULT_METRICS
        self.shapes = self.DEFAULT_SHAPES
        self.shape_desc = self.DEFAULT_SHAPE_DESC
        self.to_bench_dtypes = self.dtypes
        self.to_bench_metrics = self.metrics
        for name, value in kwargs.items():
            if hasattr(self, name):
                setattr(self, name, value)

    # What to run ------------------------------------------------------------------------------------------------

    def set_gems(self, gems_op):
        """Uses `gems_op` itself as the candidate, instead of `torch_op` inside `flag_gems.use_gems()`."""
        self.gems_op = gems_op

    def set_dtypes(self, user_desired_dtypes):
        """ValueError for a dtype that the operator does not list; run_batch.py knows the fault by this text."""
        unknown = [d for d in user_desired_dtypes or [] if d not in self.dtypes]
        if unknown:
            names = ", ".join(map(str, unknown))
            raise ValueError(f"Given dtype(s) '{names}'can't be supported by this op '{self.op_name}'")
        self.to_bench_dtypes = user_desired_dtypes or self.dtypes

    def set_metrics(self, user_desired_metrics):
        unknown = [m for m in user_desired_metrics or [] if m not in self.metrics]
        if unknown:
            raise ValueError(f"Invalid metrics: {', '.join(unknown)} for operation: '{self.op_name}'")
        unmet = check_metric_dependencies(user_desired_metrics)
        if unmet:
            raise ValueError(f"Unsatisfied metric dependencies: {', '.join(unmet)}")
        self.to_bench_metrics = user_desired_metrics or self.metrics
        if self.wants_more():
            # Upstream's list is the class's own: what is added here stays for every later operator of the process.
            self.to_bench_metrics.extend(m for m in self.set_more_metrics() if m not in self.to_bench_metrics)

    def set_more_metrics(self):
        """Metrics that only the comprehensive level measures."""
        return []

    def set_shapes(self, shape_file_path):
        """Shapes by the operator's name, else by the first class name of the MRO in the file, else DEFAULT_SHAPES."""
        if not os.path.isfile(shape_file_path):
            raise FileNotFoundError(f"Shape file '{shape_file_path}' does not exist.")
        try:
            with open(shape_file_path) as f:
                table = yaml.safe_load(f) or {}
        except yaml.YAMLError as e:
            raise ValueError(f"Shape file '{shape_file_path}' is not a valid YAML file. Error: {e}")
        keys = [self.op_name, *(cls.__name__ for cls in type(self).__mro__)]
        entry = next((table[key] for key in keys if key in table), None)
        shapes = self.DEFAULT_SHAPES
        if entry is not None:
            shapes = entry.get("shapes", shapes)
            self.shape_desc = entry.get("shape_desc", self.DEFAULT_SHAPE_DESC)
        self.shapes = [tuple(shape) for shape in shapes]
        more = self.set_more_shapes() if self.wants_more() else None
        if more:
            self.shapes = list(dict.fromkeys(self.shapes + more))

    def set_more_shapes(self):
        """Shapes that only the comprehensive level adds."""
        return []

    def wants_more(self):
        return Config.bench_level == consts.BenchLevel.COMPREHENSIVE and not Config.query

    def init_default_config(self):
        self.set_shapes(os.path.join(os.path.dirname(__file__), self.DEFAULT_SHAPE_FILES))

    def init_user_config(self):
        self.mode = Config.mode
        self.set_dtypes(Config.user_desired_dtypes)
        self.set_metrics(Config.user_desired_metrics)
        self.set_shapes(Config.shape_file)

    # Inputs -----------------------------------------------------------------------------------------------------

    def get_input_iter(self, dtype):
        """Yields one tuple per row: positional arguments, and a dict for the keyword arguments."""
        raise NotImplementedError("Each Benchmark must implement its own input iterator.")

    def unpack_to_args_kwargs(self, input_tuple):
        args, kwargs = [], {}
        for item in input_tuple:
            if isinstance(item, dict):
                kwargs.update(item)
            elif item is None or isinstance(item, (torch.Tensor, int, float, str, list, tuple, torch.dtype)):
                args.append(item)
        if self.is_backward:
            args = [a.clone().requires_grad_() if is_float_tensor(a) else a for a in args]
        return args, kwargs

    def record_shapes(self, *args, **kwargs):
        """The row's Size Detail: sizes for tensors, plain values as they are, None for anything else."""
        args, kwargs = [describe(a) for a in args], {k: describe(v) for k, v in kwargs.items()}
        return (args, kwargs) if args and kwargs else args or kwargs

    # Measuring --------------------------------------------------------------------------------------------------

    def get_latency(self, op, *args, **kwargs):
        """Milliseconds of one call in the session's mode; do_bench is looked up late so that a plugin can replace it."""
        inputs = None

        def fn():
            return op(*args, **kwargs)

        if self.is_backward:
            fn, inputs = _backward_of(fn(), args)
        if Config.mode == consts.BenchMode.KERNEL:
            timing = dict(warmup=Config.warm_up, rep=Config.repetition, return_mode="median", grad_to_none=inputs)
            return triton.testing.do_bench(fn, **timing)
        if Config.mode == consts.BenchMode.CUDAGRAPH:
            timing = dict(rep=Config.repetition, return_mode="median", grad_to_none=inputs)
            return triton.testing.do_bench_cudagraph(fn, **timing)
        return time_host_side(fn)

    def get_gbps(self, args, latency):
        raise NotImplementedError("Each Benchmark that reports gbps must implement get_gbps.")

    def get_tflops(self, op, *args, **kwargs):
        """Floating-point operations of one call (the caller divides by time)."""
        raise NotImplementedError("Each Benchmark that reports tflops must implement get_tflops.")

    def measure_gems(self, args, kwargs):
        if self.gems_op:
            return self.get_latency(self.gems_op, *args, **kwargs)
        # do_bench flushes the cache through zero_: left to flag_gems, its kernel would be part of the measurement.
        with flag_gems.use_gems(exclude=None if self.op_name == "zero_" else ["zero_"]):
            return self.get_latency(self.torch_op, *args, **kwargs)

    def fill_metrics(self, row, args, kwargs):
        wanted = self.to_bench_metrics
        if "latency_base" in wanted:
            row.latency_base = self.get_latency(self.torch_op, *args, **kwargs)
        if "latency" in wanted:
            row.latency = self.measure_gems(args, kwargs)
        if "speedup" in wanted:
            row.speedup = row.latency_base / row.latency
        if "gbps" in wanted:
            row.gbps_base = self.get_gbps(args, latency=row.latency_base)
            row.gbps = self.get_gbps(args, latency=row.latency)
        if "tflops" in wanted:
            row.tflops = self.get_tflops(self.torch_op, *args, **kwargs) / row.latency / 1e9

    def measure_row(self, inputs):
        row = BenchmarkMetrics()
        try:
            args, kwargs = self.unpack_to_args_kwargs(inputs)
            row.shape_detail = self.record_shapes(*args, **kwargs)
            self.fill_metrics(row, args, kwargs)
        except Exception as e:
            row.error_msg = str(e)
            pytest.fail(str(e))
        finally:
            gc.collect()
        return row

    def next_inputs(self, input_iter):
        try:
            return next(input_iter, None)
        except Exception as e:
            # Not an f-string, as upstream: whoever reads the log has to cope with the braces.
            print(f"\033[31mFAILED\033[0m: Operator={self.op_name} " "dtype={dtype} err=<<<{e}>>>")
            pytest.fail(str(e))

    def run(self):
        if Config.query:
            self.print_query()
            return
        self.init_user_config()
        for dtype in self.to_bench_dtypes:
            rows, input_iter = [], self.get_input_iter(dtype)
            while (inputs := self.next_inputs(input_iter)) is not None:
                rows.append(self.measure_row(inputs))
            self.report(dtype, rows)

    def print_query(self):
        self.init_default_config()
        attributes = OperationAttribute(self.op_name, self.shapes, self.shape_desc)
        print(attributes)
        emit_record_logger(attributes.to_dict())

    def report(self, dtype, rows):
        level, mode = Config.bench_level.value, Config.mode.value
        result = BenchmarkResult(op_name=self.op_name, dtype=str(dtype), mode=mode, level=level, result=rows)
        print(result)
        update_result(self.op_name, asdict(result))
        emit_record_logger(result.to_json())


def _backward_of(out, args):
    """The backward pass alone: (a call that runs it, the inputs whose gradients it computes)."""
    grad_out = torch.randn_like(out)
    inputs = [a for a in args if torch.is_tensor(a) and a.requires_grad]
    return lambda: torch.autograd.grad((out,), inputs, grad_outputs=(grad_out,), retain_graph=True), inputs


# Families -------------------------------------------------------------------------------------------------------


class GenericBenchmark(Benchmark):
    """Inputs from `input_fn(shape, dtype, device)`, a generator of argument tuples."""

    def __init__(self, *args, input_fn, **kwargs):
        super().__init__(*args, **kwargs)
        self.input_fn = input_fn

    def set_more_shapes(self):
        return [(2**14,), (100, 1), (10, 16, 100)]

    def get_input_iter(self, dtype):
        for shape in self.shapes:
            yield from self.input_fn(shape, dtype, self.device)


class GenericBenchmark2DOnly(GenericBenchmark):
    """Two-dimensional shapes only; the shape file has to list them under a class or operator name."""

    def set_more_shapes(self):
        return [shape for shape in super().set_more_shapes() if len(shape) == 2]


class UnaryPointwiseBenchmark(Benchmark):
    DEFAULT_METRICS = consts.DEFAULT_METRICS[:] + ["tflops"]

    def set_more_shapes(self):
        return [(128, 1), (128, 256), (16, 16, 16)]

    def get_input_iter(self, dtype):
        for shape in self.shapes:
            yield (generate_tensor_input(shape, dtype, self.device),)

    def get_tflops(self, op, *args, **kwargs):
        return args[0].numel()


class BinaryPointwiseBenchmark(UnaryPointwiseBenchmark):
    DEFAULT_METRICS = consts.DEFAULT_METRICS[:] + ["tflops"]

    def get_input_iter(self, dtype):
        for shape in self.shapes:
            yield tuple(generate_tensor_input(shape, dtype, self.device) for _ in range(2))

    def get_tflops(self, op, *args, **kwargs):
        return 2 * args[0].numel()


class UnaryReductionBenchmark(Benchmark):
    """Reduces dimension 1, or everything if there is only one."""

    def set_more_metrics(self):
        return ["gbps"]

    def set_more_shapes(self):
        return [(1025,), (16, 1024), (16, 64, 16)]

    def get_input_iter(self, dtype):
        for shape in self.shapes:
            x = generate_tensor_input(shape, dtype, self.device)
            yield (x, 1) if x.ndim > 1 else (x,)

    def get_gbps(self, args, latency):
        return 2 * shape_utils.size_in_bytes(args[0]) * 1e-9 / (latency * 1e-3)


class BlasBenchmark(Benchmark):
    """Shapes are (b, m, n, k); `input_fn(b, m, n, k, dtype, device, b_column_major)` makes the arguments."""

    DEFAULT_METRICS = consts.DEFAULT_METRICS[:] + ["tflops"]

    def __init__(self, *args, input_fn, **kwargs):
        super().__init__(*args, **kwargs)
        self.input_fn = input_fn

    def set_more_shapes(self):
        return [(1, 1, 64, 128)]

    def get_input_iter(self, dtype):
        layouts = [False, True] if Config.bench_level == consts.BenchLevel.COMPREHENSIVE else [False]
        for column_major in layouts:
            for b, m, n, k in self.shapes:
                yield from self.input_fn(b, m, n, k, dtype, self.device, column_major)

    def get_tflops(self, op, *args, **kwargs):
        a, b = args[-2:]
        flops_per_result = 2 * a.shape[-1] + (1 if self.op_name == "addmm" else 0)
        return a.numel() // a.shape[-1] * b.shape[-1] * flops_per_result


class NormBenchmark(GenericBenchmark):
    """Normalises all but the first dimension."""

    def set_more_shapes(self):
        return [(4, 8, 64), (1, 4, 4, 4)]


class TensorSelectBenchmark(GenericBenchmark2DOnly):
    """Operators that pick elements; traffic is what counts."""

    def set_more_metrics(self):
        return ["gbps"]
