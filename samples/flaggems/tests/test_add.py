import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


@pytest.mark.add
@pytest.mark.parametrize("shape", utils.POINTWISE_SHAPES)
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
def test_accuracy_add(shape, dtype):
    x, y = (torch.randn(shape, dtype=dtype, device=utils.device) for _ in range(2))
    expected = torch.add(utils.to_reference(x), utils.to_reference(y), alpha=2)
    with flag_gems.use_gems():
        result = torch.add(x, y, alpha=2)
    utils.assert_close(result, expected)
