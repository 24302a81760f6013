import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


@pytest.mark.sort
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_accuracy_sort(descending, dtype):
    # Distinct values, so that the indices are determined as well.
    x = torch.stack([torch.randperm(8) for _ in range(2)]).to(dtype).to(utils.device) - 3
    expected = torch.sort(utils.to_reference(x), dim=-1, descending=descending)
    with flag_gems.use_gems():
        result = torch.sort(x, dim=-1, descending=descending)
    utils.assert_equal(result.values, expected.values)
    utils.assert_equal(result.indices, expected.indices)
