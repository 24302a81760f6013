"""pytest plugin: spreads an operator's autotune sweep over several devices, then lets one of them measure.

Purpose: where an operator has many shapes, tuning is most of its time. The sweep is split over N devices in child
         processes; the winners are handed to the normal run through REPLAY_FROM. The measurement itself stays serial
         and on one device: cards that work at the same time slow each other down by heat and power.
Use:     PARALLEL_WARMUP_GPUS=2 CUDA_VISIBLE_DEVICES=6,7 ./run_pytest.sh mm
Reads:   PARALLEL_WARMUP_GPUS     how many devices; unset: does nothing
         PARALLEL_WARMUP_DEVICES  which, as `python -m common.devices warmup N` writes them for run_pytest.sh: JSON,
                                  [{"device": "6", "environ": {"CUDA_VISIBLE_DEVICES": "6"}}, ...]
         RUN_DIR                  the run directory; the shards' output and records go to RUN_DIR/warmup/
         REPLAY_FROM              a record to begin with: what it holds is not tuned again
         PARALLEL_WARMUP_SHARD    set by this plugin for its children
Output:  PARALLEL_WARMUP devices=6,7 keys=16 shared=1 disagreed=0 failed=0 sweep=48.9 seconds=61.2 from=.../warmup
           sweep: seconds that the slowest shard spent on tests; seconds: all, with the start of the children
         WARNING: PARALLEL_WARMUP: 1 of 1 keys that several shards tuned have different winners (kernel=mm_kernel ...)
           the share says how much to trust this run's tuning
         WARNING: PARALLEL_WARMUP: shard 1 (device 7) ended with -9: ...   what it lacks is tuned in the serial run
Needs:   _autotune_record_plugin, later in the list. Linux.
Limits:  inputs are made by every shard, also those that it leaves to others. What no tuner of Triton's or FlagGems'
         chooses is not spread.
"""
import atexit
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

FOLDER = "warmup"
RECORDER = "_autotune_record_plugin"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config):
    """As early as there is: the children start while this process imports what it needs itself."""
    if os.environ.get("PARALLEL_WARMUP_SHARD") or not os.environ.get("PARALLEL_WARMUP_GPUS"):
        return
    from parallel_warmup import shards

    devices, folder = read_devices(os.environ), read_folder(os.environ)
    arguments = list(early_config.invocation_params.args)
    began = time.monotonic()
    children = shards.start_children(devices, folder, arguments, dict(os.environ))
    atexit.register(shards.end_children, children)
    early_config.pluginmanager.register(Warmup(children, folder, began), "gemscreen-parallel-warmup")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    shard = os.environ.get("PARALLEL_WARMUP_SHARD")
    if shard:
        from parallel_warmup.sharding import Shard

        signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as by Ctrl-C: what is recorded is written
        config.pluginmanager.register(Shard(*map(int, shard.split("/"))), "gemscreen-shard")


class Warmup:
    """The parent's hooks: wait for the shards before the recorder looks for a record."""

    def __init__(self, children, folder, began):
        self.children, self.folder, self.began = children, folder, began

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config):
        from parallel_warmup import shards

        if not config.pluginmanager.hasplugin(RECORDER):
            shards.end_children(self.children)
            raise pytest.UsageError(f"PARALLEL_WARMUP_GPUS: needs {RECORDER} to hand over what was tuned; add -p {RECORDER}")
        statuses = shards.wait_for_children(self.children, report_end)
        self.hand_over(statuses)

    def hand_over(self, statuses):
        """Merge the shards' records, say what came of them, and let the recorder replay the result."""
        from autotune_record import record as records
        from parallel_warmup import merge

        try:
            found = [self.folder / str(child.number) / records.FILE_NAME for child in self.children]
            parts = [records.load_record(path) for path in found if path.is_file()]
            source = os.environ.get("REPLAY_FROM")
            base = records.load_record(records.locate_record(source)) if source else None
            merged = merge.merge_records(parts, base) if parts else None
        except records.RecordError as error:
            pytest.exit(f"PARALLEL_WARMUP: {error}", returncode=3)
        failed = len(found) - len(parts)
        sweeps = [sweep for child in self.children if (sweep := child.read_sweep()) is not None]
        if merged:
            records.save_record(merged.record, self.folder / records.FILE_NAME)
            os.environ["REPLAY_FROM"] = str(self.folder)
            for line in describe_disagreement(merged):
                print(line)
        keys, shared, disagreed = (len(merged.record.entries), merged.shared, len(merged.disagreed)) if merged else (0, 0, 0)
        print(f"PARALLEL_WARMUP devices={','.join(child.device for child in self.children)} keys={keys} shared={shared} "
              f"disagreed={disagreed} failed={failed} sweep={max(sweeps, default=0.0):.1f} "
              f"seconds={time.monotonic() - self.began:.1f} from={self.folder}", flush=True)


def report_end(child):
    """Say it of a shard that did not end well. 1: a test failed, as it would in the serial run."""
    status = child.process.returncode
    if status not in (0, 1):
        print(f"WARNING: PARALLEL_WARMUP: shard {child.number} (device {child.device}) ended with {status}: see "
              f"{child.folder / 'output.log'}; what it lacks is tuned in the serial run", flush=True)


def describe_disagreement(merged):
    """At most four lines on the keys whose winners differ between shards."""
    if not merged.disagreed:
        return
    yield (f"WARNING: PARALLEL_WARMUP: {len(merged.disagreed)} of {merged.shared} keys that several shards tuned have "
           "different winners; this run's tuning is that uncertain")
    for kernel, key, configs in merged.disagreed[:3]:
        yield f"  kernel={kernel} key={key} winners={configs}"


def read_devices(environ):
    """The devices to spread over, each with the variables that show it to a child. pytest.UsageError if there are too few."""
    asked, text = environ["PARALLEL_WARMUP_GPUS"], environ.get("PARALLEL_WARMUP_DEVICES")
    if not asked.isdecimal() or int(asked) < 1:
        refuse(f"PARALLEL_WARMUP_GPUS: {asked}: is no number of devices; give one, as PARALLEL_WARMUP_GPUS=2")
    if not text:
        refuse("PARALLEL_WARMUP_DEVICES: empty; run through run_pytest.sh, which sets it from the selected devices")
    try:
        devices = json.loads(text)
        names = [device["device"] for device in devices]
        assert all(isinstance(device["environ"], dict) for device in devices)
    except (ValueError, KeyError, TypeError, AssertionError):
        refuse(f"PARALLEL_WARMUP_DEVICES: {text}: is not what `python -m common.devices warmup N` writes")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        refuse(f"PARALLEL_WARMUP_DEVICES: {twice[0]}: named twice; two timings on one device are worthless")
    if len(devices) != int(asked):
        refuse(f"PARALLEL_WARMUP_GPUS: {asked}: {len(devices)} devices are named ({', '.join(names)})")
    return devices


def read_folder(environ):
    """RUN_DIR/warmup, which must not be there yet."""
    if not environ.get("RUN_DIR"):
        refuse("PARALLEL_WARMUP_GPUS: needs RUN_DIR, where the shards' records go")
    folder = Path(environ["RUN_DIR"]).resolve() / FOLDER
    if folder.exists():
        refuse(f"RUN_DIR: {folder}: exists; give a fresh run directory")
    return folder


def refuse(text):
    """End pytest with status 2 before it has begun; a UsageError would show a traceback here."""
    print(f"_parallel_warmup_plugin: error: {text}", file=sys.stderr, flush=True)
    raise SystemExit(2)
