"""Reductions and scans by whole-array steps that run the kernel's own combine function.

Upstream calls the combine function once per element, handles NaN its own way in argmin and argmax, and reduces the
bits of bfloat16. Here a reduction takes log2(n) steps over arrays, each step one call of the interpreted combine
function, so that its result is what that function says.
"""

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as triton_interpreter

from .floats import is_narrow, storage_dtype, to_storage, widen


def make_tensor(data, dtype):
    """A tl.tensor over storage: scalar for 0-d and one-element results without a shape, else a block."""
    if data.ndim == 0:
        return tl.tensor(triton_interpreter.TensorHandle(data.reshape(1), dtype.scalar), dtype.scalar)
    handle = triton_interpreter.TensorHandle(data, dtype.scalar)
    return tl.tensor(handle, tl.block_type(dtype.scalar, list(data.shape)))


class Combiner:
    """Calls the kernel's combine function on arrays. ``interpret`` turns a JIT function into an interpreted one."""

    def __init__(self, function, dtypes, interpret):
        self.function = interpret(function.fn)
        self.dtypes = dtypes

    def __call__(self, left, right):
        """Two lists of arrays of one shape -> one list of arrays."""
        operands = [make_tensor(x, t) for side in (left, right) for x, t in zip(side, self.dtypes)]
        combined = self.function(*operands)
        combined = combined if isinstance(combined, (tuple, tl.tuple)) else (combined,)
        return [self._storage(value, like, t) for value, like, t in zip(combined, left, self.dtypes)]

    @staticmethod
    def _storage(value, like, dtype):
        if not isinstance(value, tl.tensor):
            return np.full(like.shape, to_storage(np.asarray(value), dtype))
        data = value.handle.data
        if value.dtype.scalar != dtype.scalar:  # the combine function promoted; the region's type is the input's
            data = to_storage(widen(data, value.dtype), dtype)
        return np.broadcast_to(data, like.shape).astype(storage_dtype(dtype.scalar), copy=False)


def find_numpy_combine(function):
    """numpy's own operation for plain sum, max and min, else None. Compared by identity: a JIT function's hash would
    be computed from triton.language as it is patched now."""
    standard = tl.standard
    for known, operation in (
        (standard._sum_combine, np.add),
        (standard._elementwise_max, np.fmax),
        (standard._elementwise_min, np.fmin),
    ):
        if function is known:
            return operation
    return None


def make_combine(function, dtypes, interpret):
    """The combine step over lists of arrays."""
    operation = find_numpy_combine(function)
    if operation is None or len(dtypes) != 1 or is_narrow(dtypes[0]) or dtypes[0].scalar == tl.int1:
        return Combiner(function, dtypes, interpret)
    return lambda left, right: [operation(left[0], right[0])]


def tree_reduce(arrays, combine):
    """Reduce axis 0, whose length is a power of 2 as that of every block, by pairing neighbours: the order is kept for
    functions that do not commute."""
    while len(arrays[0]) > 1:
        arrays = combine([a[0::2] for a in arrays], [a[1::2] for a in arrays])
    return [a[0] for a in arrays]


def inclusive_scan(arrays, combine):
    """Hillis and Steele's scan along axis 0. Whole blocks are combined, because a block's length has to be a power of
    2; the lanes that wrapped around keep their old value."""
    step = 1
    while step < len(arrays[0]):
        combined = combine([np.roll(a, step, axis=0) for a in arrays], arrays)
        arrays = [np.concatenate([a[:step], c[step:]]) for a, c in zip(arrays, combined)]
        step *= 2
    return arrays


def make_reduce(interpret):
    """tl.reduce for interpreted kernels."""

    def reduce(input, axis, combine_fn, keep_dims=False, **ignored):
        inputs = input if isinstance(input, (tuple, tl.tuple)) else (input,)
        axis = axis.value if isinstance(axis, tl.constexpr) else axis
        outputs = reduce_all(inputs, axis, combine_fn, interpret)
        if keep_dims:
            rank = len(inputs[0].shape)
            outputs = [x.reshape((1,) * rank) if axis is None else np.expand_dims(x, axis) for x in outputs]
        tensors = tuple(make_tensor(x, t.dtype) for x, t in zip(outputs, inputs))
        return tensors if isinstance(input, (tuple, tl.tuple)) else tensors[0]

    return reduce


def reduce_all(inputs, axis, combine_fn, interpret):
    """Storage arrays with ``axis`` reduced (all axes for None)."""
    arrays = [np.broadcast_to(t.handle.data, t.shape) for t in inputs]
    if axis is None:
        arrays, axis = [a.reshape(-1) for a in arrays], 0
    arrays = [np.moveaxis(a, axis, 0) for a in arrays]
    combine = make_combine(combine_fn, [t.dtype for t in inputs], interpret)
    return [np.asarray(a) for a in tree_reduce(arrays, combine)]


def make_scan(interpret):
    """tl.associative_scan for interpreted kernels."""

    def associative_scan(input, axis, combine_fn, reverse=False, **ignored):
        inputs = input if isinstance(input, (tuple, tl.tuple)) else (input,)
        axis = axis.value if isinstance(axis, tl.constexpr) else axis
        reverse = reverse.value if isinstance(reverse, tl.constexpr) else reverse
        arrays = [np.moveaxis(np.broadcast_to(t.handle.data, t.shape), axis, 0) for t in inputs]
        arrays = [a[::-1] for a in arrays] if reverse else arrays
        arrays = inclusive_scan(arrays, make_combine(combine_fn, [t.dtype for t in inputs], interpret))
        arrays = [a[::-1] for a in arrays] if reverse else arrays
        tensors = tuple(
            make_tensor(np.ascontiguousarray(np.moveaxis(a, 0, axis)), t.dtype) for a, t in zip(arrays, inputs)
        )
        return tensors if isinstance(input, (tuple, tl.tuple)) else tensors[0]

    return associative_scan
