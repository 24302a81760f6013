import pytest
import torch

from . import base, consts


def bmm_inputs(b, m, n, k, dtype, device, b_column_major):
    x = torch.randn([b, m, k], dtype=dtype, device=device)
    y = torch.randn([b, n, k] if b_column_major else [b, k, n], dtype=dtype, device=device)
    yield x, y.transpose(1, 2) if b_column_major else y


@pytest.mark.bmm
def test_bmm():
    bench = base.BlasBenchmark(op_name="bmm", input_fn=bmm_inputs, torch_op=torch.bmm, dtypes=consts.FLOAT_DTYPES)
    bench.run()
