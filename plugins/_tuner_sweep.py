"""When a tuner is about to try several configurations, and which: for plugins that compile them beforehand.

    watch_sweeps(compile_sweep)     compile_sweep(tuner, args, meta, configs) is called before the first trial of a sweep

What derives from Triton's Autotuner, as FlagGems' LibTuner, is seen too. A sweep whose timings are all in the tuner's
database tries nothing, and what is replayed is no sweep: neither is reported.
"""


def watch_sweeps(compile_sweep):
    """Patch Autotuner. `configs` are those that were not pruned; `args` and `meta` what the kernel is launched with."""
    from triton.runtime.autotuner import Autotuner

    prune_configs, bench = Autotuner.prune_configs, Autotuner._bench
    planned = {"tuner": None, "configs": ()}     # of the last prune_configs()

    def prune_and_note(tuner, *args, **kwargs):
        pruned = prune_configs(tuner, *args, **kwargs)
        planned.update(tuner=tuner, configs=pruned if isinstance(pruned, list) else ())
        return pruned

    def compile_and_bench(tuner, *args, config, **meta):
        # Not in prune_configs(): a sweep whose timings are all in the tuner's database compiles nothing.
        if tuner is planned["tuner"] and any(config is each for each in planned["configs"]):
            configs = planned["configs"]
            planned.update(tuner=None, configs=())
            compile_sweep(tuner, args, meta, configs)
        return bench(tuner, *args, config=config, **meta)

    Autotuner.prune_configs, Autotuner._bench = prune_and_note, compile_and_bench


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
