import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


# Sums of up to 80 products, accumulated in fp32: results of the order of 10, in another order of addition.
ATOL = {torch.float16: 2e-2, torch.bfloat16: 2e-1}


@pytest.mark.addmm
@pytest.mark.parametrize("m, n, k", [(33, 17, 80)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_accuracy_addmm(m, n, k, dtype):
    bias = torch.randn((n,), dtype=dtype, device=utils.device)
    x = torch.randn((m, k), dtype=dtype, device=utils.device)
    y = torch.randn((k, n), dtype=dtype, device=utils.device)
    expected = torch.addmm(*map(utils.to_reference, (bias, x, y)), alpha=0.5, beta=2)
    with flag_gems.use_gems():
        result = torch.addmm(bias, x, y, alpha=0.5, beta=2)
    utils.assert_close(result, expected, atol=ATOL[dtype])
