"""_ir_meta_plugin - dump the TTGIR of every kernel variant that ran, with its launches and what its binary uses.

USAGE     IR_META=1 RUN_DIR=out python -m pytest -p _ir_meta_plugin ...      without both the plugin does nothing
OUTPUT    out/ir/KERNEL-HASH.ttgir   one per variant that was launched
          out/index.tsv              tab-separated, a row per variant (columns: ir_meta/index.py):
            schema  file                    kernel    hash  ttgir_sha256  binary_sha256
            1       ir/abs_func-3f0a.ttgir  abs_func  3f0a  9c41...       77d2...
            launches_construction  launches_tuning  launches_warmup  launches_measured  launches_baseline
            0                      24               2                2                  0
            registers  spills  shared  num_warps  converts  converts_in_loop  converts_weighted
            24         0       2048    4          3         1                 18
            switch                    switch_choice  error
            rlc-stock-3-5ae1-e1-m15   nocoalesce
          and in the terminal summary (run.log):
            IR_META variants=5 calls=2 construction=0 tuning=24 warmup=6 measured=6 baseline=0 unexplained=0 file=...
            IR_META_UNEXPLAINED kernel=k hash=3f0a launches=4: no dump: ...
COUNTING  A pass of its own, in the same process with the same configs: an operator is called once before its timer
          starts (`warmup`: whatever compiles or tunes does it here) and once after it ended (`measured`). In between
          our launch hook is out of Triton's chain, so that timing costs nothing and CUDA graphs capture nothing of it.
          Counting the timed launches instead would put Python into each of them, and their number says no more than
          how fast the card was. So launches_measured is the sum over the rows of the launches of ONE call, exact and
          the same in each run. An operator's variant has at least one launch in both phases, in every row; a kernel
          that only built inputs has none in either (ir_meta/phases.py says where the lines are).
          Where the tuner's trials do not launch (host device), launches_tuning is 0.
          spills are 32-bit words; switch and switch_choice are rlc_policy and rlc_choice of the kernel's metadata.
EXIT      A launch that no dump explains, a variant first loaded while it was timed, a benchmark whose timer is not
          known: a line IR_META_UNEXPLAINED, and the session ends with 1 at least. 3: no such hooks in this Triton, or
          RUN_DIR holds an index already.
LIMITS    Replayed CUDA graphs count nothing (the two counted calls do). An empty grid counts as a launch on a GPU.
          Registers and spills are NVIDIA's; for other vendors they are empty.
"""
import os
import sys
from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config):
    """Before any conftest can launch anything."""
    run_dir = os.environ.get("RUN_DIR")
    if os.environ.get("IR_META") != "1" or not run_dir:
        return
    from ir_meta.index import DUMPS, INDEX
    from ir_meta.ledger import HooksMissing, Ledger

    for name in (INDEX, DUMPS):
        if Path(run_dir, name).exists():
            leave(f"RUN_DIR: {run_dir}: holds {name} of another run; give an empty directory")
    import triton

    try:
        ledger = Ledger(triton.knobs.runtime)
    except (AttributeError, HooksMissing) as error:
        leave(f"triton {triton.__version__}: {error}; use 3.6")
    early_config.pluginmanager.register(IrMetaSession(run_dir, ledger), "ir-meta-session")


def leave(reason):
    """End pytest before it has begun: the reason on stderr, no traceback."""
    print(f"_ir_meta_plugin: error: {reason}", file=sys.stderr)
    raise SystemExit(3)


class IrMetaSession:
    """The hooks of a session that is watched."""

    def __init__(self, run_dir, ledger):
        from ir_meta.phases import BenchmarkWatch

        self.run_dir, self.ledger, self.watch = run_dir, ledger, BenchmarkWatch(ledger)
        self.problems = []
        self.watch.watch_tuner()
        ledger.install()

    def pytest_collection_finish(self):
        self.watch.watch_benchmarks()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session):
        from ir_meta.index import write_index

        self.ledger.remove()
        self.problems = write_index(self.run_dir, self.ledger, self.watch.late)
        self.problems += [f"benchmark={name}: {reason}" for name, reason in self.watch.unseparated.items()]
        if self.problems and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        from ir_meta.index import INDEX
        from ir_meta.ledger import PHASES

        launches = self.ledger.count_phases()
        ran = sum(1 for variant in self.ledger.variants.values() if variant.launches)
        for problem in self.problems:
            terminalreporter.write_line(f"IR_META_UNEXPLAINED {problem}")
        terminalreporter.write_line(f"IR_META variants={ran} calls={self.watch.calls} "
                                    + " ".join(f"{phase}={launches[phase]}" for phase in PHASES)
                                    + f" unexplained={len(self.problems)} file={Path(self.run_dir, INDEX)}")
