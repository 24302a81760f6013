import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


@pytest.mark.where_self
@pytest.mark.parametrize("shape", utils.POINTWISE_SHAPES)
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
def test_accuracy_where_self(shape, dtype):
    x, y = (torch.randn(shape, dtype=dtype, device=utils.device) for _ in range(2))
    condition = x > 0
    expected = torch.where(*map(utils.to_reference, (condition, x, y)))
    with flag_gems.use_gems():
        result = torch.where(condition, x, y)
    utils.assert_equal(result, expected)
