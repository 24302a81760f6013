"""What the sample accuracy tests share: dtypes, shapes, the reference's device, comparison with literal tolerances."""

import flag_gems
import torch

from . import conftest

device = flag_gems.device
FLOAT_DTYPES = [torch.float16, torch.float32, torch.bfloat16]

# Relative and absolute tolerance per dtype of the result: a few units in the last place.
TOLERANCE = {
    torch.float16: (2e-3, 1e-3),
    torch.bfloat16: (2e-2, 1e-2),
    torch.float32: (1e-5, 1e-6),
}


def pick_shapes(shapes):
    """All of `shapes`, or only the first with --quick."""
    return shapes[:1] if conftest.Config.quick else shapes


POINTWISE_SHAPES = pick_shapes([(2, 19, 7), (33, 65)])
REDUCTION_SHAPES = pick_shapes([(2, 32), (5, 130)])


def to_reference(x):
    """A copy for torch, which an in-place operator may change; on the CPU with `--ref cpu`."""
    return x.detach().to("cpu") if conftest.Config.to_cpu else x.detach().clone()


def assert_close(result, expected, rtol=None, atol=None):
    """Same dtype, same shape, equal within the dtype's TOLERANCE or the given one; NaN equals NaN only here."""
    default_rtol, default_atol = TOLERANCE[result.dtype]
    torch.testing.assert_close(
        result.cpu(),
        expected.cpu(),
        rtol=default_rtol if rtol is None else rtol,
        atol=default_atol if atol is None else atol,
        equal_nan=True,
    )


def assert_equal(result, expected):
    """Same dtype, same shape, bit-equal values."""
    torch.testing.assert_close(result.cpu(), expected.cpu(), rtol=0, atol=0, equal_nan=True)
