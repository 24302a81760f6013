import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


@pytest.mark.rms_norm
@pytest.mark.parametrize("shape", utils.pick_shapes([(4, 64), (3, 5, 40)]))
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
def test_accuracy_rms_norm(shape, dtype):
    x = torch.randn(shape, dtype=dtype, device=utils.device)
    weight = torch.randn(shape[1:], dtype=dtype, device=utils.device)
    expected = torch.nn.functional.rms_norm(utils.to_reference(x), shape[1:], utils.to_reference(weight), 1e-5)
    result = flag_gems.rms_norm(x, shape[1:], weight, 1e-5)
    # The result is of the order of 1 to 10 and rounded once more than torch's.
    utils.assert_close(result, expected, atol={torch.float16: 4e-3, torch.float32: 1e-5, torch.bfloat16: 4e-2}[dtype])
