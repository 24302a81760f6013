import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


@pytest.mark.index_select
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
def test_accuracy_index_select(dim, dtype):
    x = torch.randn((13, 40), dtype=dtype, device=utils.device)
    index = torch.tensor([12, 0, 5, 5, 1], device=utils.device)
    expected = torch.index_select(utils.to_reference(x), dim, utils.to_reference(index))
    with flag_gems.use_gems():
        result = torch.index_select(x, dim, index)
    utils.assert_equal(result, expected)
