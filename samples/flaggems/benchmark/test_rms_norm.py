import flag_gems
import pytest
import torch

from . import base


def rms_norm_inputs(shape, dtype, device):
    weight = torch.randn(shape[1:], dtype=dtype, device=device)
    yield torch.randn(shape, dtype=dtype, device=device), shape[1:], weight, 1e-5


# No dtypes given: the class's DEFAULT_DTYPES. flag_gems' function is called itself, with torch's as the baseline.
@pytest.mark.rms_norm
def test_rms_norm():
    bench = base.NormBenchmark(
        op_name="rms_norm",
        input_fn=rms_norm_inputs,
        torch_op=torch.nn.functional.rms_norm,
        gems_op=flag_gems.rms_norm,
    )
    bench.run()
