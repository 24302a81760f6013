"""bench_kernels_on_host.py - kernels for the benches of tuners, compiled on the host device in HOST_MODE=compile.

    with load_kernels(SOURCE) as (kernels, folder):      the module that SOURCE is, and a folder that is gone afterwards

Once per process: the host device stays installed. The compile cache is in the folder, the tuner's database in memory.
"""
import contextlib
import importlib
import os
import sys
import tempfile
from pathlib import Path


@contextlib.contextmanager
def load_kernels(source):
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"FLAGGEMS_DB_URL": "sqlite://", "TRITON_CACHE_DIR": f"{folder}/triton"}
        (Path(folder) / "bench_kernels.py").write_text(source)
        sys.path.insert(0, folder)
        import host_device
        host_device.install(host_device.read_target({"HOST_TARGET": "cuda:90", "HOST_MODE": "compile"}))
        yield importlib.import_module("bench_kernels"), folder
