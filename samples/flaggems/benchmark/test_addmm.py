import pytest
import torch

from . import base, consts


def addmm_inputs(b, m, n, k, dtype, device, b_column_major):
    bias = torch.randn([m, n], dtype=dtype, device=device)
    x = torch.randn([m, k], dtype=dtype, device=device)
    y = torch.randn([n, k] if b_column_major else [k, n], dtype=dtype, device=device)
    yield bias, x, y.t() if b_column_major else y


# No float32: flag_gems' first configuration that fits takes 10 s to compile for it.
@pytest.mark.addmm
def test_addmm():
    bench = base.BlasBenchmark(
        op_name="addmm",
        input_fn=addmm_inputs,
        torch_op=torch.addmm,
        dtypes=consts.FP16_BF16_DTYPES,
    )
    bench.run()
