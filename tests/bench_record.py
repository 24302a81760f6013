#!/usr/bin/env python3
"""bench_record.py - what _autotune_record_plugin costs per launch after the first.

USAGE    bench_record.py      (make bench; never part of the tests)
WHAT     A plain triton.autotune kernel and a FlagGems LibEntry + LibTuner kernel, tuned and warmed up, on the host device
         in HOST_MODE=compile, where a launch executes nothing. Each is launched in blocks, alternately without the plugin
         and with it (recording, and replaying what was recorded); the figure is the median block's processor time. Two keys
         alternate, so that every launch asks for another config than the one before.
OUTPUT   launch                     without      record      replay      more       ratio   limit
         plain autotune            21.10 us    22.02 us    22.05 us   0.95 us      1.045    2 us   ok
         LibEntry                  30.00 us    30.01 us    30.02 us   0.02 us      1.001    2 us   ok
         `more` is the larger of both: the median difference to the block before it without the plugin.
EXIT     0 within the limit, 1 beyond it       REQUIRES torch, triton, flag_gems; Linux
LIMITS   A launch on the host device is no launch on a GPU: the difference counts, not the ratio.
"""
import statistics
import sys
import time
from pathlib import Path

LIMIT_US, LAUNCHES, BLOCKS = 2.0, 400, 25
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "plugins"))

from bench_kernels_on_host import load_kernels  # noqa: E402

KERNELS = '''
import triton, triton.language as tl
from flag_gems.utils import libentry, libtuner

CONFIGS = [triton.Config({"BLOCK": b}, num_warps=w) for b in (64, 128) for w in (1, 2, 4)]

def make_plain():
    @triton.autotune(configs=CONFIGS, key=["n"])
    @triton.jit
    def plain(x, n, BLOCK: tl.constexpr):
        tl.store(x + tl.arange(0, BLOCK), 1.0, mask=tl.arange(0, BLOCK) < n)
    return plain

def make_entry():
    @libentry()
    @libtuner(configs=CONFIGS, key=["n"])
    @triton.jit
    def entry(x, n, BLOCK: tl.constexpr):
        tl.store(x + tl.arange(0, BLOCK), 1.0, mask=tl.arange(0, BLOCK) < n)
    return entry
'''


def main():
    """Measure both kinds of launches, print the table; the exit status."""
    with load_kernels(KERNELS) as (bench_kernels, _):
        print(f"{'launch':22}{'without':>12}{'record':>12}{'replay':>12}{'more':>11}{'ratio':>10}   limit")
        results = [measure("plain autotune", bench_kernels.make_plain), measure("LibEntry", bench_kernels.make_entry)]
    return 0 if all(results) else 1


def measure(name, make):
    """One line of the table; True if it is within the limit."""
    from autotune_record.install import install
    from autotune_record.record import Record
    from autotune_record.session import Session

    import torch

    record = Record()
    sessions = {"without": None, "record": Session(record), "replay": Session(Record(), source=record)}
    kernels = {side: make() for side in sessions}
    x, times = torch.zeros(128), {side: [] for side in sessions}
    for block in range(BLOCKS + 1):
        for side, session in sessions.items():
            undo = install(session) if session else lambda: None
            kernel = kernels[side][(1,)]
            if block == 0:  # tunes, or replays what the side before recorded
                launch(kernel, x, 4)
                if side == "record":
                    sessions["replay"].source_names = record.find_names()
            times[side].append(launch(kernel, x, LAUNCHES))
            undo()
    assert len(record.entries) == 2 and {e["origin"] for e in sessions["replay"].record.entries.values()} == {"replayed"}
    median = {side: statistics.median(values[1:]) for side, values in times.items()}
    more = max(statistics.median(a - b for a, b in zip(times[side][1:], times["without"][1:])) for side in ("record", "replay"))
    figures = "".join(f"{median[side]:9.2f} us" for side in sessions)
    verdict = "ok" if more < LIMIT_US else "TOO MUCH"
    print(f"{name:22}{figures}{more:8.2f} us{more / median['without'] + 1:10.3f}{LIMIT_US:6.0f} us   {verdict}")
    return more < LIMIT_US


def launch(kernel, x, count):
    """us of this thread per launch of `count` launches, two keys in turn."""
    start = time.thread_time()
    for _ in range(count // 2):
        kernel(x, 64)
        kernel(x, 100)
    return (time.thread_time() - start) / count * 1e6


if __name__ == "__main__":
    sys.exit(main())
