import flag_gems
import pytest
import torch
from _pytest.mark.structures import Mark, MarkDecorator

from . import accuracy_utils as utils

# pytest.mark refuses names that start with an underscore; upstream sets such a mark on the generator, so do we.
setattr(pytest.mark, "_to_copy", MarkDecorator(Mark("_to_copy", (), {}, _ispytest=True), _ispytest=True))


@pytest.mark._to_copy
@pytest.mark.parametrize("shape", utils.POINTWISE_SHAPES)
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
def test_accuracy_to_copy(shape, dtype):
    x = torch.randn(shape, dtype=torch.float64, device=utils.device)
    expected = torch.ops.aten._to_copy(utils.to_reference(x), dtype=dtype)
    with flag_gems.use_gems():
        result = torch.ops.aten._to_copy(x, dtype=dtype)
    utils.assert_close(result, expected)
