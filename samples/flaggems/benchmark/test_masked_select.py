import pytest
import torch
from flag_gems.utils import shape_utils

from . import base, consts


def masked_select_inputs(shape, dtype, device):
    x = base.generate_tensor_input(shape, dtype, device)
    yield x, base.generate_tensor_input(shape, dtype, device) < 0.3


def get_gbps(args, latency):
    x, mask = args
    moved = shape_utils.size_in_bytes(mask) + 2 * int(mask.sum()) * x.element_size()
    return moved * 1e-9 / (latency * 1e-3)


@pytest.mark.masked_select
def test_masked_select():
    bench = base.TensorSelectBenchmark(
        op_name="masked_select",
        input_fn=masked_select_inputs,
        torch_op=torch.masked_select,
        dtypes=consts.FLOAT_DTYPES,
        get_gbps=get_gbps,
    )
    bench.run()
