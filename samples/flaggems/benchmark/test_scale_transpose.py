import pytest
import torch
from sample_kernels import scale_transpose as kernel

from . import base, consts


def scale_transpose_inputs(shape, dtype, device):
    yield torch.randn(shape, dtype=dtype, device=device), 0.5


@pytest.mark.scale_transpose
def test_scale_transpose():
    bench = base.GenericBenchmark2DOnly(
        op_name="scale_transpose",
        input_fn=scale_transpose_inputs,
        torch_op=kernel.scale_transpose_torch,
        dtypes=consts.FLOAT_DTYPES,
    )
    bench.set_gems(kernel.scale_transpose)
    bench.run()
