import pytest
import torch

from . import base, consts


def where_inputs(shape, dtype, device):
    x, y = (base.generate_tensor_input(shape, dtype, device) for _ in range(2))
    yield x > 0, x, y


@pytest.mark.where_self
def test_where_self():
    bench = base.GenericBenchmark(
        op_name="where_self", input_fn=where_inputs, torch_op=torch.where, dtypes=consts.FLOAT_DTYPES
    )
    bench.run()
