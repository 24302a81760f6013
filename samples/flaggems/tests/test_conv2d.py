import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


@pytest.mark.conv2d
@pytest.mark.skip(reason="sample of a skipped operator: never measured")
def test_accuracy_conv2d():
    x, weight = torch.randn([1, 3, 8, 8], device=utils.device), torch.randn([4, 3, 3, 3], device=utils.device)
    expected = torch.conv2d(utils.to_reference(x), utils.to_reference(weight))
    with flag_gems.use_gems():
        result = torch.conv2d(x, weight)
    utils.assert_close(result, expected, atol=1e-5)
