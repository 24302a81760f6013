"""When a tuner is about to try several configurations, and which: for plugins that compile or time them in their own way.

    watch_sweeps(begin, wrap)     begin(tuner, args, meta, configs) is called before the first trial of a sweep, wrap(trial,
                                  tuner, *args, config=..., **meta) in place of each of its trials; both may be left out

What derives from Triton's Autotuner, as FlagGems' LibTuner, is seen too. A trial of a configuration that is not one of those that
prune_configs() last left, each once, belongs to no sweep: a search makes its own, a single one is timed by hand. A sweep whose
timings are all in the tuner's database tries nothing, and what is replayed is no sweep: neither is reported.
"""
import functools


def watch_sweeps(begin=None, wrap=None):
    """Patch Autotuner. `configs` are those that were not pruned, the first tried first; `args` and `meta` what is launched."""
    from triton.runtime.autotuner import Autotuner

    prune_configs, bench = Autotuner.prune_configs, Autotuner._bench
    trial = functools.partial(wrap, bench) if wrap else bench
    sweep = {"tuner": None, "left": [], "begun": False}     # of the last prune_configs()

    def prune_and_note(tuner, *args, **kwargs):
        pruned = prune_configs(tuner, *args, **kwargs)
        sweep.update(tuner=tuner, left=list(pruned) if isinstance(pruned, (list, tuple)) else [], begun=False)
        return pruned

    def bench_of_sweep(tuner, *args, config, **meta):
        place = next((n for n, each in enumerate(sweep["left"]) if each is config), None) if tuner is sweep["tuner"] else None
        if place is None:
            return bench(tuner, *args, config=config, **meta)
        # Not in prune_configs(): a sweep whose timings are all in the tuner's database compiles nothing.
        if begin and not sweep["begun"]:
            begin(tuner, args, meta, sweep["left"][place:] + sweep["left"][:place])
        sweep["begun"] = True
        del sweep["left"][place]
        return trial(tuner, *args, config=config, **meta)

    Autotuner.prune_configs, Autotuner._bench = prune_and_note, bench_of_sweep


def set_up_config(tuner, meta, config):
    """What the kernel is launched with in a trial of `config`, after its pre_hook: that gives TMA descriptors their block shapes,
    which are part of the key, and leaves them to the next configuration."""
    current = {**meta, **config.all_kwargs()}
    if config.pre_hook is not None:
        config.pre_hook({**tuner.nargs, **current})
    return current


def compile_config(tuner, args, current):
    """Compile the kernel as a trial would; it is not launched. Raises what compiling raises."""
    tuner.fn.run(*args, **{**current, "warmup": True})


def is_plain(function):
    """Whether below a tuner there are only heuristics and a kernel for NVIDIA."""
    from triton.runtime import driver
    from triton.runtime.autotuner import Heuristics
    from triton.runtime.jit import JITFunction

    while isinstance(function, Heuristics):
        function = function.fn
    return isinstance(function, JITFunction) and driver.active.get_current_target().backend == "cuda"
