import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


@pytest.mark.mul
@pytest.mark.parametrize("shape", utils.POINTWISE_SHAPES)
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
def test_accuracy_mul(shape, dtype):
    x, y = (torch.randn(shape, dtype=dtype, device=utils.device) for _ in range(2))
    expected = torch.mul(utils.to_reference(x), utils.to_reference(y))
    with flag_gems.use_gems():
        result = torch.mul(x, y)
    utils.assert_close(result, expected)


@pytest.mark.mul_
@pytest.mark.parametrize("shape", utils.POINTWISE_SHAPES)
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
def test_accuracy_mul_(shape, dtype):
    x, y = (torch.randn(shape, dtype=dtype, device=utils.device) for _ in range(2))
    expected = utils.to_reference(x).mul_(utils.to_reference(y))
    with flag_gems.use_gems():
        result = x.mul_(y)
    assert result.data_ptr() == x.data_ptr()
    utils.assert_close(x, expected)
