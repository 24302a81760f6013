import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


@pytest.mark.gelu
@pytest.mark.parametrize("shape", utils.POINTWISE_SHAPES)
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_accuracy_gelu(shape, dtype, approximate):
    x = torch.randn(shape, dtype=dtype, device=utils.device)
    expected = torch.nn.functional.gelu(utils.to_reference(x), approximate=approximate)
    with flag_gems.use_gems():
        result = torch.nn.functional.gelu(x, approximate=approximate)
    utils.assert_close(result, expected)
