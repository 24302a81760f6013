"""Arithmetic of the interpreter, as compiled code does it: the operations on values, one numpy call each.

A layer over Triton's InterpreterBuilder. Each method says what upstream's does instead.
"""

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime.interpreter import InterpreterBuilder, InterpreterOptions, TensorHandle

from .errors import UnsupportedOnHost
from .floats import is_float8, is_narrow, round_toward_zero, storage_dtype, to_storage, widen
from .libdevice import find_libdevice

COMPUTE_FLOATS = (tl.float16, tl.float32, tl.float64, tl.bfloat16)


def numbers(handle):
    """The handle's data as an array that numpy can compute with."""
    return widen(handle.data, handle.dtype)


def result(data, dtype):
    """A handle of ``dtype`` for computed numbers. Truth values are int1, whatever the operands were: upstream
    keeps the left operand's dtype, and broadcasting such a "float" later reads garbage."""
    if data.dtype == np.bool_:
        return TensorHandle(data, tl.int1)
    return TensorHandle(to_storage(data, dtype), dtype.scalar)


class HostNumerics(InterpreterBuilder):
    """InterpreterBuilder with the GPU's results for bfloat16, float8, casts, min/max, fma, dot and libdevice."""

    def __init__(self):
        super().__init__()
        # Upstream repeats every integer operation in int64 to look for overflow, whose result only a device
        # assertion would see, and those are off.
        self.options = InterpreterOptions(sanitize_overflow=False)

    # ---- elementwise

    def binary_op(self, lhs, rhs, op):
        """Upstream applies ``op`` to the bits of bfloat16, and keeps the left dtype for comparisons."""
        return result(np.asarray(op(numbers(lhs), numbers(rhs))), lhs.dtype)

    def unary_op(self, arg, op):
        return result(np.asarray(op(numbers(arg))), arg.dtype)

    def create_fneg(self, arg):
        """Upstream has none."""
        return self.unary_op(arg, np.negative)

    def create_add(self, lhs, rhs):
        """i1 addition wraps (it is xor); numpy's is or."""
        return self.binary_op(lhs, rhs, np.bitwise_xor if lhs.data.dtype == np.bool_ else np.add)

    def create_sub(self, lhs, rhs):
        return self.binary_op(lhs, rhs, np.bitwise_xor if lhs.data.dtype == np.bool_ else np.subtract)

    # minnum/maxnum return the number where one operand is NaN; upstream uses np.minimum, which returns NaN.
    def create_minnumf(self, lhs, rhs):
        return self.binary_op(lhs, rhs, np.fmin)

    def create_maxnumf(self, lhs, rhs):
        return self.binary_op(lhs, rhs, np.fmax)

    def create_clampf(self, arg, lo, hi, propagate_nans):
        """Without NaN propagation a NaN is clamped to ``lo``, as min(max(x, lo), hi) does on the GPU."""
        keep_nan = propagate_nans == ir.PROPAGATE_NAN.ALL
        largest, least = (np.maximum, np.minimum) if keep_nan else (np.fmax, np.fmin)
        return result(least(largest(numbers(arg), numbers(lo)), numbers(hi)), arg.dtype)

    def create_fma(self, x, y, z):
        """One rounding: float32 products are exact in float64."""
        wide = np.float64 if z.dtype.scalar != tl.float64 else np.longdouble
        product = numbers(x).astype(wide) * numbers(y).astype(wide)
        return result((product + numbers(z).astype(wide)).astype(np.float64), z.dtype)

    def create_ashr(self, lhs, rhs):
        """Upstream writes the signed view back into its operands."""
        signed = np.dtype(f"i{lhs.data.itemsize}")
        shifted = np.right_shift(lhs.data.astype(signed), rhs.data.astype(signed))
        return TensorHandle(shifted.astype(lhs.data.dtype), lhs.dtype.scalar)

    def create_umulhi(self, lhs, rhs):
        """Upper half of the unsigned product; upstream sign-extends operands that are held as signed."""
        unsigned = np.dtype(f"u{lhs.data.itemsize}")
        views = TensorHandle(lhs.data.view(unsigned), lhs.dtype), TensorHandle(rhs.data.view(unsigned), rhs.dtype)
        high = super().create_umulhi(*views)
        return TensorHandle(high.data.view(lhs.data.dtype), lhs.dtype.scalar)

    # ---- constants

    def get_bf16(self, value):
        """Upstream has none."""
        return TensorHandle(to_storage(np.array([value], dtype=np.float32), tl.bfloat16), tl.bfloat16)

    # ---- casts

    def cast_impl(self, src, dst_type):
        """Rounds to nearest even, where upstream truncates float32 to bfloat16 and casts bfloat16's bits."""
        if src.dtype.scalar == dst_type.scalar:
            return src
        return TensorHandle(to_storage(numbers(src), dst_type.scalar), dst_type.scalar)

    def create_fp_to_fp(self, src, dst_type, rounding_mode):
        for dtype in (src.dtype.scalar, dst_type.scalar):
            if dtype not in COMPUTE_FLOATS and not is_float8(dtype):
                raise UnsupportedOnHost(f"conversion from {src.dtype.scalar} to {dst_type.scalar}")
        if rounding_mode == ir.ROUNDING_MODE.RTZ:
            return TensorHandle(round_toward_zero(numbers(src), dst_type.scalar), dst_type.scalar)
        return self.cast_impl(src, dst_type)

    # ---- matrices and externs

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        """Multiplies in float32 (float64 for float64): numpy's own float16 matmul is slow and rounds at each step."""
        if d.data.dtype.kind != "f" and not is_narrow(d.dtype):
            return super().create_dot(a, b, d, input_precision, max_num_imprecise_acc)
        wide = np.float64 if d.data.dtype == np.float64 else np.float32
        product = np.matmul(numbers(a).astype(wide, copy=False), numbers(b).astype(wide, copy=False))
        return result(product + numbers(d).astype(wide, copy=False), d.dtype)

    def create_extern_elementwise(self, lib_name, lib_path, symbol, args, ret_type, is_pure):
        function = find_libdevice(symbol)
        if function is None:
            raise UnsupportedOnHost(f"extern function {symbol}")
        data = np.asarray(function(*[arg.data for arg in args]))
        return TensorHandle(data.astype(storage_dtype(ret_type)), ret_type.scalar)

    def create_inline_asm(self, *args):
        raise UnsupportedOnHost("inline PTX cannot be interpreted")

    def create_histogram(self, data, bins, mask):
        """Upstream counts in the data's own dtype, so int8 data overflows."""
        values = data.data if mask is None else data.data[np.broadcast_to(mask.data, data.data.shape)]
        inside = values[(values >= 0) & (values < bins)].astype(np.int64)
        return TensorHandle(np.bincount(inside, minlength=bins).astype(np.int32), tl.int32)
