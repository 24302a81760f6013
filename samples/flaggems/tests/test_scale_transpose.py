import pytest
import torch
from sample_kernels import scale_transpose as kernel

from . import accuracy_utils as utils


@pytest.mark.scale_transpose
@pytest.mark.parametrize("shape", utils.pick_shapes([(16, 32), (33, 70)]))
@pytest.mark.parametrize("dtype", utils.FLOAT_DTYPES)
def test_accuracy_scale_transpose(shape, dtype):
    x = torch.randn(shape, dtype=dtype, device=utils.device)
    result = kernel.scale_transpose(x, 0.5)
    utils.assert_equal(result, kernel.scale_transpose_torch(utils.to_reference(x), 0.5))
