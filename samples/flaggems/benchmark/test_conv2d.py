import pytest
import torch

from . import base, consts


def conv2d_inputs(shape, dtype, device):
    yield torch.randn([1, 3, 8, 8], dtype=dtype, device=device), torch.randn([4, 3, 3, 3], dtype=dtype, device=device)


@pytest.mark.conv2d
@pytest.mark.skip(reason="sample of a skipped operator: never measured")
def test_conv2d():
    bench = base.GenericBenchmark(
        op_name="conv2d", input_fn=conv2d_inputs, torch_op=torch.conv2d, dtypes=consts.FLOAT_DTYPES
    )
    bench.run()
