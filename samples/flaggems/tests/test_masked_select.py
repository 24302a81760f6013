import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


@pytest.mark.masked_select
@pytest.mark.parametrize("shape", utils.POINTWISE_SHAPES)
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
def test_accuracy_masked_select(shape, dtype):
    x = torch.randn(shape, dtype=dtype, device=utils.device)
    mask = torch.rand(shape, device="cpu").to(utils.device) < 0.3
    expected = torch.masked_select(utils.to_reference(x), utils.to_reference(mask))
    with flag_gems.use_gems():
        result = torch.masked_select(x, mask)
    utils.assert_equal(result, expected)
