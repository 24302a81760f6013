import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


# Sums of up to 80 products, accumulated in fp32: results of the order of 10, in another order of addition.
ATOL = {torch.float16: 2e-2, torch.float32: 1e-4, torch.bfloat16: 2e-1}


@pytest.mark.mm
@pytest.mark.parametrize("m, n, k", utils.pick_shapes([(16, 32, 64), (33, 17, 80)]))
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
def test_accuracy_mm(m, n, k, dtype):
    x = torch.randn((m, k), dtype=dtype, device=utils.device)
    y = torch.randn((k, n), dtype=dtype, device=utils.device)
    expected = torch.mm(utils.to_reference(x), utils.to_reference(y))
    with flag_gems.use_gems():
        result = torch.mm(x, y)
    utils.assert_close(result, expected, atol=ATOL[dtype])
