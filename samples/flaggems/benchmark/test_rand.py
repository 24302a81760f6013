import pytest
import torch

from . import base


def rand_inputs(shape, dtype, device):
    yield {"size": shape, "dtype": dtype, "device": device},


@pytest.mark.rand
def test_rand():
    bench = base.GenericBenchmark(op_name="rand", input_fn=rand_inputs, torch_op=torch.rand)
    bench.run()
