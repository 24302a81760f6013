import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


@pytest.mark.dropout
@pytest.mark.parametrize("p", [0.3, 0.5])
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
def test_accuracy_dropout(p, dtype):
    x = torch.randn((64, 64), dtype=dtype, device=utils.device)
    x[x == 0] = 1  # so that a zero in the result means "dropped"
    torch.manual_seed(7)
    with flag_gems.use_gems():
        result = torch.nn.functional.dropout(x, p, training=True)
    kept = result != 0
    expected = torch.where(kept, (x.float() / (1 - p)).to(dtype), torch.zeros_like(x))
    utils.assert_close(result, expected)
    # 4096 draws: the share's standard error is below 0.008.
    assert abs(kept.float().mean().item() - (1 - p)) < 0.04
