import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


@pytest.mark.layer_norm
@pytest.mark.parametrize("shape", utils.pick_shapes([(4, 64), (3, 5, 40)]))
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
def test_accuracy_layer_norm(shape, dtype):
    x = torch.randn(shape, dtype=dtype, device=utils.device)
    weight, bias = (torch.randn(shape[1:], dtype=dtype, device=utils.device) for _ in range(2))
    expected = torch.layer_norm(utils.to_reference(x), shape[1:], utils.to_reference(weight), utils.to_reference(bias))
    with flag_gems.use_gems():
        result = torch.layer_norm(x, shape[1:], weight, bias)
    # The result is of the order of 1 to 10 and rounded once more than torch's.
    utils.assert_close(result, expected, atol={torch.float16: 4e-3, torch.float32: 1e-5, torch.bfloat16: 4e-2}[dtype])
