import pytest
import torch

from . import base, consts


@pytest.mark.abs
def test_abs():
    bench = base.UnaryPointwiseBenchmark(op_name="abs", torch_op=torch.abs, dtypes=consts.FLOAT_DTYPES)
    bench.run()
