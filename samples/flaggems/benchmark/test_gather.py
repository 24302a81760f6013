import pytest
import torch
from flag_gems.utils import shape_utils

from . import base, consts


def gather_inputs(shape, dtype, device):
    rows, cols = shape
    index = torch.randint(0, cols, (rows, 2 * cols), dtype=torch.long, device=device)
    yield base.generate_tensor_input(shape, dtype, device), -1, index


def get_gbps(args, latency):
    x, _, index = args
    moved = shape_utils.size_in_bytes(index) + 2 * index.numel() * x.element_size()
    return moved * 1e-9 / (latency * 1e-3)


@pytest.mark.gather
def test_gather():
    bench = base.TensorSelectBenchmark(
        op_name="gather",
        input_fn=gather_inputs,
        torch_op=torch.gather,
        dtypes=consts.FLOAT_DTYPES,
        get_gbps=get_gbps,
    )
    bench.run()
