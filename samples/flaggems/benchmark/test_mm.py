import pytest
import torch

from . import base, consts


def mm_inputs(b, m, n, k, dtype, device, b_column_major):
    x = torch.randn([m, k], dtype=dtype, device=device)
    y = torch.randn([n, k] if b_column_major else [k, n], dtype=dtype, device=device)
    yield x, y.t() if b_column_major else y


@pytest.mark.mm
def test_mm():
    bench = base.BlasBenchmark(op_name="mm", input_fn=mm_inputs, torch_op=torch.mm, dtypes=consts.FLOAT_DTYPES)
    bench.run()
