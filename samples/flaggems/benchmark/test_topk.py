import pytest
import torch

from . import base, consts


def topk_inputs(shape, dtype, device):
    yield {"input": torch.randn(shape, dtype=dtype, device=device), "k": 5, "dim": -1},


@pytest.mark.topk
def test_topk():
    bench = base.GenericBenchmark2DOnly(
        op_name="topk", input_fn=topk_inputs, torch_op=torch.topk, dtypes=consts.FLOAT_DTYPES
    )
    bench.run()
