import pytest
import torch
from flag_gems.utils import shape_utils

from . import base, consts


def index_select_inputs(shape, dtype, device):
    x = base.generate_tensor_input(shape, dtype, device)
    rows = x.size(0)
    yield x, 0, torch.randint(0, rows, [max(1, rows // 10)], device=device)


def get_gbps(args, latency):
    x, dim, index = args
    return 2 * shape_utils.size_in_bytes(x) // x.size(dim) * index.numel() * 1e-9 / (latency * 1e-3)


@pytest.mark.index_select
def test_index_select():
    bench = base.TensorSelectBenchmark(
        op_name="index_select",
        input_fn=index_select_inputs,
        torch_op=torch.index_select,
        dtypes=consts.FLOAT_DTYPES,
        get_gbps=get_gbps,
    )
    bench.run()
