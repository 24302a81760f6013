"""_autotune_record_plugin - record the config of every autotuned launch; replay another run's.

USAGE     RUN_DIR=out python -m pytest -p _autotune_record_plugin ...                     writes out/autotune.json
          REPLAY_FROM=other RUN_DIR=out python -m pytest -p _autotune_record_plugin ...   uses other/autotune.json
SWITCHES  RUN_DIR, REPLAY_FROM: without both the plugin does nothing
          REPLAY_STRICT=1   a launch that did not use the record's config fails its test
          REPLAY_FORCE=1    replay a record of another device, Triton, USE_FLAGTUNE or kernel source all the same
OUTPUT    autotune.json (autotune_record/record.py says what is in it), and at the end a line per tuner kind:
            AUTOTUNE_RECORD libtuner=3 autotune=1 retuned=0 file=out/autotune.json
            AUTOTUNE_REPLAY libtuner: used=3 unused=0 missed=0 fallback=0 dropped=0 from=other/autotune.json
          while it runs, a line for each launch that was tuned live instead:
            AUTOTUNE_REPLAY_MISSED, AUTOTUNE_REPLAY_DROPPED kernel=... key=... reason=...
            AUTOTUNE_REPLAY_FALLBACK reason=compile_<Error>[_no_evict] ...  the replayed config failed; _no_evict: the
                                                                            tuner's database has one for this key too
            AUTOTUNE_RETUNED reason=compile_<Error>_no_evict ...            the config of the tuner's database failed
            AUTOTUNE_AMBIGUOUS kernel=... key=... reason=...                recorded, but a replay drops it
          and AUTOTUNE_REPLAY_FORCED, AUTOTUNE_REPLAY_FOREIGN: what differs between the record and this run
LIMITS    Covers triton.autotune and every class derived from it (LibTuner of flag_gems and flaggems_vllm). A kernel
          with one config chooses nothing and is not recorded. What a config costs: tests/bench_record.py.
"""
import os
import sys
from pathlib import Path

import pytest

from autotune_record import record as records
from autotune_record.database import share_databases
from autotune_record.install import install
from autotune_record.session import Session


def pytest_configure(config):
    run_dir, source = os.environ.get("RUN_DIR"), os.environ.get("REPLAY_FROM")
    if run_dir or source:
        config.pluginmanager.register(AutotuneRecorder(run_dir, source), "autotune_recorder")


class AutotuneRecorder:
    """The hooks of one session. Its cache views stand before anything of flag_gems is imported."""

    def __init__(self, run_dir, source):
        self.path = Path(run_dir) / records.FILE_NAME if run_dir else None
        self.source_path = source and fail_early(records.locate_record, source)
        self.session = Session(
            records.Record() if run_dir else None, fail_early(records.load_record, self.source_path) if source else None,
            strict=os.environ.get("REPLAY_STRICT") == "1", force=os.environ.get("REPLAY_FORCE") == "1")
        self.undo = (share_databases(), install(self.session))
        self.saved = 0

    def pytest_collection_finish(self):
        """Now the device is known: describe this run, and refuse a record that was made elsewhere."""
        here = describe_here()
        if self.session.record is not None:
            self.session.record.meta = {**here, "replayed_from": self.source_path and str(self.source_path)}
        if self.session.source is not None:
            differences = records.find_differences(self.session.source.meta, here)
            if differences and not self.session.force:
                pytest.exit(f"REPLAY_FROM: {self.source_path}: not replayed: {'; '.join(differences)}; "
                            "record again here, or set REPLAY_FORCE=1", returncode=3)
            for difference in differences:
                print(f"AUTOTUNE_REPLAY_FORCED {difference}")
            for difference in records.find_differences(self.session.source.meta, here, records.MUST_SAY):
                print(f"AUTOTUNE_REPLAY_FOREIGN {difference}")

    def pytest_runtest_logfinish(self):
        """After every test, so that a killed run keeps what it tuned."""
        if self.session.record is not None and len(self.session.record.entries) != self.saved:
            self.save()

    def save(self):
        records.save_record(self.session.record, self.path)
        self.saved = len(self.session.record.entries)

    def pytest_sessionfinish(self):
        for undo in self.undo:
            undo()
        if self.session.record is not None and self.session.record.meta:
            self.save()

    def pytest_terminal_summary(self, terminalreporter):
        if self.session.record is not None:
            kinds = self.session.record.count_kinds()
            terminalreporter.write_line(f"AUTOTUNE_RECORD libtuner={kinds['libtuner']} autotune={kinds['autotune']} "
                                        f"retuned={self.session.retuned} file={self.path}")
        if self.session.source is not None:
            for line in self.describe_replay():
                terminalreporter.write_line(line)

    def describe_replay(self):
        """One line per tuner kind that the record or this run has."""
        for kind, counts in self.session.count_fates().items():
            yield (f"AUTOTUNE_REPLAY {kind}: " + " ".join(f"{o}={n}" for o, n in counts.items())
                   + f" from={self.source_path}" + (" forced" if self.session.force else ""))


def fail_early(function, argument):
    """`function(argument)`; a record that cannot be used ends pytest before anything is measured."""
    try:
        return function(argument)
    except records.RecordError as error:
        pytest.exit(str(error), returncode=3)


def describe_here():
    """The meta of this run; without any device only that is known, which fits no record."""
    try:
        return records.describe_run(find_torch_device())
    except (RuntimeError, AssertionError) as error:
        return {"device": f"unknown ({error})"}


def find_torch_device():
    """The device module that FlagGems chose, or torch's own accelerator where it was not imported."""
    runtime = sys.modules.get("flag_gems.runtime") or sys.modules.get("flaggems_vllm.runtime")
    if runtime is not None and hasattr(runtime.torch_device_fn, "get_device_name"):
        return runtime.torch_device_fn
    import torch
    return torch.cuda
