"""torch.cpu (and the torch.cuda queries that FlagGems hard-codes) as the module of an accelerator.

Each shim is one small function whose docstring says who needs it. ``torch.cuda.is_available()`` stays False on
purpose: code that would allocate on "cuda" must not be led there. Only FlagGems' operators for one chip are told yes.
"""

import sys
import time
import types

import torch

from .driver import bench_once

CHIPS = ("hopper.", "ampere.")  # where flag_gems keeps operators for one chip


class Event:
    """A timing event; wall time stands in for the device's clock."""

    def __init__(self, enable_timing=False, **ignored):
        self.time = None

    def record(self, stream=None):
        self.time = time.perf_counter()

    def elapsed_time(self, end):
        """Milliseconds from this event to ``end``; never 0, which upstream would divide by."""
        return max((end.time - self.time) * 1e3, 1e-6)

    def synchronize(self):
        pass

    def wait(self, stream=None):
        pass

    def query(self):
        return True


class NullContext:
    """A device or stream guard that guards nothing."""

    def __init__(self, *args, **kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return False


def install_torch(host_device):
    """All shims of this module."""
    functions = device_functions(host_device)
    shim_device_module(functions)
    shim_cuda_queries(functions)
    shim_seeding(host_device.generator)
    shim_accelerator()
    shim_pin_memory()
    shim_is_cuda()
    shim_is_available()
    shim_do_bench()


def device_functions(host_device):
    """The device-module functions that torch.cpu lacks or answers differently, by name."""
    target, generator = host_device.target, host_device.generator
    properties = types.SimpleNamespace(**target.properties)
    memory_figures = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
    functions = {name: lambda device=None: 0 for name in memory_figures}
    functions.update(
        get_device_properties=lambda device=None: properties,
        get_device_capability=lambda device=None: target.capability,
        get_device_name=lambda device=None: properties.name,
        current_device=lambda: 0,  # torch.cpu answers "cpu", but FlagGems indexes lists with it
        default_generators=(generator,),
        empty_cache=lambda: None,
        reset_peak_memory_stats=lambda device=None: None,
        mem_get_info=lambda device=None: (properties.total_memory, properties.total_memory),
        get_rng_state=lambda device=None: generator.get_state(),
        set_rng_state=lambda state, device=None: generator.set_state(state),
    )
    return functions


def shim_device_module(functions):
    """FlagGems uses ``torch.<device name>`` as its device module: here torch.cpu."""
    for name, value in functions.items():
        setattr(torch.cpu, name, value)
    torch.cpu.device = torch.cpu._DeviceGuard = NullContext
    torch.cpu.Event = Event
    torch.cpu.manual_seed = torch.cpu.manual_seed_all = torch.manual_seed


def shim_cuda_queries(functions):
    """Some operators and heuristics ask torch.cuda itself, whatever the device's name."""
    for name, value in functions.items():
        setattr(torch.cuda, name, value)
    stream = types.SimpleNamespace(cuda_stream=0, synchronize=lambda: None, wait_stream=lambda other: None)
    torch.cuda.current_stream = lambda device=None: stream
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.device = NullContext


def shim_seeding(generator):
    """torch.manual_seed and torch.seed hand their seed to ``torch.cuda.manual_seed_all``, which without a GPU only
    queues it. Here it seeds the host's generator, so that every seed is honoured, also the same one again."""

    def manual_seed(seed):
        generator.manual_seed(seed)

    torch.cuda.manual_seed = torch.cuda.manual_seed_all = manual_seed


def shim_accelerator():
    """Newer FlagGems asks torch.accelerator."""
    shims = {
        "device_index": NullContext,
        "current_device_index": lambda: 0,
        "set_device_index": lambda device: None,
        "device_count": lambda: 1,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
    }
    for name, value in shims.items():
        setattr(torch.accelerator, name, value)


def shim_pin_memory():
    """Pinning needs a GPU; here every tensor already lies where the "device" reads it."""
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self


def shim_is_cuda():
    """About 25 FlagGems operators assert ``x.is_cuda``: say yes to them, and the truth to everyone else."""
    real = torch._C.TensorBase.is_cuda

    def is_cuda(self):
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return caller.startswith(("flag_gems.", "_nvidia.", *CHIPS)) or real.__get__(self)

    torch.Tensor.is_cuda = property(is_cuda)


def shim_is_available():
    """Operators for one chip ask torch.cuda for its shared memory, if there is one, and leave out what does not fit."""
    real = torch.cuda.is_available
    torch.cuda.is_available = lambda: sys._getframe(1).f_globals.get("__name__", "").startswith(CHIPS) or real()


def shim_do_bench():
    """Benchmarks time by repetition; one call is enough where the time means nothing."""
    import triton.testing

    triton.testing.do_bench = bench_once
    triton.testing.do_bench_cudagraph = bench_once
