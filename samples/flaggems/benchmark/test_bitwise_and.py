import pytest
import torch

from . import base, consts


# The mark is upstream's, `bitwise_and_tensor`. No float dtype: asked for float16 the operator falls back to its own.
@pytest.mark.bitwise_and_tensor
def test_bitwise_and():
    bench = base.BinaryPointwiseBenchmark(
        op_name="bitwise_and_tensor",
        torch_op=torch.bitwise_and,
        dtypes=consts.INT_DTYPES + consts.BOOL_DTYPES,
    )
    bench.run()
