"""capture.py - a CUDA graph of some calls, and the way out of a capture that failed.

torch.cuda.graph is not used. When a capture fails it leaves its stream the current one, the memory pool open, and the
default generator believing that it is captured (the next randn raises); it also collects garbage and empties the
allocator's cache on every entry. Here the caller captures under a throwaway generator (device.scratch_rng), and the
stream and the pool are put back whatever happens.
"""
import ctypes
import gc
import re
import warnings

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# By the text of the error's first line. What torch appends to every CUDA error, advice to compile with device-side
# assertions, is on a later line and no sign of anything.
LOST = re.compile(r"illegal memory access|illegal address|illegal instruction|misaligned address|unspecified launch failure"
                  r"|device-side assert triggered|hardware stack error|invalid program counter|invalid address space"
                  r"|uncorrectable|ECC error|context is destroyed|GPU has fallen off|unknown error", re.I)
UNJOINED = re.compile(r"unjoined|StreamCaptureUnjoined", re.I)
NODE_KINDS = {0: "kernel", 1: "memcpy", 2: "memset", 3: "host", 4: "graph"}  # CUgraphNodeType; the rest does no work


def names_lost_device(error):
    """True if the error's own text says that every later call on the device will fail too."""
    first = next(iter(str(error).splitlines()), "")
    return bool(LOST.search(first))


def leaves_work_behind(error):
    """True if the capture failed because work was still running on another stream, which no event here would see."""
    return bool(UNJOINED.search(str(error)))


class CudaGraph:
    """What run() launched on the current stream, which is not the default one. Raises what run() or CUDA raises."""

    def __init__(self, run):
        self.graph, self.has_raw = make_graph()
        self.pool = torch.cuda.graph_pool_handle()
        self.start, self.end, self.inside = make_events()
        self.outer = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self.warned_empty = False
        self._capture(run)
        self.nodes = self._count_nodes()
        if self.has_raw:
            self.graph.instantiate()

    def _capture(self, run):
        collects = gc.isenabled()
        gc.disable()  # a collection could free another graph or an event in the middle of this one
        ended = False
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                with DirectFill():
                    self.graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
                try:
                    if self.inside:
                        self.start.record()
                    run()
                    if self.inside:
                        self.end.record()
                except BaseException:
                    self._end_failed()
                    ended = True
                    raise
                self.graph.capture_end()
                ended = True
            self.warned_empty = any("graph is empty" in str(w.message).lower() for w in caught)
        except BaseException:
            if not ended:
                close_pool(self.pool)
            raise
        finally:
            if collects:
                gc.enable()

    def _end_failed(self):
        """End a capture whose calls raised; the error of ending it is only its echo."""
        try:
            self.graph.capture_end()
        except RuntimeError:
            close_pool(self.pool)

    def _count_nodes(self):
        """{kind: number} of the nodes that do work, or None where torch does not show the graph."""
        if not self.has_raw:
            return {} if self.warned_empty else None
        return count_nodes(self.graph.raw_cuda_graph())

    def replay(self):
        """Replay once and wait; ms between the first and the last of its nodes."""
        with DirectFill():
            if self.inside:
                self.graph.replay()
            else:
                self.outer[0].record()
                self.graph.replay()
                self.outer[1].record()
        torch.cuda.current_stream().synchronize()
        start, end = (self.start, self.end) if self.inside else self.outer
        return start.elapsed_time(end)

    def release(self):
        """Give back the graph and its memory."""
        self.graph.reset()


class DirectFill(TorchDispatchMode):
    """Inside, write(address, number) does what fill_ does to one int64 on the device; where it returns False, fill_ does.

    For capture_begin() and replay(): torch sets the seed and the offset of the captured generator with fill_, which
    inside use_gems() is FlagGems' kernel: tuned, compiled and counted in the middle of our measurement. An override by
    torch.library cannot be bypassed by a dispatch key, it sits at the device's own; a mode is asked before it.
    """

    def __init__(self, write=None):
        super().__init__()
        self.write = write or write_int64

    @classmethod
    def _should_skip_dynamo(cls):
        """Torch wraps the method below so that its compiler leaves it alone; the first call then imports all of it: 3 s, in
        the middle of the first figure. Nothing here is compiled by torch."""
        return False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.fill_.Scalar and not kwargs and args[0].dtype is torch.int64 and args[0].numel() == 1:
            if self.write(args[0].data_ptr(), int(args[1])):
                return args[0]
        return function(*args, **(kwargs or {}))


def write_int64(address, number):
    """Set 8 bytes on the device, in the order of the current stream. False where there is no CUDA driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    for offset, word in ((0, number), (4, number >> 32)):
        place, value = ctypes.c_uint64(address + offset), ctypes.c_uint(word & 0xFFFFFFFF)
        check(library.cuMemsetD32Async(place, value, ctypes.c_size_t(1), stream))
    return True


def make_graph():
    """(graph, True if its raw form can be looked at)."""
    try:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        return graph, hasattr(graph, "raw_cuda_graph")
    except TypeError:  # before torch 2.8
        return torch.cuda.CUDAGraph(), False


def make_events():
    """(start, end, True if they can be nodes of the graph).

    As nodes they leave out the 5 to 7 us that it takes to launch the graph. They are made by a first record, before
    the capture.
    """
    try:
        events = [torch.cuda.Event(enable_timing=True, external=True) for _ in range(2)]
    except TypeError:
        return None, None, False
    for event in events:
        event.record()
    torch.cuda.current_stream().synchronize()
    return *events, not torch.version.hip


def count_nodes(raw):
    """{kind: number} of the nodes of a CUgraph that do work."""
    library = ctypes.CDLL("libcuda.so.1")
    graph, count = ctypes.c_void_p(raw), ctypes.c_size_t(0)
    check(library.cuGraphGetNodes(graph, None, ctypes.byref(count)))
    nodes = (ctypes.c_void_p * count.value)()
    if count.value:
        check(library.cuGraphGetNodes(graph, nodes, ctypes.byref(count)))
    kinds = {}
    for node in nodes:
        kind = ctypes.c_int(-1)
        check(library.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)))
        name = NODE_KINDS.get(kind.value)
        if name:
            kinds[name] = kinds.get(name, 0) + 1
    return kinds


def check(status):
    if status:
        raise RuntimeError(f"CUDA driver error {status}")


def close_pool(pool):
    """Tell the allocator that nothing is captured any more; a failed capture_end does not."""
    device = torch.cuda.current_device()
    for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
        close = getattr(torch._C, name, None)
        try:
            if close:
                close(device, pool)
        except RuntimeError:  # it was closed after all
            return
