"""Memory guard: a load, store or atomic outside a launch's own tensors is an error, not a crash of the process.

On a GPU such an access is an illegal memory access at best. Here it would read or write this Python process.
"""

import ctypes

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime.interpreter import TensorHandle

from .errors import HostAccessError
from .floats import is_bfloat16, round_to_bfloat16, widen_bfloat16
from .numerics import HostNumerics


class LaunchMemory:
    """The address ranges that one launch may touch: the storages of its tensor arguments.

    Where a pointer's extent is unknown (a bare address such as FlagGems' TypedPtr, or a pointer that the kernel made
    from an integer), any mapped memory of the process is allowed, so that the process at least survives.
    """

    def __init__(self, kernel_name, arguments):
        self.kernel_name = kernel_name
        self.ranges, self.complete = find_ranges(arguments)

    def check(self, pointers, mask, action):
        """Raises HostAccessError unless all lanes that are not masked off lie inside one of the ranges."""
        addresses = pointers.data
        if mask is not None:  # a handle, or for block pointers upstream's bare array
            lanes = np.asarray(mask.data if isinstance(mask, TensorHandle) else mask, dtype=bool)
            addresses, lanes = np.broadcast_arrays(addresses, lanes)
            addresses = addresses[lanes]
        if addresses.size == 0:
            return
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        outside = count_outside(addresses.reshape(-1), size, self.ranges)
        if outside and not self.complete:
            outside = count_outside(addresses.reshape(-1), size, read_mapped_ranges())
        if outside:
            raise HostAccessError(
                f"kernel {self.kernel_name}: {action} outside every tensor argument "
                f"({outside} of {addresses.size} lanes)"
            )

    def forget_extents(self):
        """The kernel makes pointers from integers: their tensors are unknown."""
        self.complete = False


def find_ranges(arguments):
    """(sorted ranges as an array of [start, end), whether every pointer's extent is known)."""
    ranges, complete, todo = [], True, list(arguments)
    while todo:
        argument = todo.pop()
        if isinstance(argument, (tuple, list)):
            todo.extend(argument)
        elif hasattr(argument, "block_shape"):  # a TensorDescriptor
            todo.append(argument.base)
        elif hasattr(argument, "data_ptr"):
            storage = argument.untyped_storage() if hasattr(argument, "untyped_storage") else None
            if hasattr(storage, "nbytes"):
                ranges.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
            else:
                complete = False
    return merge_ranges(ranges), complete


def merge_ranges(ranges):
    """Sorted, non-overlapping [start, end) rows. Tensors that merely touch stay apart."""
    merged = []
    for start, end in sorted(ranges):
        if merged and start < merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([start, end])
    return np.array(merged, dtype=np.uint64).reshape(-1, 2)


def count_outside(addresses, size, ranges):
    """How many accesses of ``size`` bytes do not lie wholly inside one range."""
    if not len(ranges):
        return addresses.size
    last = addresses + np.uint64(size)
    low, high = addresses.min(), last.max()
    if np.any((ranges[:, 0] <= low) & (high <= ranges[:, 1])):  # the common case: all in one tensor
        return 0
    index = np.searchsorted(ranges[:, 0], addresses, side="right") - 1
    inside = (index >= 0) & (last <= ranges[np.maximum(index, 0), 1])
    return int(np.sum(~inside))


def read_mapped_ranges():
    """Readable and writable regions of this process, from /proc/self/maps (Linux)."""
    ranges = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, permissions = line.split()[:2]
            if permissions.startswith("rw"):
                start, end = span.split("-")
                ranges.append((int(start, 16), int(end, 16)))
    return merge_ranges(ranges)


class HostBuilder(HostNumerics):
    """The interpreter's builder: host numerics, with every memory operation checked first.

    ``memory`` is the LaunchMemory of the launch that runs now.
    """

    memory = None

    def create_masked_load(self, ptrs, mask, other, cache_modifier, eviction_policy, is_volatile):
        self.memory.check(ptrs, mask, "load")
        return super().create_masked_load(ptrs, mask, other, cache_modifier, eviction_policy, is_volatile)

    def create_masked_store(self, ptrs, value, mask, cache_modifier, eviction_policy):
        self.memory.check(ptrs, mask, "store")
        return super().create_masked_store(ptrs, value, mask, cache_modifier, eviction_policy)

    def create_atomic_cas(self, ptr, cmp, val, sem, scope):
        self.memory.check(ptr, None, "atomic compare-and-swap")
        return super().create_atomic_cas(ptr, cmp, val, sem, scope)

    def create_atomic_rmw(self, rmw_op, ptr, val, mask, sem, scope):
        self.memory.check(ptr, mask, "atomic update")
        if is_bfloat16(val.dtype) and rmw_op == ir.ATOMIC_OP.FADD:
            return add_bfloat16(ptr, val, mask)
        return super().create_atomic_rmw(rmw_op, ptr, val, mask, sem, scope)

    def create_int_to_ptr(self, src, dst_type):
        self.memory.forget_extents()
        return self.create_bitcast(src, dst_type)


def add_bfloat16(ptr, val, mask):
    """Atomic addition, lane by lane: upstream would add the bits as integers."""
    shape = ptr.data.shape
    old = np.zeros(shape, dtype=np.uint16)
    lanes = np.broadcast_to(mask.data, shape)
    addends = widen_bfloat16(np.broadcast_to(val.data, shape))
    for lane in zip(*np.nonzero(lanes)):
        cell = ctypes.c_uint16.from_address(int(ptr.data[lane]))
        old[lane] = cell.value
        cell.value = int(round_to_bfloat16(widen_bfloat16(old[lane]) + addends[lane]))
    return TensorHandle(old, tl.bfloat16)
