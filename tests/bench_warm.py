#!/usr/bin/env python3
"""bench_warm.py - what a warm parent costs and saves: its memory, forks per second, growth over 1,000 forks.

USAGE    python tests/bench_warm.py [FORKS]     (make bench)
OUTPUT   the parent's start, its memory before and after, and a `pytest --version` through it and plainly:
           start          2.9 s to ready
           memory         354 MB resident at first, 354 MB after 1000 forks
           forks          1000 in 105.1 s, 105 ms each, files kept 0
           plain process  --version 154 ms; the imports alone 3205 ms
NEEDS    an environment as for the tests; the host device. EXIT 1 if the parent is above 1.5 GB or grows by 1 %.
"""
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]
from warm_parent import Parent  # noqa: E402

MOST_MB, MOST_GROWTH = 1500, 0.01
IMPORTS = "import pytest, torch, triton, os, host_device; " \
          "host_device.install(host_device.read_target(os.environ)); import flag_gems"


def read_memory(pid):
    """Resident memory in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def count_files(pid):
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def time_call(function):
    """Milliseconds of one call."""
    start = time.monotonic()
    function()
    return (time.monotonic() - start) * 1e3


def measure(parent, forks):
    """Print the figures; True if they are within their limits."""
    start = time.monotonic()
    state = parent.await_state("ready", "broken", seconds=300)
    print(f"start          {time.monotonic() - start:.1f} s to {state}", flush=True)

    def call():
        code, output = parent.run("--noconftest", "--version")
        assert code == 0 and "warm" not in output, output
    call()
    memory, files = read_memory(parent.process.pid), count_files(parent.process.pid)
    spent = sum(time_call(call) for _ in range(forks))
    after = read_memory(parent.process.pid)
    print(f"memory         {memory:.0f} MB resident at first, {after:.0f} MB after {forks} forks")
    print(f"forks          {forks} in {spent / 1e3:.1f} s, {spent / forks:.0f} ms each, "
          f"files kept {count_files(parent.process.pid) - files}")
    plain = time_call(lambda: parent.run("--noconftest", "--version", warm=False))
    imports = time_call(lambda: subprocess.run([sys.executable, "-c", IMPORTS], env=parent.environ, check=True))
    print(f"plain process  --version {plain:.0f} ms; the imports alone {imports:.0f} ms")
    return after < MOST_MB and after < memory * (1 + MOST_GROWTH)


def main(forks=1000):
    with tempfile.TemporaryDirectory() as folder:
        parent = Parent(Path(folder) / "bench")
        try:
            return 0 if measure(parent, int(forks)) else 1
        finally:
            parent.close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
