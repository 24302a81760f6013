import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


@pytest.mark.abs
@pytest.mark.parametrize("shape", utils.POINTWISE_SHAPES)
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
def test_accuracy_abs(shape, dtype):
    x = torch.randn(shape, dtype=dtype, device=utils.device)
    expected = torch.abs(utils.to_reference(x))
    with flag_gems.use_gems():
        result = torch.abs(x)
    utils.assert_equal(result, expected)
