"""pytest plugin: compiles the configurations of a tuner's sweep on several threads, before the sweep times the first.

Purpose  A sweep compiles and times one configuration after the other, in one process, and so on one core. Here all of a sweep
         is compiled at once; only when the last thread has ended is the first configuration timed, so that nothing is ever
         compiled while something is timed.
Use      TUNE_THREADS=8 PYTHONPATH=plugins python -m pytest -p _tune_compile_plugin NODE ...
Reads    TUNE_THREADS  most threads, of which MOST are used at most; unset or 1: does nothing
Output   in the terminal summary, where there was a sweep: TUNE_COMPILE sweeps=3 configs=36 threads=8 seconds=4.1
How      Triton's own AsyncCompileMode, around launches that are warm-ups: set up in this thread as Autotuner._bench does it
         (a configuration's pre_hook first: it gives TMA descriptors their block shapes, which are part of the key),
         compiled on the threads, and put into the kernel's cache in this thread. A configuration that fails is left to the
         sweep, which meets the error again and reports it as ever. Launches, tuner's caches and records see nothing of it.
         Triton's launcher of each new signature (a C compiler, 0.3 s) is built on these threads, too.
Threads  and not processes, for Triton lets go of Python's lock. Measured on Triton 3.6.0, cuda:90, 12 configurations each: of
         3.3 s (matmul) and 2.0 s (layer norm) of processor time, ptxas's included, the lock is held for 0.4 and 0.7 s: by
         Python's own part of the front end, and by linking libdevice. So threads give at most 7 and 3 times. Forks would
         not wait for the lock, but this process has threads and an initialised device, with which a fork is a gamble; a
         fresh process would first import all that a kernel's module imports.
Limits   NVIDIA targets, for other backends are not known to compile on threads; a Triton that has AsyncCompileMode, as 3.6.
         A tuner around another tuner is left alone, and a sweep in which only some configurations have a pre_hook: the
         others get what it leaves.
"""
import contextlib
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from _tuner_sweep import compile_config, is_plain, set_up_config, watch_sweeps

MOST = 16                # beyond, they would wait for Python's lock
STACK_BYTES = 16 << 20   # with an unlimited stack, as on clusters, a thread would get 2 MiB: little for LLVM


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config):
    """Before, and so inside, whatever else looks at a tuner's trials: what a hook launches here belongs to them."""
    threads = os.environ.get("TUNE_THREADS") or "1"
    if not threads.isdecimal():
        print(f"_tune_compile_plugin: error: TUNE_THREADS: {threads}: is no whole number; give one, as TUNE_THREADS=8",
              file=sys.stderr)
        raise SystemExit(2)     # a UsageError would show a traceback here
    vendor = os.environ.get("GEMS_VENDOR") or "nvidia"
    if int(threads) < 2 or vendor != "nvidia":      # another's stack may want something imported before Triton
        return
    try:
        from triton.runtime import _async_compile
    except ImportError:     # an older Triton
        return
    compiler = SweepCompiler(min(int(threads), MOST), _async_compile)
    watch_sweeps(compiler.compile_sweep)
    early_config.pluginmanager.register(compiler, "gemscreen-tune-compile")


class SweepCompiler:
    """Compiles what a tuner is about to try."""

    def __init__(self, threads, async_compile):
        self.threads, self.async_compile = threads, async_compile
        self.sweeps = self.configs = 0
        self.seconds = 0.0

    def compile_sweep(self, tuner, args, meta, configs):
        """Compile `configs`, where that can be done and is worth it."""
        kinds = {config.pre_hook is None for config in configs}
        if len(configs) < 2 or len(kinds) > 1 or not is_plain(tuner.fn) or self.async_compile.active_mode.get() is not None:
            return
        began = time.monotonic()
        with start_workers(self.threads) as workers, self.open_mode(workers):
            for config in configs:
                with contextlib.suppress(Exception):    # the sweep will meet it
                    compile_config(tuner, args, set_up_config(tuner, meta, config))
        self.sweeps += 1
        self.configs += len(configs)
        self.seconds += time.monotonic() - began

    @contextlib.contextmanager
    def open_mode(self, workers):
        """Triton's mode; it stays set where its end raises."""
        try:
            with self.async_compile.AsyncCompileMode(workers, ignore_errors=True):
                yield
        finally:
            self.async_compile.active_mode.set(None)

    def pytest_terminal_summary(self, terminalreporter):
        if self.sweeps:
            terminalreporter.write_line(f"TUNE_COMPILE sweeps={self.sweeps} configs={self.configs} threads={self.threads} "
                                        f"seconds={self.seconds:.1f}")


@contextlib.contextmanager
def start_workers(threads):
    """Workers, all of whose threads have ended afterwards; what has not begun when this is left by an error never does."""
    before = threading.stack_size(STACK_BYTES)
    workers = Workers(threads)
    try:
        yield workers
    finally:
        workers.shutdown(cancel_futures=True)
        threading.stack_size(before)


class Workers(ThreadPoolExecutor):
    """Compile kernels, and build the launcher of each signature that is met first."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.signatures, self.lock = set(), threading.Lock()

    def submit(self, compile_kernel):
        return super().submit(self.compile_and_build, compile_kernel)

    def compile_and_build(self, compile_kernel):
        kernel = compile_kernel()
        signature = f"{kernel.src.signature} {getattr(kernel.metadata, 'tensordesc_meta', None)}"
        with self.lock:
            is_new = signature not in self.signatures
            self.signatures.add(signature)
        if is_new:
            with contextlib.suppress(Exception):    # the launch will meet it
                self.build_launcher(kernel)
        return kernel

    def build_launcher(self, kernel):
        """As the first launch does, which then finds it in the cache directory."""
        from triton.runtime import driver

        driver.active.launcher_cls(kernel.src, kernel.metadata)
