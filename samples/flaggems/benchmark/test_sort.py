import pytest
import torch

from . import base


def sort_inputs(shape, dtype, device):
    yield base.generate_tensor_input(shape, dtype, device), {"dim": -1, "descending": False}


# Two of the three float dtypes: asked for all three, the operator falls back to the subset that it supports.
@pytest.mark.sort
def test_sort():
    bench = base.GenericBenchmark2DOnly(
        op_name="sort",
        input_fn=sort_inputs,
        torch_op=torch.sort,
        dtypes=[torch.float16, torch.float32],
    )
    bench.run()
