"""Memory guard: a load, store or atomic outside a launch's own tensors is an error, not a crash of the process.

On a GPU such an access is an illegal memory access at best. Here it would read or write this Python process.
"""

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

    def check(self, addresses, mask, size, action):
        """Raises HostAccessError unless each lane that is not masked off has its ``size`` bytes inside one range."""
        if mask is not None:
            addresses, lanes = np.broadcast_arrays(addresses, np.asarray(mask, dtype=bool))
            addresses = addresses[lanes]
        addresses = addresses.reshape(-1)
        if addresses.size == 0:
            return
        outside = count_outside(addresses, size, self.ranges)
        if outside and not self.complete:
            outside = count_outside(addresses, size, read_mapped_ranges())
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


class GuardedMemory:
    """Stands in for Triton's native module with the interpreter's memory operations.

    Whatever a kernel does, it reaches memory through these four functions, in every version of Triton. ``launch`` is
    the LaunchMemory of the launch that runs now.
    """

    def __init__(self, native):
        self.native = native
        self.launch = None

    def load(self, pointers, mask, other, dtype):
        self.launch.check(pointers, mask, dtype.itemsize, "load")
        return self.native.load(pointers, mask, other, dtype)

    def store(self, pointers, values, mask):
        self.launch.check(pointers, mask, values.itemsize, "store")
        return self.native.store(pointers, values, mask)

    def atomic_rmw(self, operation, pointers, values, mask, semantic):
        self.launch.check(pointers, mask, values.itemsize, "atomic update")
        return self.native.atomic_rmw(operation, pointers, values, mask, semantic)

    def atomic_cas(self, pointers, expected, values, semantic):
        self.launch.check(pointers, None, values.itemsize, "atomic compare-and-swap")
        return self.native.atomic_cas(pointers, expected, values, semantic)


class HostBuilder(HostNumerics):
    """The interpreter's builder: host numerics over guarded memory."""

    def __init__(self, memory):
        super().__init__()
        self.memory = memory

    def create_atomic_rmw(self, rmw_op, ptr, val, mask, sem, scope):
        """The native module would add the bits of bfloat16 as integers."""
        if is_bfloat16(val.dtype) and rmw_op == ir.ATOMIC_OP.FADD:
            return TensorHandle(self.add_bfloat16(ptr.data, val.data, mask.data), tl.bfloat16)
        return super().create_atomic_rmw(rmw_op, ptr, val, mask, sem, scope)

    def add_bfloat16(self, pointers, values, mask):
        """Lane by lane, since lanes may share a cell. Returns the old bits."""
        old = np.zeros(pointers.shape, dtype=np.uint16)
        addends, on = widen_bfloat16(values), np.ones(1, dtype=bool)
        for lane in zip(*np.nonzero(mask)):
            pointer = pointers[lane].reshape(1)
            cell = self.memory.load(pointer, on, np.zeros(1, np.uint16), old.dtype)
            self.memory.store(pointer, round_to_bfloat16(widen_bfloat16(cell) + addends[lane]), on)
            old[lane] = cell[0]
        return old

    def create_int_to_ptr(self, src, dst_type):
        """The kernel makes its own pointer: which tensor it belongs to is not known."""
        self.memory.launch.forget_extents()
        return self.create_bitcast(src, dst_type)
