"""both_timers.py - pytest plugin for timing_check.py: every column is timed by do_bench too, right after the graph.

samples.jsonl then holds both figures of the same inputs in the same process. Loaded by `-p both_timers`, with plugins/
and this folder on PYTHONPATH.
"""


def pytest_configure(config):
    from graph_timer.measure import Timer

    measure = Timer.measure

    def measure_both(timer, fn, method, recipe=None, options=None, on_fallback=print, **more):
        found = measure(timer, fn, method, recipe, options, on_fallback, **more)
        if method == "graph" and found.timer == "graph" and not found.fault:
            measure(timer, fn, "do_bench", recipe, options, on_fallback)
        return found

    Timer.measure = measure_both
