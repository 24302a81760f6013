"""child.py - what a fork of the warm parent does before it is anybody's `python -m pytest`.

It takes on all that client.py sends, in a session of its own. What a fresh process has and a fork has not is made good:
  - /proc/PID/environ is the memory in which the parent was started. The fork's environment is written there, the tag
    first: a driver finds its processes by GEMSCREEN_TAG in that file (common/process.py).
  - a child of the parent is not the client's child: the kernel KILLs it when the parent ends, and the parent KILLs it
    when the client does.
  - the random generators of numpy and of torch's CPU are seeded anew. Python's own does that by itself.
  - locks of multiprocessing (flag_gems makes one for each kernel when it is imported, and compiles and tunes under it) lie in
    memory that forks share: one that was KILLed would hold its locks for ever. Each fork gets such memory of its own.
  - flag_gems and flaggems_vllm remember from their import on where their caches are; with TUNER_CACHE=isolated each process has
    its own.
  - relative entries of PYTHONPATH mean the fork's working directory; in the parent they were resolved against its own.
"""
import atexit
import contextlib
import ctypes
import gc
import io
import mmap
import os
import resource
import runpy
import signal
import sys
import threading

from warm.preload import PACKAGES

PR_SET_PDEATHSIG = 1
MAP_FIXED = 0x10                # in no module of Python
ENV_START, ENV_END = 47, 48     # fields of /proc/PID/stat (50, 51 in proc(5)) after "pid (name)"
TAG = b"GEMSCREEN_TAG"
CACHES = b"FLAGGEMS_CACHE_DIR", b"FLAGGEMS_DB_URL"


def become(request, files, parent):
    """Take on the `request` (client.py: describe_self) with `files` as 0, 1 and 2. OSError where something is refused."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    set_signals(request["ignored"])
    take_shared_memory()
    enter_directory(request["cwd"])
    os.umask(request["umask"])
    os.sched_setaffinity(0, request["cores"])
    if os.getpriority(os.PRIO_PROCESS, 0) != request["niceness"]:
        os.setpriority(os.PRIO_PROCESS, 0, request["niceness"])
    for name, limits in request["limits"].items():
        if resource.getrlimit(getattr(resource, name)) != tuple(limits):
            resource.setrlimit(getattr(resource, name), limits)
    moved = any(os.environb.get(name) != request["environ"].get(name) for name in CACHES)
    set_environment(request["environ"])
    for package in [name for name in PACKAGES if moved and name in sys.modules]:
        move_caches(package)
    sys.argv = sys.orig_argv = list(request["argv"])
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()   # the CPU's; those of devices begin with a fixed seed


def set_signals(ignored):
    """Those of a Python that was started with the signals `ignored`."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


def take_shared_memory():
    """Copies, which only this process and its children share, of the shared memory that the parent's imports made."""
    map_memory = ctypes.CDLL(None, use_errno=True).mmap
    map_memory.restype = ctypes.c_void_p
    map_memory.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
    with open("/proc/self/maps", "rb") as stream:
        lines = [line.split(maxsplit=5) for line in stream if b" rw-s " in line and b"/dev/shm/" in line]
    for place, *_ in lines:
        start, end = (int(number, 16) for number in place.split(b"-"))
        content = ctypes.string_at(start, end - start)
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | MAP_FIXED
        if map_memory(start, end - start, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) != start:
            raise OSError(ctypes.get_errno(), "shared memory cannot be copied")
        ctypes.memmove(start, content, end - start)


def enter_directory(cwd):
    """Make `cwd` the working directory, in sys.path too: what lies below the parent's own was given relative to it."""
    own = os.getcwd()
    os.chdir(cwd)
    sys.path[:] = [cwd + path[len(own):] if f"{path}/".startswith(f"{own}/") else path for path in sys.path]


def set_environment(environ):
    """Make {bytes: bytes} the environment, and write it where /proc shows it."""
    os.environ.clear()      # no pointer of the C library leads into the memory below any more
    os.environb.update(environ)
    with open("/proc/self/stat", "rb") as stream:
        fields = stream.read().rpartition(b")")[2].split()
    start, end = int(fields[ENV_START]), int(fields[ENV_END])
    text = b""
    for item in sorted(environ.items(), key=lambda item: (item[0] != TAG, len(item[1]))):
        if len(text) + len(b"%s=%s\0" % item) < end - start:
            text += b"%s=%s\0" % item
    if start == 0:
        raise OSError("/proc/self/stat does not say where the environment is")
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)
    with open("/proc/self/environ", "rb") as stream:
        if TAG in environ and not stream.read().startswith(b"%s=%s\0" % (TAG, environ[TAG])):
            raise OSError("/proc/self/environ does not show this process's environment")


def move_caches(package):
    """Let `package` have its generated code and its tuner's database where the environment says. OSError where it keeps them
    otherwise than FlagGems 5.0.2 and ed2508b and FlagGems-vllm d18d387 do (utils/code_cache.py, utils/libentry.py): a plain
    process is the answer."""
    try:
        code_cache, libentry = (sys.modules[f"{package}.utils.{name}"] for name in ("code_cache", "libentry"))
        code_cache.cache_dir_path.cache_clear()
        model, url = libentry.libcache.model, os.environ["FLAGGEMS_DB_URL"]
        model.engine = type(model)(url).engine      # all tuners share the model; no engine has been connected in the parent
        libentry.libcache.db_url = libentry.FLAGGEMS_DB_URL = url
        found = str(code_cache.cache_dir_path()), model.engine.url.render_as_string(hide_password=False)
    except (KeyError, AttributeError) as error:
        raise OSError(f"{package} keeps its caches otherwise: {type(error).__name__}: {error}") from None
    if found != (os.environ["FLAGGEMS_CACHE_DIR"], url):
        raise OSError(f"{package}'s caches stayed where they were: {', '.join(found)}")


def run_pytest():
    """`python -m pytest` in this process. Never returns."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "warm"]:
        del sys.modules[name]
    arguments = sys.argv[3:]
    sys.argv = ["pytest", *arguments]
    code = 0
    try:
        runpy.run_module("pytest", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:  # noqa: BLE001 - as the interpreter does it
        sys.excepthook(*sys.exc_info())
        code = 1
    leave(code or 0)


def leave(code):
    """End as an interpreter does, but for taking apart what the parent imported: that would copy each of its pages."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for item in [sys.stdout, sys.stderr, *gc.get_objects()]:
        # Its type, not isinstance(): that asks an object that stands for another one, which may do or raise anything.
        if issubclass(type(item), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
            with contextlib.suppress(OSError, ValueError):
                item.flush()        # a file that nobody closed
    os._exit(code & 0xFF)
