import pytest
import torch
from _pytest.mark.structures import Mark, MarkDecorator

from . import base, consts

# pytest.mark refuses names that start with an underscore; upstream sets such a mark on the generator, so do we.
setattr(pytest.mark, "_to_copy", MarkDecorator(Mark("_to_copy", (), {}, _ispytest=True), _ispytest=True))


def to_copy_inputs(shape, dtype, device):
    yield torch.randn(shape, dtype=torch.float64, device=device), {"dtype": dtype}


@pytest.mark._to_copy
def test_to_copy():
    bench = base.GenericBenchmark(
        op_name="_to_copy",
        input_fn=to_copy_inputs,
        torch_op=torch.ops.aten._to_copy,
        dtypes=consts.FLOAT_DTYPES,
    )
    bench.run()
