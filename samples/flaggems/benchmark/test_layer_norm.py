import pytest
import torch

from . import base, consts


def layer_norm_inputs(shape, dtype, device):
    normalized = shape[1:]
    weight, bias = (torch.randn(normalized, dtype=dtype, device=device) for _ in range(2))
    yield torch.randn(shape, dtype=dtype, device=device), normalized, weight, bias


@pytest.mark.layer_norm
def test_layer_norm():
    bench = base.NormBenchmark(
        op_name="layer_norm",
        input_fn=layer_norm_inputs,
        torch_op=torch.layer_norm,
        dtypes=consts.FLOAT_DTYPES,
    )
    bench.run()
