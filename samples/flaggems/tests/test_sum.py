import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


@pytest.mark.sum
@pytest.mark.parametrize("shape", utils.REDUCTION_SHAPES)
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
def test_accuracy_sum(shape, dtype):
    x = torch.randn(shape, dtype=dtype, device=utils.device)
    expected = torch.sum(utils.to_reference(x), 1)
    with flag_gems.use_gems():
        result = torch.sum(x, 1)
    # The order of the additions differs; sums of 130 normal values are of the order of 10.
    utils.assert_close(result, expected, atol=1e-5 if dtype is torch.float32 else 1e-2)
