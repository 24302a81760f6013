import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


@pytest.mark.gather
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
def test_accuracy_gather(dim, dtype):
    x = torch.randn((13, 40), dtype=dtype, device=utils.device)
    index = torch.randint(0, 13, (13, 40), device="cpu").to(utils.device)
    expected = torch.gather(utils.to_reference(x), dim, utils.to_reference(index))
    with flag_gems.use_gems():
        result = torch.gather(x, dim, index)
    utils.assert_equal(result, expected)
