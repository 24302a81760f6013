import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


@pytest.mark.max
@pytest.mark.parametrize("shape", utils.REDUCTION_SHAPES)
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
def test_accuracy_max(shape, dtype):
    x = torch.randn(shape, dtype=dtype, device=utils.device)
    expected = torch.max(utils.to_reference(x), 1)
    expected_all = torch.max(utils.to_reference(x))
    with flag_gems.use_gems():
        result = torch.max(x, 1)
        result_all = torch.max(x)
    utils.assert_equal(result.values, expected.values)
    # Equal values can stand at several places: what counts is that the index points at the maximum.
    utils.assert_equal(x.gather(1, result.indices.unsqueeze(1)).squeeze(1), expected.values)
    utils.assert_equal(result_all, expected_all)
