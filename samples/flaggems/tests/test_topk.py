import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


@pytest.mark.topk
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
def test_accuracy_topk(largest, dtype):
    # Distinct values, so that the indices are determined as well.
    x = torch.stack([torch.randperm(64) for _ in range(4)]).to(dtype).to(utils.device) - 31
    expected = torch.topk(utils.to_reference(x), 5, dim=-1, largest=largest)
    with flag_gems.use_gems():
        result = torch.topk(x, 5, dim=-1, largest=largest)
    utils.assert_equal(result.values, expected.values)
    utils.assert_equal(result.indices, expected.indices)
