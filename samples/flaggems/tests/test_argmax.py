import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


@pytest.mark.argmax
@pytest.mark.parametrize("shape", utils.REDUCTION_SHAPES)
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
def test_accuracy_argmax(shape, dtype):
    # Distinct values, so that there is one right index: a permutation of 0, 1/256, 2/256, ... per row.
    x = torch.stack([torch.randperm(shape[1]) for _ in range(shape[0])]).to(dtype).to(utils.device) / 256
    expected = torch.argmax(utils.to_reference(x), 1)
    with flag_gems.use_gems():
        result = torch.argmax(x, 1)
    utils.assert_equal(result, expected)
