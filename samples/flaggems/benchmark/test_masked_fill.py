import pytest
import torch

from . import base


def masked_fill_inputs(shape, dtype, device):
    x = base.generate_tensor_input(shape, dtype, device)
    yield x, x < 0.3, 1024


@pytest.mark.masked_fill
def test_masked_fill():
    bench = base.GenericBenchmark(op_name="masked_fill", input_fn=masked_fill_inputs, torch_op=torch.masked_fill)
    bench.run()
