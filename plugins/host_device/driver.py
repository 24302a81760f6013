"""The Triton driver of the host device: says "I am a cuda:90", loads no binary, has no stream.

DriverBase is Triton's documented extension point. Everything above it (JITFunction, the compiler, ptxas, the
compile cache, the hooks) runs unchanged, so TTGIR, PTX and cubin are those of the real target.
"""

import itertools
import time

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


def bench_once(fn, warmup=None, rep=None, grad_to_none=None, quantiles=None, return_mode="mean"):
    """Stands in for triton.testing.do_bench: calls ``fn`` once and returns its wall time in milliseconds.

    Interpreted kernels are thousands of times slower than real ones and their time means nothing, so repeating
    them only costs. Same result shapes as do_bench: a list for several quantiles or ``all``, else a float.
    """
    start = time.perf_counter()
    fn()
    for tensor in grad_to_none or ():
        tensor.grad = None
    milliseconds = (time.perf_counter() - start) * 1e3
    if quantiles is not None:
        return [milliseconds] * len(quantiles) if len(quantiles) > 1 else milliseconds
    return [milliseconds] if return_mode == "all" else milliseconds


class HostUtils:
    """What CompiledKernel asks of ``driver.active.utils``."""

    def __init__(self, target):
        self._properties = target.properties
        self._handles = itertools.count(1)

    def get_device_properties(self, device=0):
        facts = self._properties
        return {
            "max_shared_mem": facts["shared_memory_per_block_optin"],
            "multiprocessor_count": facts["multi_processor_count"],
            "warpSize": facts["warp_size"],
            "max_num_regs": facts["regs_per_multiprocessor"],
            "sm_clock_rate": facts["clock_rate"],
            "mem_clock_rate": facts["memory_clock_rate"],
            "mem_bus_width": facts["memory_bus_width"],
        }

    def load_binary(self, name, kernel, shared, device):
        """(module, function, registers, spills, most threads per block).

        The module must not be None, or the kernel is loaded again at every launch; the function must be unique,
        because the launch hooks join on it. Registers and spills are not known here: 0.
        """
        handle = next(self._handles)
        return handle, handle, 0, 0, 1024

    def unload_module(self, module):
        pass

    def is_stream_capturing(self, stream):
        return False

    def fill_tma_descriptor(self, *args):
        return None


class HostDriver(DriverBase):
    """Triton's active driver while the host device is installed.

    ``make_launcher(src, metadata)`` returns the callable that Triton calls in place of a GPU launch.
    """

    def __init__(self, host_device, make_launcher):
        self.host_device = host_device
        self.target = host_device.target
        self.utils = HostUtils(self.target)
        self.launcher_cls = make_launcher

    @classmethod
    def is_active(cls):
        return True

    def map_python_to_cpp_type(self, ty):
        return "int"

    def get_current_target(self):
        return GPUTarget(self.target.backend, self.target.arch, 32)

    def get_active_torch_device(self):
        return torch.device("cpu")

    def get_device_capability(self, device=0):
        return self.target.capability

    def get_current_device(self):
        return 0

    def set_current_device(self, device):
        pass

    def get_current_stream(self, device=0):
        return 0

    def get_device_interface(self):
        return torch.cpu

    def get_benchmarker(self):
        return bench_once

    def get_empty_cache_for_benchmark(self):
        return None

    def clear_cache(self, cache):
        pass

    def allocate_default_profile_scratch(self, size, alignment, stream):
        """Asked for by Triton 3.8 and later."""
        return None
