"""install.py - give every tuner a CacheView: those made already and those to come.

Every class from Triton's Autotuner down that has a `run` of its own (LibTuner of flag_gems and of flaggems_vllm, their
policies) gets it wrapped, at once or when the class is made: nothing of those packages has to be imported, or waited
for. The wrapper puts the view before whatever cache the tuner has at that launch (FlagTune exchanges it).
"""
import functools

from triton.runtime.autotuner import Autotuner

from .view import CacheView


def install(session):
    """Put a CacheView before the cache of every tuner; returns an undo."""
    classes = [Autotuner, *find_subclasses(Autotuner)]
    originals = [(cls, cls.__dict__["run"]) for cls in classes if "run" in cls.__dict__]

    def wrap_new_class(cls, **more):
        super(Autotuner, cls).__init_subclass__(**more)
        if "run" in cls.__dict__:
            originals.append((cls, cls.__dict__["run"]))
            cls.run = wrap_run(cls.__dict__["run"], session)

    for cls, run in originals:
        cls.run = wrap_run(run, session)
    Autotuner.__init_subclass__ = classmethod(wrap_new_class)

    def undo():
        for cls, run in originals:
            cls.run = run
        del Autotuner.__init_subclass__
    return undo


def find_subclasses(cls):
    """All classes below `cls`."""
    return [c for direct in cls.__subclasses__() for c in (direct, *find_subclasses(direct))]


def wrap_run(run, session):
    """`run` of a tuner with a second, live-tuned try when a replayed or stored config fails."""
    @functools.wraps(run)
    def run_with_view(tuner, *args, **kwargs):
        view = tuner.cache
        if type(view) is not CacheView:
            view = tuner.cache = CacheView(tuner, view, session)
        try:
            result = run(tuner, *args, **kwargs)
        except BaseException as error:
            if not view.reject(error):
                raise
            return run_with_view(tuner, *args, **kwargs)  # at most once more: its config is then live
        if view.pending is not None:
            view.prove()
        return result
    return run_with_view
