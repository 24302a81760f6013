"""pytest plugin: compile every kernel that an operator's benchmark will launch, and do nothing else.

Purpose   While an operator is measured, the next ones' kernels are compiled into the compile cache (COMPILE_AHEAD,
          warm/ahead.py), by this pass on the host device in HOST_MODE=compile, whose cubins have the keys of the card's.
Use       COMPILE_PASS=1 HOST_TARGET=cuda:90 HOST_MODE=compile PYTHONPATH=plugins python -m pytest -p _host_device_plugin
          -p _compile_ahead_plugin --metrics=latency NODE ...         (--metrics: torch's own column is not called)
Reads     COMPILE_PASS  unset: does nothing
Does      - a tuner compiles all of its configurations, not only up to the first that fits;
          - large inputs are zeros: made at once, and of no memory until something writes to them.
Limits    What depends on the inputs' values is not compiled as with real ones. Hopper's own kernels (fill, mm, sqrt and
          fp8 ones of FlagGems) are not chosen on the host device: those are compiled by the measuring process as ever.
"""

import functools
import math
import os

LARGE = 1 << 16  # elements
FACTORIES = ("randn", "rand", "randint", "ones", "full")


def zeros_where_large(function, name):
    """`function` of torch, that for large sizes gives zeros of the same shape, dtype and device."""
    import torch

    @functools.wraps(function)
    def make(*args, **kwargs):
        sizes = [arg for arg in args if isinstance(arg, (tuple, list, torch.Size))] + [kwargs.get("size")]
        size = next((each for each in sizes if each is not None), [arg for arg in args if isinstance(arg, int)])
        if name == "randint" and not any(isinstance(each, (tuple, list, torch.Size)) for each in sizes):
            return function(*args, **kwargs)
        if kwargs.get("out") is not None or math.prod(size) < LARGE or not all(isinstance(each, int) for each in size):
            return function(*args, **kwargs)
        dtype = kwargs.get("dtype") or (torch.int64 if name == "randint" else None)
        return torch.zeros(tuple(size), dtype=dtype, device=kwargs.get("device"), requires_grad=kwargs.get("requires_grad", False))

    return make


def pytest_load_initial_conftests():
    """After the host device is installed, before a conftest.py imports anything that could keep torch's functions."""
    if os.environ.get("COMPILE_PASS") != "1":
        return
    import torch
    from host_device import autotune_shim

    autotune_shim.tuning_session = lambda tuner: {"winner_found": False}
    for name in FACTORIES:
        setattr(torch, name, zeros_where_large(getattr(torch, name), name))
