"""TUNE_CUTOFF: what cannot win is launched or replayed once or thrice, what can is timed in full, and the winner is the same."""
import os
import subprocess
import sys

import pytest

from autotune_runs import run_with_plugin
from warm_parent import ROOT

# Triton's own Autotuner around a kernel of known times; a launch is a call of run().
SWEEPS = """
import collections, json, sys, time, types
import triton
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import PTXASError
import _tune_cutoff_plugin as plugin

launches, took = collections.Counter(), []

class Kernel:
    arg_names = ["n"]
    def fn(self): pass
    fn = staticmethod(fn)
    def run(self, n, MS, **more):
        launches[MS] += 1
        took.append(MS)
        if MS == 12:        # compiled in vain
            time.sleep(0.06)
        if MS >= 12:
            raise PTXASError("no")

def time_fully(call, quantiles):
    for _ in range(8):
        call()
    return [took[-1]] * len(quantiles)

def count(call):
    before = len(took)
    call()
    return took[before:]

def time_call(call):
    new = count(call)
    if new == [5.5] * 5:
        return -0.2, 0.2        # no time between the events
    return sum(new), 900.0 if took[-1] == 7 and launches[7] == 1 else 0.2

def capture(run):
    captured = count(run)
    def replay():
        launches[captured[0]] += 100
        return sum(captured)
    return replay

class Searching(Autotuner):
    def run(self, n):       # as FlagTune's search: configurations of its own
        self.nargs = {"n": n}
        self.prune_configs({})
        for ms in (5, 11, 9):
            self._bench(n, config=triton.Config({"MS": ms}))

if sys.argv[1] == "cut":
    cutoff = plugin.Cutoff(time_call, capture)
    plugin.watch_sweeps(cutoff.begin_sweep, cutoff.run_trial)
protocol = types.SimpleNamespace(implementation="triton_cuda_graph_replay_v1", n_retries=10, per_replay_ms=float(sys.argv[3]))
for n, times in enumerate(json.loads(sys.argv[2])):
    launches.clear()
    tuner = Autotuner(Kernel(), ["n"], [triton.Config({"MS": ms}) for ms in times], ["n"], None, None, do_bench=time_fully)
    tuner.benchmark_protocol = protocol if protocol.per_replay_ms else None
    tuner.run(n)
    launches[tuner.best_config.kwargs["MS"]] -= 1       # the launch itself
    print(json.dumps([tuner.best_config.kwargs["MS"], [launches[ms] for ms in times]]))
    assert tuner.do_bench is time_fully
launches.clear()
Searching(Kernel(), ["n"], [triton.Config({"MS": 1}), triton.Config({"MS": 2})], ["n"], None, None, do_bench=time_fully).run(3)
print([launches[ms] for ms in (5, 11, 9)])
print(*(plugin.find_quantile([8, 1, 4, 2], share) for share in (0.5, 0.2, 1.0)), plugin.find_quantile([5], 0.8))
"""


def run_sweeps(how, sweeps, replay_ms=0):
    env = {**os.environ, "PYTHONPATH": str(ROOT / "plugins")}
    done = subprocess.run([sys.executable, "-c", SWEEPS, how, sweeps, str(replay_ms)], env=env, capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("how, said", [
    ("plain", ["[0.9, [8, 8, 8, 8, 8]]", "[0.05, [8, 8]]", "[5, [8, 8, 8, 8]]", "[8, 8, 8]", "3.0 1.6 8.0 5.0"]),
    # The first is timed; 10 is more than twice as slow; 0.9 and 1.0 can win; 1.5 is in three launches not within 1.3 of the best.
    ("cut", ["[0.9, [8, 1, 11, 3, 11]]",
             "[0.05, [8, 8]]",          # the best is too short
             "[5, [8, 1, 3, 9]]",       # another sweep has another best; 7 was compiled in its first launch
             "[8, 8, 8]",               # a search's own configurations belong to no sweep
             "3.0 1.6 8.0 5.0"])])      # quantiles as Triton's
def test_what_cannot_win_is_not_timed_in_full(how, said):
    assert run_sweeps(how, "[[2, 10, 0.9, 1.5, 1.0], [0.05, 9], [5, 11, 9, 7]]") == said


def test_a_trial_after_one_that_was_compiled_in_vain_is_in_full():
    """12 fails so, 13 fails at once."""
    assert run_sweeps("cut", "[[5, 13, 11, 12, 11.5], [5, 12, 13, 11]]")[:2] == ["[5, [8, 1, 1, 1, 9]]", "[5, [8, 1, 1, 9]]"]


def test_where_five_launches_took_no_time_a_replay_has_a_thousand():
    assert run_sweeps("cut", "[[5, 5.5]]", 50)[0] == "[5, [8, 2006]]"      # as in do_bench_cudagraph; 1 + 5, and ten replays


@pytest.mark.parametrize("replay_ms, said", [
    # By do_bench as ever: no best yet. 10 is more than twice as slow, 1.5 in one replay more than 1.5 times, 1.2 in three more
    # than 1.2 times; 0.9 and 1.0 can win: a launch, one captured, ten replays (100 each). 7 was compiled in its first launch.
    (0.5, ["[0.9, [8, 1, 1002, 102, 302, 1002]]", "[0.05, [8, 8]]", "[5, [8, 9]]"]),
    # A launch does not fill a replay: five more say how many do.
    (5.0, ["[0.9, [8, 1, 1011, 109, 310, 1010]]", "[0.05, [8, 8]]", "[5, [8, 9]]"])])
def test_what_cannot_win_is_not_replayed_in_full(replay_ms, said):
    found = run_sweeps("cut", "[[2, 10, 0.9, 1.5, 1.2, 1.0], [0.05, 9], [5, 7]]", replay_ms)
    assert found[:3] == said


# A kernel in the hands of Triton's own do_bench, whose samples are EACH_MS apart and spread by NOISE.
PARTS = """
import json, sys
import triton
from triton.runtime.autotuner import Autotuner
import _tune_cutoff_plugin as plugin

CONFIGS = [dict(zip(("MS", "NOISE", "EACH_MS"), each)) for each in json.loads(sys.argv[1])]
launched, asked = {}, []

class Kernel:
    arg_names = ["n"]
    def fn(self): pass
    fn = staticmethod(fn)
    def run(self, n, **config):
        launched.update(config)

def do_bench(call, warmup=25, rep=100, quantiles=None, return_mode="mean"):
    call()
    asked.append((launched["MS"], warmup, rep))
    assert return_mode == "all"
    return [launched["MS"] * (1 + launched["NOISE"] / 2 * (n % 5 - 2)) for n in range(round(rep / launched["EACH_MS"]))]

cutoff = plugin.Cutoff(None, None)
plugin.watch_sweeps(cutoff.begin_sweep, cutoff.run_trial)
tuner = Autotuner(Kernel(), ["n"], [triton.Config(config) for config in CONFIGS], ["n"], None, None)
tuner.do_bench = do_bench
tuner.run(1)
for config, (median, low, high) in tuner.configs_timings.items():
    print([each[1:] for each in asked if each[0] == config.kwargs["MS"]], f"{low:.4g} {median:.4g} {high:.4g}")
print(tuner.best_config.kwargs["MS"], f"{cutoff.short} of {cutoff.trials}")
"""


def test_tritons_own_timer_ends_once_the_median_is_known():
    configs = "[[0.03, 0.01, 0.1], [0.04, 0.1, 0.1], [0.031, 0.1, 0.1], [0.02, 0.02, 0.1], [0.05, 0, 1]]"
    done = subprocess.run([sys.executable, "-c", PARTS, configs], env={**os.environ, "PYTHONPATH": str(ROOT / "plugins")},
                          capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [
        "[(25, 20)] 0.02982 0.03 0.03018",      # known to 0.1 %
        "[(25, 20)] 0.0376 0.04 0.0424",          # only to 1.1 %, but that is enough to lose
        "[(25, 20), (0, 20), (0, 20), (0, 20), (0, 20)] 0.02914 0.031 0.03286",     # may win: as many samples as ever
        "[(25, 20)] 0.01976 0.02 0.02024",
        "[(25, 20), (0, 80)] 0.05 0.05 0.05",   # few samples
        "0.02 3 of 5"], done.stderr


OLD = """
import sys, types
class Autotuner:        # as Triton 3.1 has it: it times by a function of its module
    def _bench(self): return "timed"
    def prune_configs(self): return []
sys.modules["triton.runtime.autotuner"] = types.SimpleNamespace(Autotuner=Autotuner)
def test_it(): assert Autotuner()._bench() == "timed"
"""


def test_an_older_tuner_is_left_alone(tmp_path):
    done = run_with_plugin(tmp_path, OLD, "_tune_cutoff_plugin")
    assert done.returncode == 0, done.stdout


def test_a_value_that_is_neither_is_refused():
    done = subprocess.run([ROOT / "run_pytest.sh", "--check"], capture_output=True, text=True,
                          env={**os.environ, "PYTHON": sys.executable, "HOST_TARGET": "cuda:90", "TUNE_CUTOFF": "2"})
    assert done.returncode == 2 and "TUNE_CUTOFF: 2: " in done.stderr
