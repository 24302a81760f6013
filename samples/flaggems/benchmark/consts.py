"""Dtype lists, shapes, metrics and the table of the sample benchmarks.

The names and the printed table are FlagGems' (benchmark/consts.py at ed2508b), because the plugins and
batch_summary.py are written for those; the code is gemscreen's own.

A table, as it reaches run.log:

    Operator: abs  Performance Test (dtype=torch.float16, mode=kernel,level=core)
    Status       Torch Latency (ms)    Gems Latency (ms)         Gems Speedup          Size Detail
    -----------------------------------------------------------------------------------------------
    SUCCESS               0.010000            0.005000               2.000          [torch.Size([64, 64])]
"""

import json
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any, List, Optional

import torch

FLOAT_DTYPES = [torch.float16, torch.float32, torch.bfloat16]
INT_DTYPES = [torch.int16, torch.int32]
BOOL_DTYPES = [torch.bool]
COMPLEX_DTYPES = [torch.complex64]
FP16_BF16_DTYPES = [torch.float16, torch.bfloat16]

DEFAULT_WARMUP_TIME = 1000
DEFAULT_ITER_TIME = 100

# As upstream, the first default shape has one dimension: a shape file that lacks the class keys therefore breaks
# whatever unpacks (b, m, n, k). Small, because Triton's interpreter needs about 1.5 s per million elements.
DEFAULT_SHAPES = [(4096,), (64, 64), (4, 16, 64)]


class BenchMode(Enum):
    """What a latency is: of the kernel, of the operator end to end, of the wrapper, or of a graph replay."""

    KERNEL = "kernel"
    OPERATOR = "operator"
    WRAPPER = "wrapper"
    CUDAGRAPH = "cudagraph"


class BenchLevel(Enum):
    """Which shapes: the core ones, or `set_more_shapes()` on top."""

    COMPREHENSIVE = "comprehensive"
    CORE = "core"


@dataclass
class BenchmarkMetrics:
    """One row: latencies in milliseconds, bandwidths in GB/s; None where it was not measured."""

    legacy_shape: Optional[int] = None
    shape_detail: Optional[Any] = None
    latency_base: Optional[float] = None
    latency: Optional[float] = None
    gbps_base: Optional[float] = None
    gbps: Optional[float] = None
    speedup: Optional[float] = None
    accuracy: Optional[float] = None
    tflops: Optional[float] = None
    utilization: Optional[float] = None
    compared_speedup: Optional[float] = None
    error_msg: Optional[str] = None


ALL_AVAILABLE_METRICS = {f.name for f in fields(BenchmarkMetrics)} - {"legacy_shape", "shape_detail"}
DEFAULT_METRICS = ["latency_base", "latency", "speedup"]
METRIC_NEEDS = {"speedup": ("latency", "latency_base"), "utilization": ("latency", "tflops")}


def check_metric_dependencies(wanted):
    """Returns the metrics of `wanted` (a list, or None) whose own inputs were not asked for before them."""
    seen, unmet = set(), []
    for metric in wanted or []:
        if all(need in seen for need in METRIC_NEEDS.get(metric, ())):
            seen.add(metric)
        else:
            unmet.append(metric)
    return unmet


@dataclass
class OperationAttribute:
    """What `--query` prints of an operator instead of measuring it."""

    op_name: str
    recommended_core_shapes: List[Any]
    shape_desc: str

    def __str__(self):
        title = f"Recommended Core Shapes[{self.shape_desc}]"
        return f"{'Operator name':<40} |  {self.op_name}\n{title:<40} |  {self.recommended_core_shapes}\n"

    def to_dict(self):
        return asdict(self)


def _number(value, digits):
    return "N/A" if value is None else f"{value:.{digits}f}"


@dataclass
class BenchmarkResult:
    """All rows of one operator and dtype; `str()` is the table."""

    op_name: str
    dtype: str
    mode: str
    level: str
    result: List[BenchmarkMetrics]

    def __str__(self):
        title = f"\nOperator: {self.op_name}  Performance Test (dtype={self.dtype}, mode={self.mode},level={self.level})\n"
        # Upstream decides the optional columns of the header by the first row, and of a row by that row itself.
        columns = [f"{'Status':<10}", *(f"{c:>20}" for c in ("Torch Latency (ms)", "Gems Latency (ms)", "Gems Speedup"))]
        if self.result[0].tflops:
            columns.append(f"{'TFLOPS':>20}")
        if self.result[0].gbps is not None:
            columns += [f"{'Torch GBPS ':>20}", f"{'Gems GBPS ':>20}"]
        header = " ".join([*columns, f"{'Size Detail':>20}\n"])
        return title + header + "-" * len(header) + "\n" + "".join(map(self._format_row, self.result))

    @staticmethod
    def _format_row(row):
        cells = [_number(row.latency_base, 6), _number(row.latency, 6), _number(row.speedup, 3)]
        if row.tflops:
            cells.append(_number(row.tflops, 3))
        if row.gbps is not None:
            cells += [_number(row.gbps_base, 3), _number(row.gbps, 3)]
        status = "SUCCESS" if row.error_msg is None else "FAILED"
        size = "N/A" if row.shape_detail is None else row.shape_detail
        return f"{status:<10}" + "".join(f"{cell:>20}" for cell in cells) + " " * 10 + f"{size}\n"

    def to_json(self):
        return json.dumps(asdict(self), default=str)
