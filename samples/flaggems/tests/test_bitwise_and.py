import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


@pytest.mark.bitwise_and_tensor
@pytest.mark.parametrize("shape", utils.POINTWISE_SHAPES)
@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.bool])
def test_accuracy_bitwise_and(shape, dtype):
    low, high = (0, 2) if dtype is torch.bool else (-0x8000, 0x7FFF)
    x, y = (torch.randint(low, high, shape, device="cpu").to(dtype).to(utils.device) for _ in range(2))
    expected = torch.bitwise_and(utils.to_reference(x), utils.to_reference(y))
    with flag_gems.use_gems():
        result = torch.bitwise_and(x, y)
    utils.assert_equal(result, expected)
