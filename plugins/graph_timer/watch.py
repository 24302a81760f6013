"""watch.py - counts what Triton compiles and tunes, so that nobody times either.

A kernel counts when a process meets it in a new specialisation, also where the compiled form comes from the disk. Our
own kernels (gemscreen_*) do not count. Triton's hooks are not used: they hold one function, and other plugins want it.
"""
import functools

from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

OWN = "gemscreen_"


class CompileWatch:
    """Counters since install(); `tuning` is how many trials of a tuner are under way."""

    def __init__(self):
        self.compiled = self.tuned = self.tuning = 0
        self.undo = []

    def install(self):
        """Patch JITFunction and every tuner class that exists by now."""
        if "_do_compile" in vars(JITFunction):  # Triton 3.4 and later
            self._wrap(JITFunction, "_do_compile", self._count_compile)
        else:
            self._wrap(JITFunction, "_call_hook", self._count_compile)
        for cls in [Autotuner, *find_subclasses(Autotuner)]:
            if "_bench" in vars(cls):
                self._wrap(cls, "_bench", self._count_trial)
        return self

    def remove(self):
        """Take the patches back."""
        while self.undo:
            setattr(*self.undo.pop())

    def mark(self):
        """A value that differs once something was compiled or tuned."""
        return self.compiled, self.tuned

    def describe(self, mark):
        """`2 kernels compiled, 12 trials of a tuner` since `mark`."""
        return f"{self.compiled - mark[0]} kernels compiled, {self.tuned - mark[1]} trials of a tuner"

    def _wrap(self, cls, name, count):
        original = vars(cls)[name]
        self.undo.append((cls, name, original))
        setattr(cls, name, functools.wraps(original)(count(original)))

    def _count_compile(self, original):
        def compile_and_count(function, *args, **kwargs):
            if not function.fn.__name__.startswith(OWN):
                self.compiled += 1
            return original(function, *args, **kwargs)
        return compile_and_count

    def _count_trial(self, original):
        def try_and_count(tuner, *args, **kwargs):
            self.tuned += 1
            self.tuning += 1
            try:
                return original(tuner, *args, **kwargs)
            finally:
                self.tuning -= 1
        return try_and_count


def find_subclasses(cls):
    """All classes below `cls`."""
    return [c for direct in cls.__subclasses__() for c in (direct, *find_subclasses(direct))]
