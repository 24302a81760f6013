import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


# Sums of up to 80 products, accumulated in fp32: results of the order of 10, in another order of addition.
ATOL = {torch.float16: 2e-2, torch.float32: 1e-4, torch.bfloat16: 2e-1}


@pytest.mark.bmm
@pytest.mark.parametrize("b, m, n, k", utils.pick_shapes([(2, 16, 32, 64), (3, 33, 17, 80)]))
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
def test_accuracy_bmm(b, m, n, k, dtype):
    x = torch.randn((b, m, k), dtype=dtype, device=utils.device)
    y = torch.randn((b, k, n), dtype=dtype, device=utils.device)
    expected = torch.bmm(utils.to_reference(x), utils.to_reference(y))
    with flag_gems.use_gems():
        result = torch.bmm(x, y)
    utils.assert_close(result, expected, atol=ATOL[dtype])
