"""The host device: Triton kernels on a machine with no accelerator.

Purpose   Gives FlagGems a device where there is none. Every kernel is compiled for a real target (TTGIR, PTX, cubin);
          each launch is executed on CPU tensors by Triton's interpreter. Compiler output and launch counts are real,
          values are right, time means nothing.
Usage     import host_device; host_device.install(host_device.parse_target("cuda:90"))    before flag_gems
          or the pytest plugin: HOST_TARGET=cuda:90 pytest -p _host_device_plugin ...
Limits    Only versions on passed.json (`make host-matrix` extends it). Linux. About 1.5 s per million elements. Inline
          PTX and Hopper's TMA/cluster paths cannot be executed. Autotuning takes the first configuration that fits.

Layers    target         HOST_TARGET, HOST_MODE; the chip's figures
          driver         Triton's driver; launcher binds one launch's arguments
          interpreter    runs a launch; rewriting, numerics (floats, libdevice), reductions, memory
          torch_shims    torch.cpu as an accelerator; philox its random generator
          gems_shims     flag_gems for the host; autotune_shim its tuner
          recorder       variants and launches; versions what may be used
"""

import contextlib
import threading

from .errors import HostAccessError, HostDeviceError, HostKernelError, UnsupportedOnHost
from .target import HostTarget, parse_target, read_target

__all__ = [
    "HostAccessError",
    "HostDevice",
    "HostDeviceError",
    "HostKernelError",
    "HostTarget",
    "UnsupportedOnHost",
    "install",
    "parse_target",
    "read_target",
]


class HostDevice:
    """The installed host device: its target, recorder, interpreter and random generator."""

    def __init__(self, target):
        from .interpreter import Interpreter
        from .philox import PhiloxGenerator
        from .recorder import Recorder

        self.target = target
        self.recorder = Recorder()
        self.interpreter = Interpreter()
        self.generator = PhiloxGenerator()
        self._trials = threading.local()

    @contextlib.contextmanager
    def probe(self):
        """Within: this thread's launches compile and are checked for resources, but neither run nor count (a tuner's
        trials). Per thread, and without the lock: another thread's launches go on and are not dropped."""
        before = self.probing()
        self._trials.active = True
        try:
            yield
        finally:
            self._trials.active = before

    def probing(self):
        """Whether this thread is trying configurations."""
        return getattr(self._trials, "active", False)


def install(target, any_version=False):
    """Make the host device Triton's active driver and return it; a second call returns the one that is there.

    ``any_version`` skips the list of passed versions (for `make host-matrix`, which makes that list).
    Raises HostDeviceError for a version that is not on it.
    """
    import functools

    import triton

    from .autotune_shim import install_autotune
    from .driver import HostDriver
    from .gems_shims import install_gems
    from .launcher import HostLauncher
    from .torch_shims import install_torch
    from .versions import check_triton, read_passed

    installed = getattr(triton.runtime.driver, "_active", None)
    if isinstance(installed, HostDriver):
        return installed.host_device
    passed = None if any_version else read_passed()
    if passed is not None:
        check_triton(triton.__version__, passed)
    device = HostDevice(target)
    triton.runtime.driver.set_active(HostDriver(device, functools.partial(HostLauncher, device)))
    device.interpreter.install()
    device.recorder.install()
    install_autotune(device)
    install_torch(device)
    install_gems(triton.__version__, passed, target.is_specialised)
    return device
