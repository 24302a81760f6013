"""pytest plugin: a kernel that needs more shared memory than the device has is not compiled further than to know that.

Purpose  Triton refuses such a kernel when it is loaded, by then compiled to its end. Sweeps of tuners are full of them, and they
         are the slowest to compile: of FlagGems' 22 configurations of mm in float32, for which tl.dot is taken apart into
         multiplications, 9 do not fit into an H100's 227 KiB, and take 104 of the 160 s that all of them take.
Use      PYTHONPATH=plugins python -m pytest -p _shared_memory_plugin NODE ...
Reads    HOST_TARGET  set: does nothing but in a pass (COMPILE_PASS=1): the host device runs such kernels, too
         IR_META      1: does nothing: that wants every kernel that was compiled
         GEMS_VENDOR  other than nvidia: does nothing, for it has not been tried
How      The size is known, and final, after the stage that makes LLVM's IR (CUDABackend.make_llir: metadata["shared"]); what
         follows takes as long again and more. Here the same OutOfResources is raised there, so that a tuner goes on to the next
         configuration, and whoever launches such a kernel is told what Triton would tell. The size is written into the kernel's
         folder of the compile cache, as SIZE_FILE: another process, or another thread, does not come as far a second time.
Limits   A Triton whose make_llir is a method and whose metadata has the kernel's hash, as 3.6; others are left alone.
"""
import functools
import inspect
import os
import sys
from pathlib import Path

SIZE_FILE = "shared_bytes"


def pytest_collection_finish(session):
    """Once whoever wants to has imported Triton."""
    is_host = os.environ.get("HOST_TARGET") and os.environ.get("COMPILE_PASS") != "1"
    if is_host or os.environ.get("IR_META") == "1" or os.environ.get("GEMS_VENDOR", "nvidia") != "nvidia":
        return
    backend = getattr(sys.modules.get("triton.backends"), "backends", {}).get("nvidia")
    if backend and inspect.isfunction(inspect.getattr_static(backend.compiler, "make_llir", None)):
        backend.compiler.make_llir = stop_where_too_large(backend.compiler.make_llir)


def stop_where_too_large(make_llir):
    """`make_llir`, that raises OutOfResources for a kernel that the current device could not load."""
    from triton.compiler.compiler import max_shared_mem
    from triton.runtime import driver
    from triton.runtime.cache import get_cache_manager
    from triton.runtime.errors import OutOfResources

    @functools.wraps(make_llir)
    def make_fitting_llir(backend, source, metadata, *rest):
        cache, limit = get_cache_manager(metadata["hash"]), max_shared_mem(driver.active.get_current_device())
        size = read_size(cache.get_file(SIZE_FILE))
        if size <= limit:
            llir, size = make_llir(backend, source, metadata, *rest), metadata["shared"]
            if size <= limit:
                return llir
            cache.put(str(size), SIZE_FILE)
        raise OutOfResources(size, limit, "shared memory")
    return make_fitting_llir


def read_size(path):
    """The bytes that the file at `path` names; 0 if there is none, or it is damaged."""
    try:
        return int(Path(path).read_text()) if path else 0
    except (OSError, ValueError):
        return 0
