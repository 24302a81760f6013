"""Runs one launch of a kernel on CPU tensors, through Triton's interpreter.

The interpreter (triton.runtime.interpreter) is private and keeps its state in module globals: the grid position in one
builder, and triton.language itself patched while a kernel runs. So one launch runs at a time (``lock``), and
compiling, which reads triton.language, waits for it too.
"""

import inspect
import os
import threading
import traceback
import types

import numpy as np
import triton
import triton.language as tl
from triton.language.extra import libdevice as generic_libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter as triton_interpreter
from triton.runtime import jit as triton_jit

from .errors import HostAccessError, HostKernelError, UnsupportedOnHost
from .floats import storage_dtype
from .memory import GuardedMemory, HostBuilder, LaunchMemory
from .reductions import make_reduce, make_scan
from .rewriting import host_range, libdevice_stubs, rewrite_function


class Interpreter:
    """Holds the builder, the rewritten functions, and the lock that serialises launches and compilations."""

    def __init__(self):
        self.lock = threading.RLock()
        self.memory = GuardedMemory(triton_interpreter._interpreter)
        self.builder = HostBuilder(self.memory)
        self._owner = None
        self._rewritten = {}
        self._language = None

    def install(self):
        """Put the host's builder in place of Triton's, and let interpreted code call JIT functions."""
        triton_interpreter._interpreter = self.memory
        triton_interpreter.interpreter_builder = self.builder
        triton_interpreter._get_np_dtype = storage_dtype  # upstream builds a dict of 20 entries at each call
        triton_interpreter.interpreter_semantic = TritonSemantic(self.builder)
        self._patch_device_calls()
        self._patch_run()

    def interpret(self, fn):
        """The interpreted form of a JIT function's Python function."""
        if fn not in self._rewritten:
            self._rewritten[fn] = rewrite_function(fn)
        return self._rewritten[fn]

    def run(self, fn, kernel_name, values, grid, launch_args):
        """Execute all programs of ``grid`` (three ints). ``values``: parameter name -> value as HostLauncher binds it;
        ``launch_args``: the caller's own arguments, whose memory the kernel may touch.

        Raises HostAccessError for memory outside them and HostKernelError for anything else, naming the kernel.
        """
        function = self.interpret(fn)
        self.memory.launch = LaunchMemory(kernel_name, launch_args)
        self.builder.set_grid_dim(*grid)
        self._owner = threading.get_ident()
        patches = self._language_patches()
        patches.apply()
        try:
            with np.errstate(all="ignore"):
                for z, y, x in np.ndindex(*reversed(grid)):  # x runs fastest, as on the GPU
                    self._run_program(function, kernel_name, values, (x, y, z))
        finally:
            patches.restore()
            self._owner = None

    def _run_program(self, function, kernel_name, values, position):
        self.builder.set_grid_idx(*position)
        try:
            function(**values)
        except HostAccessError as error:
            raise HostAccessError(f"{error}, program {position}{find_line(error)}") from None
        except UnsupportedOnHost as error:
            raise UnsupportedOnHost(f"host device: kernel {kernel_name}: {error}{find_line(error)}") from None
        except Exception as error:
            where = f"kernel {kernel_name}, program {position}{find_line(error)}"
            raise HostKernelError(f"host device: {where}: {type(error).__name__}: {error}") from error

    def _language_patches(self):
        if self._language is None:
            self._language = LanguagePatches(self.builder, self.interpret)
        return self._language

    def _patch_device_calls(self):
        """A JIT function called by interpreted code runs interpreted; elsewhere the call stays an error."""
        original, interpreter = triton_jit.JITFunction.__call__, self

        def call(self, *args, **kwargs):
            if interpreter._owner != threading.get_ident():
                return original(self, *args, **kwargs)
            return interpreter.interpret(self.fn)(*args, **kwargs)

        triton_jit.JITFunction.__call__ = call

    def _patch_run(self):
        """Compiling reads triton.language, which a running launch has patched: take the same lock."""
        original, interpreter = triton_jit.JITFunction.run, self

        def run(self, *args, **kwargs):
            with interpreter.lock:
                return original(self, *args, **kwargs)

        triton_jit.JITFunction.run = run


def find_line(error):
    """', FILE:LINE' of the innermost frame that is the kernel's own code; '' if there is none."""
    own = (os.path.dirname(triton.__file__), os.path.dirname(__file__), os.path.dirname(np.__file__))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(own)]
    return f", {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


class LanguagePatches:
    """triton.language as interpreted code needs it; applied around each launch.

    Upstream walks the whole language at every launch and every device-function call (5 ms each); the walk is done
    once here and replayed.
    """

    def __init__(self, builder, interpret):
        scope = self._collect(builder, interpret)
        self._patches = [(obj, name, inspect.getattr_static(obj, name)) for obj, name, _ in scope._changes]
        scope.restore()
        self._scope = triton_interpreter._LangPatchScope()

    @staticmethod
    def _collect(builder, interpret):
        """Let upstream patch, then add what it lacks. Returns its scope, which can undo all of it."""
        probe = types.FunctionType((lambda: 0).__code__, {"tl": tl, "core": tl.core})
        scope = triton_interpreter._patch_lang(probe)
        triton_interpreter._patch_builtin(cuda_libdevice, builder, scope)
        for name in libdevice_stubs():
            scope.set_attr(generic_libdevice, name, getattr(cuda_libdevice, name))
        # Compiled code sees a dtype as constexpr(dtype) and may ask for its .value.
        scope.set_attr(tl.core.dtype, "value", property(lambda dtype: dtype))
        for module in (tl, tl.core):
            scope.set_attr(module, "reduce", make_reduce(interpret))
            scope.set_attr(module, "associative_scan", make_scan(interpret))
            scope.set_attr(module, "range", host_range)
            scope.set_attr(module, "static_print", lambda *values, **options: None)  # printed when it was compiled
            scope.set_attr(module, "inline_asm_elementwise", refuse_inline_asm)
        return scope

    def apply(self):
        for obj, name, value in self._patches:
            self._scope.set_attr(obj, name, value)

    def restore(self):
        self._scope.restore()


def refuse_inline_asm(*args, **kwargs):
    raise UnsupportedOnHost("inline PTX cannot be interpreted")
