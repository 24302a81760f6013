import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


@pytest.mark.cumsum
@pytest.mark.parametrize("shape", utils.REDUCTION_SHAPES)
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
def test_accuracy_cumsum(shape, dtype):
    x = torch.randn(shape, dtype=dtype, device=utils.device)
    # Reference in fp32: torch's own low-precision running sum rounds after every step.
    expected = torch.cumsum(utils.to_reference(x).float(), 1).to(dtype)
    with flag_gems.use_gems():
        result = torch.cumsum(x, 1)
    utils.assert_close(result, expected, atol={torch.float16: 2e-2, torch.float32: 1e-4, torch.bfloat16: 2e-1}[dtype])


@pytest.mark.cumsum
@pytest.mark.parametrize("dtype", [torch.int16, torch.int32])
def test_accuracy_cumsum_int(dtype):
    x = torch.randint(-100, 100, (5, 130), device="cpu").to(dtype).to(utils.device)
    expected = torch.cumsum(utils.to_reference(x), 1)
    with flag_gems.use_gems():
        result = torch.cumsum(x, 1)
    utils.assert_equal(result, expected)
