import pytest
import torch

from . import base, consts


def cumsum_inputs(shape, dtype, device):
    yield base.generate_tensor_input(shape, dtype, device), 1


@pytest.mark.cumsum
def test_cumsum():
    bench = base.GenericBenchmark2DOnly(
        op_name="cumsum",
        input_fn=cumsum_inputs,
        torch_op=torch.cumsum,
        dtypes=consts.FLOAT_DTYPES + consts.INT_DTYPES,
    )
    bench.run()
