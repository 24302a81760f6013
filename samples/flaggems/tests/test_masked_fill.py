import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


@pytest.mark.masked_fill
@pytest.mark.parametrize("shape", utils.POINTWISE_SHAPES)
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
def test_accuracy_masked_fill(shape, dtype):
    x = torch.randn(shape, dtype=dtype, device=utils.device)
    mask = x < 0.3
    expected = torch.masked_fill(utils.to_reference(x), utils.to_reference(mask), 1024)
    with flag_gems.use_gems():
        result = torch.masked_fill(x, mask, 1024)
    utils.assert_equal(result, expected)
