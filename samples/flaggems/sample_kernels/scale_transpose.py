"""A kernel of the sample tree's own, tuned by plain @triton.autotune: out[j, i] = alpha * x[i, j].

flag_gems tunes through its LibTuner, whose cache is a database; a plain autotuner keeps a dict in the process.
Record and replay have to handle both, so the samples hold one of each. Read along rows and written along
columns, a tile needs a layout conversion: the compiled TTGIR has at least one `ttg.convert_layout`.
"""

import torch
import triton
import triton.language as tl

CONFIGS = [
    triton.Config({"BLOCK_M": 32, "BLOCK_N": 32}, num_warps=4, num_stages=1),
    triton.Config({"BLOCK_M": 16, "BLOCK_N": 64}, num_warps=2, num_stages=1),
    triton.Config({"BLOCK_M": 64, "BLOCK_N": 16}, num_warps=2, num_stages=1),
    triton.Config({"BLOCK_M": 64, "BLOCK_N": 64}, num_warps=8, num_stages=1),
]


@triton.autotune(configs=CONFIGS, key=["m", "n"])
@triton.jit
def scale_transpose_kernel(x_ptr, out_ptr, alpha, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (rows[:, None] < m) & (cols[None, :] < n)
    x = tl.load(x_ptr + rows[:, None] * n + cols[None, :], mask=inside)
    y = (x.to(tl.float32) * alpha).to(x.dtype)
    tl.store(out_ptr + cols[:, None] * m + rows[None, :], tl.trans(y), mask=tl.trans(inside))


def scale_transpose(x, alpha):
    """`alpha * x.T`, contiguous, of a contiguous (m, n) float tensor; computed in fp32."""
    m, n = x.shape
    out = torch.empty((n, m), dtype=x.dtype, device=x.device)
    scale_transpose_kernel[lambda meta: (triton.cdiv(m, meta["BLOCK_M"]), triton.cdiv(n, meta["BLOCK_N"]))](
        x, out, alpha, m, n
    )
    return out


def scale_transpose_torch(x, alpha):
    """What `scale_transpose` has to equal, in plain torch."""
    return (alpha * x.float()).t().contiguous().to(x.dtype)
