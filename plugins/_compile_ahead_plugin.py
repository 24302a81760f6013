"""pytest plugin: compile every kernel that an operator's benchmark will launch, and do nothing else.

Purpose   While an operator is measured, the next ones' kernels are compiled into the compile cache (COMPILE_AHEAD,
          screen/ahead.py), by this pass on the host device in HOST_MODE=compile, whose cubins have the keys of the card's.
Use       COMPILE_PASS=1 HOST_TARGET=cuda:90 HOST_MODE=compile PYTHONPATH=plugins python -m pytest -p _host_device_plugin
          -p _compile_ahead_plugin --metrics=latency NODE ...         (--metrics: torch's own column is not called)
Reads     COMPILE_PASS   unset: does nothing
          COMPILE_LOCKS  a folder with one file for each core that all passes together may use
Does      - a tuner compiles all of its configurations, not only up to the first that fits; with COMPILE_LOCKS each in a fork
            of its own, which holds a lock while it lives. Nothing is initialised here that a fork would lose, and a sweep of
            hundreds of configurations takes all cores that are free: one process would keep the card waiting for minutes;
          - Triton's launcher of each signature (a C compiler, 0.3 s) is built, too, where there is a libcuda to link to;
          - operators that FlagGems has for this very chip are chosen (host_device: is_specialised);
          - large inputs are zeros: made at once, and of no memory until something writes to them.
Limits    What depends on the inputs' values is not compiled as with real ones, nor what a tuner's search would try next:
          those are compiled by the measuring process as ever.
"""

import contextlib
import fcntl
import functools
import math
import os
import time
from pathlib import Path

WAIT = 0.02     # seconds between two looks for a free core
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
        requires_grad = kwargs.get("requires_grad", False)
        return torch.zeros(tuple(size), dtype=dtype, device=kwargs.get("device"), requires_grad=requires_grad)

    return make


def compile_sweep(cores, tuner, args, meta, configs):
    """Compile each of `configs` in a fork, as many at once as there are free `cores`, the lock files; returns when all are."""
    from _tuner_sweep import compile_config, is_plain, set_up_config

    if not is_plain(tuner.fn):      # a tuner below it would wait for cores that this one holds
        return
    children = set()
    for config in configs:
        current = set_up_config(tuner, meta, config)
        core = take_core(cores)
        try:
            child = os.fork()
            if child == 0:      # holds the lock until it ends
                with contextlib.suppress(BaseException):    # the measuring process will meet it
                    compile_config(tuner, args, current)
                os._exit(0)
        finally:
            os.close(core)
        children.add(child)
        children -= {child for child in children if os.waitpid(child, os.WNOHANG)[0]}
    for child in children:
        os.waitpid(child, 0)


def take_core(cores):
    """A descriptor that holds the lock of a free one; waits until there is one."""
    while True:
        for path in cores:
            core = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(core, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return core
            except BlockingIOError:
                os.close(core)
        time.sleep(WAIT)


def build_launchers():
    """Whenever the host device makes its launcher of a kernel, Triton builds its own into the compile cache as well."""
    from triton.backends.nvidia import driver as nvidia
    from triton.runtime import driver

    try:
        nvidia.library_dirs()
    except Exception:   # noqa: BLE001 - no libcuda, as where there is no card: Triton asserts
        return
    make_launcher = driver.active.launcher_cls

    def make_both(src, metadata):
        with contextlib.suppress(Exception):    # the measuring process will meet it
            nvidia.CudaLauncher(src, metadata)
        return make_launcher(src, metadata)
    driver.active.launcher_cls = make_both


def pytest_load_initial_conftests():
    """After the host device is installed, before a conftest.py imports anything that could keep torch's functions."""
    if os.environ.get("COMPILE_PASS") != "1":
        return
    import torch
    from _tuner_sweep import watch_sweeps
    from host_device import autotune_shim

    if os.environ.get("COMPILE_LOCKS"):
        cores = sorted(Path(os.environ["COMPILE_LOCKS"]).iterdir())
        watch_sweeps(functools.partial(compile_sweep, cores))
    else:
        autotune_shim.tuning_session = lambda tuner: {"winner_found": False}
    build_launchers()
    for name in FACTORIES:
        setattr(torch, name, zeros_where_large(getattr(torch, name), name))
