import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


# Torch's own generator gives other numbers on every device, so the distribution is what can be compared.
@pytest.mark.rand
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
def test_accuracy_rand(dtype):
    torch.manual_seed(7)
    with flag_gems.use_gems():
        x = torch.rand((64, 64), dtype=dtype, device=utils.device)
        other = torch.rand((64, 64), dtype=dtype, device=utils.device)
    values = x.float().cpu()
    assert x.dtype is dtype and x.shape == (64, 64)
    assert 0 <= values.min() < 0.01 and 0.99 < values.max() <= 1
    # 4096 uniform values: the mean's standard error is 0.0045, that of a quarter's share 0.0068.
    assert abs(values.mean() - 0.5) < 0.025
    for low in (0.0, 0.25, 0.5, 0.75):
        share = ((values >= low) & (values < low + 0.25)).float().mean()
        assert abs(share - 0.25) < 0.04
    assert not torch.equal(values, other.float().cpu())


@pytest.mark.rand
def test_rand_repeats_with_its_seed():
    with flag_gems.use_gems():
        torch.manual_seed(7)
        first = torch.rand((32, 32), device=utils.device)
        torch.manual_seed(8)
        other = torch.rand((32, 32), device=utils.device)
        torch.manual_seed(7)
        again = torch.rand((32, 32), device=utils.device)
    utils.assert_equal(again, first)
    assert not torch.equal(first.cpu(), other.cpu())
