"""device.py - the device that is timed, behind the few methods that the timer needs.

    name, l2_bytes, can_capture, seed        free_bytes()  trim()  allocate(n)
    replicate(target, source, size, stride, count)         differs(a, b, size)  flush()  launch_nothing()
    stream()  scratch_rng()  outside_dispatch()            synchronize()  clock()
    time_calls(run, hide_ms) -> ms, overtook  capture(run) -> graph with nodes, replay() -> ms, release()
    is_lost(error)

tests/fake_device.py has the same methods over a simulated clock; what is added here is added there.
Needs: torch and triton for the device; everything else of the package is free of both or takes them from here.
"""
import contextlib
import ctypes
import os
import subprocess
import sys
import time

import torch

from . import capture, kernels

FLUSH_BYTES = 256 << 20      # as Triton's do_bench, or twice the L2 if that is more
DEFAULT_L2 = 64 << 20        # where torch does not say
PROBE_SECONDS = 60
SPIN_CYCLES_PER_MS = 2_000_000

_PROBE = """
import torch
stream = torch.cuda.Stream()
x = torch.ones(8, device="cuda")
with torch.cuda.stream(stream):
    y = x + 1
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    y = x + 1
    graph.capture_end()
graph.replay()
torch.cuda.synchronize()
assert y.tolist() == [2.0] * 8
print("GRAPHS WORK")
"""


def open_device(module, kind, vendor):
    """The TorchDevice behind torch's device module `module` (torch.cuda, torch.musa, ...) of device type `kind`.

    None if it has no events.
    """
    if not hasattr(module, "Event") or not hasattr(torch, "UntypedStorage"):
        return None
    return TorchDevice(module, kind, vendor)


def has_graphs(module, vendor, probe):
    """True if torch's graphs work here. NVIDIA's do; `probe` says whether to try others, in a child with a deadline.

    On some cards a capture never returns, or takes thousands of launches one by one.
    """
    if module is not torch.cuda or not hasattr(module, "CUDAGraph"):
        return False
    if vendor == "nvidia":
        return True
    if not probe:
        return False
    try:
        done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=PROBE_SECONDS,
                              check=False, env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")})
    except subprocess.TimeoutExpired:
        return False
    return "GRAPHS WORK" in done.stdout


class TorchDevice:
    """See the top of this file. One per process; makes its buffers at once, before FlagGems replaces any operator."""

    def __init__(self, module, kind, vendor):
        self.module, self.type, self.vendor = module, kind, vendor
        self.index = module.current_device()
        properties = module.get_device_properties(self.index)
        self.name = module.get_device_name(self.index)
        self.uuid = str(getattr(properties, "uuid", "") or "")
        self.l2_bytes = getattr(properties, "L2_cache_size", 0) or DEFAULT_L2
        self.can_capture = has_graphs(module, vendor, probe=False)
        self.seed = torch.empty(0, dtype=torch.uint8, device=self.type)
        self.flush_bytes = max(FLUSH_BYTES, 2 * self.l2_bytes)
        self.flush_buffer, self.speck = None, self.allocate(8)
        self.side = module.Stream() if self.can_capture else None
        self.flag, self.flag_on_host = self._make_flag()
        self.spins, self.overtook = self.type == "cuda" and hasattr(module, "_sleep"), False
        self._compile_kernels()

    def probe_graphs(self):
        """Try graphs on a card that is not known to have them; says whether they work."""
        self.can_capture = has_graphs(self.module, self.vendor, probe=True)
        self.side = self.module.Stream() if self.can_capture else None
        return self.can_capture

    def _make_flag(self):
        """8 bytes that kernels write and the host reads; in host memory, where the device can reach that."""
        try:
            return torch.zeros(2, dtype=torch.int32).pin_memory(), True
        except RuntimeError:
            return torch.zeros(2, dtype=torch.int32, device=self.type), False

    def _compile_kernels(self):
        """Compile every form of the kernels now, so that nothing of ours is compiled while something is timed."""
        one, other = self.allocate(1024), self.allocate(1024)
        with self.stream():
            for size in (1024, 1023, 1001):  # whole words; a rest at an even and at an odd word
                self.replicate(one, other, size, 512, 1)
                self.differs(one, other, size)
            kernels.clear(one.data_ptr(), 1024)
            self.launch_nothing()
        self.synchronize()

    # ---- memory

    def free_bytes(self):
        """Memory that a new allocation can have: the driver's, and what torch's allocator holds unused."""
        try:
            free = self.module.mem_get_info(self.index)[0]
            return free + self.module.memory_reserved() - self.module.memory_allocated()
        except (AttributeError, RuntimeError):
            return 4 << 30

    def trim(self):
        """Give what torch's allocator holds unused back to the driver.

        Within a capture it cannot do that, it runs out of memory instead; the memory of every graph that was released is
        such. And so each capture begins from the same state, and finds its memory in the same places.
        """
        if hasattr(self.module, "empty_cache"):
            self.module.empty_cache()

    def allocate(self, size):
        return torch.UntypedStorage(size, device=torch.device(self.type, self.index))

    def replicate(self, target, source, size, stride, count):
        """Copy `size` bytes of storage `source` to `target` at 0, stride, 2 * stride, ..., `count` times."""
        kernels.replicate(target.data_ptr(), source.data_ptr(), size, stride, count)

    def differs(self, one, other, size):
        """True if the storages differ within their first `size` bytes. Waits."""
        address = self.flag.data_ptr()
        flag = ctypes.c_int32.from_address(address) if self.flag_on_host else None
        if flag is not None:  # a ctypes 0 is false
            flag.value = 0
        else:
            kernels.clear(address, 8)
        kernels.compare(one.data_ptr(), other.data_ptr(), size, address)
        self.synchronize()
        return bool(self.flag[0].item() if flag is None else flag.value)

    def flush(self):
        """Write more than the L2 holds."""
        if self.flush_buffer is None:
            self.flush_buffer = self.allocate(self.flush_bytes)
        kernels.clear(self.flush_buffer.data_ptr(), self.flush_bytes)

    def launch_nothing(self):
        """A kernel with next to nothing to do: what it takes is what a launch takes."""
        kernels.clear(self.speck.data_ptr(), 8)

    # ---- surroundings

    @contextlib.contextmanager
    def stream(self):
        """Inside, work goes to the stream of the measurement, in order with the stream around it."""
        if self.side is None:
            yield
            return
        outer = self.module.current_stream()
        self.side.wait_stream(outer)
        try:
            with self.module.stream(self.side):
                yield
        finally:
            self.module.set_stream(outer)
            try:
                outer.wait_stream(self.side)
            except RuntimeError:  # the stream is in the middle of a failed capture: there is nothing to wait for
                pass

    @contextlib.contextmanager
    def scratch_rng(self):
        """Inside, random numbers come from copies of the generators, which are then thrown away.

        So the inputs of later rows do not depend on how many samples were taken, and a capture that fails leaves
        its mark (a generator that thinks it is captured) on the copy.
        """
        host = torch.get_rng_state()
        generators = getattr(self.module, "default_generators", None)
        generator = generators[self.index] if generators else None
        shares = hasattr(generator, "graphsafe_get_state")
        saved = generator.graphsafe_get_state() if shares else self._read_rng()
        if shares:
            generator.graphsafe_set_state(generator.clone_state())
        try:
            yield
        finally:
            torch.set_rng_state(host)
            if shares:
                generator.graphsafe_set_state(saved)
            elif saved is not None:
                self.module.set_rng_state(saved)

    def _read_rng(self):
        return self.module.get_rng_state() if hasattr(self.module, "get_rng_state") else None

    @contextlib.contextmanager
    def outside_dispatch(self):
        """Inside, Triton's do_bench flushes the L2 with our kernel instead of torch's zero_, which may be FlagGems'."""
        from triton.runtime import driver
        active, names = driver.active, ("clear_cache", "get_empty_cache_for_benchmark")
        if not all(hasattr(active, name) for name in names):
            yield
            return
        own = {name: vars(active)[name] for name in names if name in vars(active)}
        active.clear_cache = lambda cache: self.flush()
        active.get_empty_cache_for_benchmark = lambda: None
        try:
            yield
        finally:
            for name in names:
                delattr(active, name)
            vars(active).update(own)

    def synchronize(self):
        self.module.synchronize()

    def clock(self):
        """Seconds of the host."""
        return time.perf_counter()

    # ---- timing

    def time_calls(self, run, hide_ms):
        """ms on the device for what run() launches, by a pair of events. Waits.

        `hide_ms`: how long the host needs to launch it all. A spinning kernel keeps the device busy for that long
        first, so that it never waits for the host (where there is one: CUDA). `overtook` says that it was through with
        that before all was launched: a call that waits for the device, as nonzero does, lets nothing be hidden.
        """
        start, end = (self.module.Event(enable_timing=True) for _ in range(2))
        if self.spins and hide_ms:
            self.module._sleep(int(hide_ms * SPIN_CYCLES_PER_MS))
        start.record()
        run()
        end.record()
        self.overtook = start.query()
        self.synchronize()
        return start.elapsed_time(end)

    @property
    def hides_launches(self):
        """True if time_calls() can keep the host's launch time out."""
        return self.spins

    def capture(self, run):
        """A graph of what run() launches on the stream of the measurement."""
        return capture.CudaGraph(run)

    def is_lost(self, error):
        """True if no later call on this device can work: its context is gone."""
        if capture.names_lost_device(error):
            return True
        for _ in range(2):  # the first wait may only deliver the failed capture's own error
            try:
                self.synchronize()
                return False
            except RuntimeError:
                continue
        return True
