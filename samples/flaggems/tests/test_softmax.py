import flag_gems
import pytest
import torch

from . import accuracy_utils as utils


@pytest.mark.softmax
@pytest.mark.parametrize("shape", utils.REDUCTION_SHAPES)
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
def test_accuracy_softmax(shape, dtype):
    x = torch.randn(shape, dtype=dtype, device=utils.device)
    expected = torch.softmax(utils.to_reference(x), 1)
    with flag_gems.use_gems():
        result = torch.softmax(x, 1)
    utils.assert_close(result, expected)


@pytest.mark.softmax_backward
@pytest.mark.parametrize("shape", utils.REDUCTION_SHAPES)
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
def test_accuracy_softmax_backward(shape, dtype):
    x, grad = (torch.randn(shape, dtype=dtype, device=utils.device) for _ in range(2))
    reference = utils.to_reference(x).requires_grad_()
    (expected,) = torch.autograd.grad(torch.softmax(reference, 1), reference, utils.to_reference(grad))
    x.requires_grad_()
    with flag_gems.use_gems():
        (result,) = torch.autograd.grad(torch.softmax(x, 1), x, grad)
    utils.assert_close(result, expected)
