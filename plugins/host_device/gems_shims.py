"""flag_gems on the host device: NVIDIA's kernels, registered for the device "cpu".

Which flag_gems will be imported is not known when the host device is installed (pytest puts a checkout's ``src`` on
the path later), so an import hook does its work at that moment: it checks the version, brings a vendor module for
the host, and adjusts the few modules that cannot run here.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import types
from pathlib import Path

import torch

from .versions import check_pair, find_gems_version


class GemsFinder(importlib.abc.MetaPathFinder):
    """First on sys.meta_path. Finds nothing itself: it asks the other finders and acts on what they found."""

    def __init__(self, triton_version, passed, is_specialised):
        self.triton_version = triton_version
        self.is_specialised = is_specialised
        self.passed = passed  # None: any version may be imported (make host-matrix)

    def find_spec(self, name, path=None, target=None):
        """Part of the import protocol."""
        if name != "flag_gems" and name not in MODULE_SHIMS:
            return None
        spec = find_other_spec(self, name, path, target)
        if spec is None:
            return None
        if name == "flag_gems":
            self.check_version(Path(spec.origin).parent)
            wrap_import(spec, before=self.prepare_package)
        else:
            wrap_import(spec, after=MODULE_SHIMS[name])
        return spec

    def check_version(self, package_dir):
        if self.passed is not None:
            check_pair(self.triton_version, find_gems_version(package_dir), self.passed)

    def prepare_package(self, module):
        """What has to be in place when flag_gems itself looks for its device."""
        choose_vendor()
        keep_tuning_private()
        add_vendor_module(Path(module.__file__).parent / "runtime" / "backend", self.is_specialised)


def install_gems(triton_version, passed, is_specialised=False):
    """Put the hook in place. Too late if flag_gems is imported already: it has looked for a device by then."""
    if "flag_gems" in sys.modules:
        raise RuntimeError("host device: install it before flag_gems is imported")
    sys.meta_path.insert(0, GemsFinder(triton_version, passed, is_specialised))


def find_other_spec(finder, name, path, target):
    """What the remaining finders answer for a module."""
    for other in sys.meta_path:
        if other is not finder and hasattr(other, "find_spec"):
            spec = other.find_spec(name, path, target)
            if spec is not None:
                return spec
    return None


def do_nothing(module):
    pass


def wrap_import(spec, before=do_nothing, after=do_nothing):
    """Let ``before(module)`` and ``after(module)`` run around the module's execution."""
    execute = spec.loader.exec_module

    def exec_module(module):
        before(module)
        execute(module)
        after(module)

    spec.loader.exec_module = exec_module


def choose_vendor():
    """Without GEMS_VENDOR, flag_gems may spawn vendor commands with no timeout to find a device."""
    os.environ["GEMS_VENDOR"] = "nvidia"


def keep_tuning_private():
    """The first configuration that fits is no tuning result: it must not land in the user's database."""
    os.environ.setdefault("FLAGGEMS_DB_URL", "sqlite://")


def add_vendor_module(backend_dir, is_specialised):
    """flag_gems imports ``_nvidia`` from its backend folder and reads the device's name from it: put a module there
    first that says "cpu" and shares NVIDIA's operators.

    ARCH_MAP is left out unless `is_specialised`, so that the Hopper and Ampere specialisations are not chosen: they use
    TMA descriptors and cluster memory through paths that the interpreter does not have.
    """
    if str(backend_dir) not in sys.path:
        sys.path.append(str(backend_dir))
    import backend_utils

    describe = getattr(backend_utils, "VendorDescriptor", None) or backend_utils.VendorInfoBase
    module = types.ModuleType("_nvidia", "NVIDIA's FlagGems backend on the host device")
    module.__path__ = [str(backend_dir / "_nvidia")]
    module.__file__ = str(backend_dir / "_nvidia" / "__init__.py")
    if is_specialised:
        exec(compile(Path(module.__file__).read_bytes(), module.__file__, "exec"), module.__dict__)
    module.vendor_info = describe(
        vendor_name="nvidia", device_name="cpu", device_query_cmd="true", triton_extra_name="cuda"
    )
    module.CUSTOMIZED_UNUSED_OPS = ()
    sys.modules["_nvidia"] = module


def allow_cpu_where(module):
    """where() drops CPU tensors when it looks for the device and then finds none: keep them all."""
    module.filter = lambda function, items: items


def keep_mm_plain(module):
    """mm() has paths whose programs talk to each other: stream-K waits on locks that a later program opens (for ever,
    where programs run one after another), and newer versions read other blocks' cluster memory on Hopper."""
    for scenario in ("streamk_scenario", "cluster_remote_mm_scenario"):
        if hasattr(module, scenario):
            setattr(module, scenario, lambda *args: False)


def accept_cpu_generators(module):
    """A caller's own generator for this device is torch's CPU generator, whose state is not Philox's (seed, offset).
    Draw the Philox seed from it: its seed is honoured, and its own state advances and can be saved."""
    original = module.philox_backend_seed_offset

    def philox_backend_seed_offset(increment, generator=None):
        if not isinstance(generator, torch.Generator):
            return original(increment, generator)
        seed = torch.empty((), dtype=torch.int64).random_(generator=generator)
        return int(seed), 0

    module.philox_backend_seed_offset = philox_backend_seed_offset


MODULE_SHIMS = {
    "flag_gems.utils.random_utils": accept_cpu_generators,
    "flag_gems.ops.where": allow_cpu_where,
    "flag_gems.ops.mm": keep_mm_plain,
}
