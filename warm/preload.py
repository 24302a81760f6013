"""preload.py - what the warm parent imports, and how it does so without touching the accelerator.

Importing flag_gems asks torch for the device: its name, its capability, its number of processors; any of these
initialises it, and CUDA does not survive a fork. So a plain process beside this one asks first, and while flag_gems is
imported torch.cuda's functions answer from that record. A function that was kept somewhere meanwhile answers from the
record in the parent only; in a fork it is torch's own. What asks for more than the record has is refused, and flag_gems
is then left to the forks (level "torch" of server.py).

On the host device there is nothing to initialise: host_device.install() comes before flag_gems, as in its plugin.
"""
import functools
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import types

SAFE_VENDORS = ("nvidia",)      # verified: a fork of a parent that never initialised it initialises it as a fresh process
MODULES = ("torch", "triton", "triton.testing", "yaml", "sqlalchemy",
           "torch._prims_common", "sympy", "triton.experimental.gluon")     # these come with a first launch
PACKAGES = ("flag_gems", "flaggems_vllm")
ASK_SECONDS = 120
RECORDED = ("is_available", "device_count", "current_device", "get_device_name", "get_device_capability",
            "get_device_properties", "is_bf16_supported")
ASK_DEVICE = """
import json, os, sys
import torch
import _device_guard_plugin as guard
found = guard.find_vendor(torch, os.environ)
given = guard.find_given_vendor(os.environ)
facts = {"vendor": (given[1].lower() if given else found.vendor) if found else ""}
if facts["vendor"] in sys.argv[1].split(","):
    seen = torch.cuda.get_device_properties(0)
    facts["answers"] = {name: getattr(torch.cuda, name)() for name in sys.argv[2].split(",") if name != "get_device_properties"}
    facts["properties"] = {name: value for name in dir(seen) if not name.startswith("_")
                           and isinstance(value := getattr(seen, name), (int, float, str, bool))}
print("\\nWARM " + json.dumps(facts))
"""


class Unsafe(Exception):
    """This parent must not be forked; the text says why."""


def import_all(with_gems):
    """Import everything; the environment variables that this set, {name: value}. Unsafe if the device has no fork."""
    before = dict(os.environ)
    asking = None if os.environ.get("HOST_TARGET") else start_asking()
    importlib.import_module("pytest")
    for name in importlib.import_module("_pytest.config").default_plugins:
        importlib.import_module(f"_pytest.{name}")
    threads = 1 + count_new_threads("numpy")
    for name in MODULES:
        import_if_there(name)
    hash_compiler()         # here, for the device's answer may take longer than the imports
    if asking is None:
        import_on_host(with_gems)
    else:
        import_on_device(read_answer(asking), with_gems)
    if count_threads() > threads:
        raise Unsafe(f"{count_threads()} threads, and a fork has only one of them")
    check_untouched()
    return {name: value for name, value in os.environ.items() if before.get(name) != value}


def count_new_threads(name):
    """Threads that importing `name` starts: numpy's OpenBLAS has some, which it starts again in a fork by itself."""
    before = count_threads()
    import_if_there(name)
    return count_threads() - before


def count_threads():
    return len(os.listdir("/proc/self/task"))


def import_if_there(name):
    """Import what is installed. One that cannot be imported is left to the forks, which will say so."""
    try:
        importlib.import_module(name)
    except ImportError:
        pass


def hash_compiler():
    """Triton hashes its own files, libtriton.so among them, once in each process: 0.3 s. The forks then have it."""
    for name in ("triton.runtime.cache", "triton.compiler.compiler"):      # where Triton has it, by version
        if hasattr(sys.modules.get(name), "triton_key"):
            sys.modules[name].triton_key()


def import_gems():
    for name in PACKAGES:
        if importlib.util.find_spec(name):
            importlib.import_module(name)


# ---- the host device

def import_on_host(with_gems):
    """As _host_device_plugin does it; what it refuses is left to the fork, to be refused there."""
    import host_device

    try:
        host_device.install(host_device.read_target(os.environ), any_version=os.environ.get("HOST_ANY_VERSION") == "1")
    except host_device.HostDeviceError as error:
        raise Unsafe(f"the host device cannot be installed: {error}") from None
    if with_gems:
        import_gems()


# ---- a real device

def start_asking():
    """A plain process that asks torch for the device, while this one imports."""
    return subprocess.Popen([sys.executable, "-c", ASK_DEVICE, ",".join(SAFE_VENDORS), ",".join(RECORDED)],
                            stdout=subprocess.PIPE, text=True)


def read_answer(asking):
    """What that process found. Unsafe for a vendor whose forks nobody has verified."""
    try:
        output, _ = asking.communicate(timeout=ASK_SECONDS)
    except subprocess.TimeoutExpired:
        asking.kill()
        raise Unsafe(f"torch did not say within {ASK_SECONDS} s which device there is") from None
    lines = [line for line in output.splitlines() if line.startswith("WARM ")]
    if not lines:
        raise Unsafe("torch could not say which device there is")
    facts = json.loads(lines[-1].partition(" ")[2])
    if facts["vendor"] not in SAFE_VENDORS:
        raise Unsafe(f"whether a device of {facts['vendor'] or 'no vendor'} survives a fork is not known; known is: "
                     f"{', '.join(SAFE_VENDORS)}")
    return facts


def import_on_device(facts, with_gems):
    """Import flag_gems with torch.cuda answering from `facts`. Unsafe if it asks for more."""
    import torch

    asked = []
    originals = {(torch.cuda, name): getattr(torch.cuda, name) for name in RECORDED}
    originals |= {(torch.cuda, "_lazy_init"): torch.cuda._lazy_init}
    originals |= {(torch._C, name): getattr(torch._C, name) for name in ("_cuda_init", "_cuda_getDeviceCount")
                  if hasattr(torch._C, name)}
    answers = {**facts["answers"], "get_device_capability": tuple(facts["answers"]["get_device_capability"]),
               "get_device_properties": types.SimpleNamespace(**facts["properties"])}
    for (module, name), function in originals.items():
        setattr(module, name, answer_here(function, answers[name]) if name in answers else refuse_here(function, name, asked))
    given = "GEMS_VENDOR" in os.environ
    os.environ.setdefault("GEMS_VENDOR", facts["vendor"])
    try:
        if with_gems:
            import_gems()
    finally:
        if not given:
            del os.environ["GEMS_VENDOR"]       # the guard plugin sets it in each fork, and says why
        for (module, name), function in originals.items():
            setattr(module, name, function)
    if asked:
        raise Unsafe(f"importing flag_gems asks for {asked[0]}")


def answer_here(function, answer):
    """`function` that gives `answer` in this process, and is itself in its forks."""
    parent = os.getpid()

    @functools.wraps(function)
    def ask(*args, **kwargs):
        return answer if os.getpid() == parent else function(*args, **kwargs)
    return ask


def refuse_here(function, name, asked):
    """`function` that is refused in this process and noted in `asked`."""
    parent = os.getpid()

    @functools.wraps(function)
    def refuse(*args, **kwargs):
        if os.getpid() != parent:
            return function(*args, **kwargs)
        asked.append(name)
        raise RuntimeError(f"warm parent: {name}: the accelerator is not initialised here")
    return refuse


def check_untouched():
    """Unsafe if the accelerator is initialised in this process after all."""
    import torch

    if torch.cuda.is_initialized():
        raise Unsafe("the accelerator is initialised already (torch.cuda)")
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if target.startswith(("/dev/nvidia", "/dev/mthreads", "/dev/davinci", "/dev/kfd", "/dev/dri")):
            raise Unsafe(f"the accelerator is initialised already ({target} is open)")


def try_device():
    """In a first fork: compute something on every library's threads, and on the device. Raises what is wrong."""
    import torch

    if "numpy" in sys.modules:
        matrix = sys.modules["numpy"].ones((64, 64))
        assert (matrix @ matrix)[0, 0] == 64
    assert float(torch.ones(1 << 20).sum()) == 1 << 20
    if not os.environ.get("HOST_TARGET"):
        assert not torch.cuda._is_in_bad_fork(), "torch says that this is a fork of an initialised process"
        assert float(torch.ones(8, device="cuda").sum()) == 8
