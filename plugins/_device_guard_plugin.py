"""pytest plugin: tells flag_gems which vendor's card this is, so that it need not ask.

Purpose: flag_gems, where GEMS_VENDOR is unset and torch does not say at once, starts one vendor command per known
         vendor (`mthreads-gmi`, `npu-smi`, ...) and waits for all of them without a limit; one that hangs in the
         driver hangs the import. Here torch is asked, in this process, and no command is ever started.
Use:     python -m pytest -p _device_guard_plugin -s benchmark/test_abs.py      (plugins/ on PYTHONPATH)
Reads:   HOST_TARGET   set: does nothing, the host device is no vendor's card
         GEMS_VENDOR   (or FLAGGEMS_VENDOR, GEMS_BACKEND, FLAGGEMS_BACKEND) set: kept
         DEVICE        the device that was asked for; only named in messages
Does:    no garbage is collected until the tests are; what was imported by then is never searched.
Sets:    GEMS_VENDOR, before any conftest.py or later plugin is imported.
Output:  device guard: GEMS_VENDOR=nvidia (the device's name is 'NVIDIA H200')
         device guard: device 'NVIDIA H200', 139.2 of 139.8 GiB free
Exit:    3 if torch sees no accelerator.
Needs:   torch and pytest. Limits: torch itself may hang on a dead driver; the caller's time limit ends that.
"""

import gc
import importlib
import importlib.util
import os
import sys
from typing import NamedTuple

VENDOR_VARIABLES = ("GEMS_VENDOR", "FLAGGEMS_VENDOR", "GEMS_BACKEND", "FLAGGEMS_BACKEND")

# Vendors with a device type of their own: vendor, the package that adds it to torch, torch's attribute for it.
# Asked first: on Moore Threads torch.cuda.is_available() is False by design, elsewhere torch.cuda may be a shim.
EXTENSIONS = (
    ("mthreads", "torch_musa", "musa"),
    ("ascend", "torch_npu", "npu"),
    ("cambricon", "torch_mlu", "mlu"),
    ("enflame", "torch_gcu", "gcu"),
    ("tsingmicro", "torch_txda", "txda"),
    ("sunrise", "torch_ptpu", "ptpu"),
    ("aipu", None, "aipu"),
)
CPU_VENDORS = ("arm", "spacemit")

# Vendors whose cards answer as torch.cuda, by a word of the device's name. Marks of the build go first (below).
DEVICE_NAMES = (
    ("NVIDIA", "nvidia"), ("METAX", "metax"), ("ILUVATAR", "iluvatar"), ("PPU", "thead"), ("KUNLUN", "kunlunxin"),
    ("XPU", "kunlunxin"), ("DCU", "hygon"), ("HYGON", "hygon"), ("AMD", "amd"), ("RADEON", "amd"),
)  # fmt: skip


class Found(NamedTuple):
    """A vendor, what says so, and torch's module for its devices (`torch.cuda`, `torch.musa`, ...)."""

    vendor: str
    why: str
    backend: object


def has_package(name):
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def is_usable(backend):
    """True if torch's module `backend` answers that it has a device."""
    try:
        return bool(backend.is_available())
    except Exception:  # noqa: BLE001 - a broken vendor build raises anything; it has no usable device
        return False


def name_device(backend):
    try:
        return str(backend.get_device_name(0))
    except Exception:  # noqa: BLE001 - same
        return "unknown"


def name_cuda_vendor(torch, environ):
    """(vendor, why) of a card that answers as torch.cuda. Order: marks of the build, then the device's name."""
    build = str(getattr(torch, "__version__", "")).lower()
    marks = (
        ("thead", "PPU_SDK is set", "PPU_SDK" in environ),
        ("thead", f"torch is {build}", "+ppu" in build),
        ("iluvatar", "torch.corex exists", hasattr(torch, "corex")),
        ("hygon", "torch.__hcu_version__ exists", hasattr(torch, "__hcu_version__")),
        ("hygon", f"torch is {build}", "dtk" in build),
        ("metax", f"torch is {build}", "metax" in build),
        ("kunlunxin", "torch_xmlir is installed", has_package("torch_xmlir")),
    )
    for vendor, why, holds in marks:
        if holds:
            return vendor, why
    name = name_device(torch.cuda)
    for word, vendor in DEVICE_NAMES:
        if word in name.upper():
            return vendor, f"the device's name is {name!r}"
    if getattr(torch.version, "hip", None):
        return "amd", f"torch.version.hip is {torch.version.hip}"
    return "nvidia", f"assumed, for the device's name {name!r} is not known here; set GEMS_VENDOR if it is wrong"


def find_vendor(torch, environ):
    """The Found of this machine, or None where torch sees no accelerator. Starts no command."""
    for vendor, package, attribute in EXTENSIONS:
        if package and not hasattr(torch, attribute) and has_package(package):
            try:
                importlib.import_module(package)
            except Exception as error:  # noqa: BLE001 - a broken vendor package must not hide another vendor
                say(f"{package} is installed but cannot be imported: {type(error).__name__}: {error}")
        backend = getattr(torch, attribute, None)
        if backend is not None and is_usable(backend):
            return Found(vendor, f"torch.{attribute}.is_available()", backend)
    if hasattr(torch, "cuda") and is_usable(torch.cuda):
        return Found(*name_cuda_vendor(torch, environ), torch.cuda)
    return None


def find_given_vendor(environ):
    """(variable, value) of a vendor that the user set, or None."""
    return next(((name, environ[name]) for name in VENDOR_VARIABLES if environ.get(name)), None)


def describe_device(backend):
    """`device 'NAME', F of T GiB free`; without the memory where torch does not offer it."""
    text = f"device {name_device(backend)!r}"
    try:
        free, total = backend.mem_get_info(0)
    except Exception:  # noqa: BLE001 - not offered by every vendor
        return text
    return f"{text}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"


def say(text):
    print(f"device guard: {text}", flush=True)


def refuse(text):
    """End pytest with exit status 3. A SystemExit, because pytest.exit() so early would show a traceback."""
    print(f"device guard: error: {text}", file=sys.stderr, flush=True)
    raise SystemExit(3)


def guard_device(environ):
    """Set environ["GEMS_VENDOR"], say why, or refuse."""
    if environ.get("HOST_TARGET"):
        return
    asked = f"DEVICE: {environ['DEVICE']}: " if environ.get("DEVICE") else ""
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        if asked:
            refuse(f"{asked}torch cannot be imported ({error}); give a Python that has it: PYTHON=/path/to/python")
        say(f"torch cannot be imported ({error}); GEMS_VENDOR is left as it is")
        return
    given, found = find_given_vendor(environ), find_vendor(torch, environ)
    if found is None and not (given and given[1].lower() in CPU_VENDORS):
        refuse(f"{asked}torch {torch.__version__} sees no accelerator; check the driver and the visible devices, or "
               "run on the host device: HOST_TARGET=cuda:90")  # fmt: skip
    if given:
        environ["GEMS_VENDOR"] = given[1]
        seen = f"; torch would say {found.vendor}: {found.why}" if found and found.vendor != given[1].lower() else ""
        say(f"GEMS_VENDOR={given[1]} (kept: {given[0]} was set{seen})")
    else:
        environ["GEMS_VENDOR"] = found.vendor
        say(f"GEMS_VENDOR={found.vendor} ({found.why})")
    taken = getattr(sys.modules.get("flag_gems"), "vendor_name", environ["GEMS_VENDOR"])  # a warm parent has imported it
    if taken != environ["GEMS_VENDOR"]:
        say(f"flag_gems was imported before this plugin, for {taken}; put -p _device_guard_plugin first")
    if found:
        say(describe_device(found.backend))


def pytest_addoption():
    """Adds no option. This hook is called the moment `-p` loads the plugin: before output is captured, before the
    next plugin and before any conftest.py imports flag_gems.
    """
    gc.disable()    # what is imported from here on stays, and is so much that looking for rubbish in it takes 1 to 2 s
    guard_device(os.environ)


def pytest_collection_finish():
    """From here on rubbish is collected, but not looked for in all that was imported: that would be in the middle of a figure."""
    gc.freeze()
    gc.enable()
