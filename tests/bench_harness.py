#!/usr/bin/env python3
"""bench_harness.py - what the harness itself costs: run_batch.py over many operators whose benchmark is a stub.

USAGE    bench_harness.py [OPS [DEVICES]]      (1000 operators over 8 fake devices; `make bench`; never part of the tests)
OUTPUT   A table, for instance:
           what                                        value   limit
           stubs alone, 1000 over 8 at a time          6.1 s
           screen of 1000 ops over 8 devices          19.7 s
           beyond the stubs' own time                 13.6 s    60 s   ok
           resumed, everything complete                1.9 s
           memory of run_batch.py                      58 MB  300 MB   ok
EXIT     0 within the limits, 1 beyond one of them
REQUIRES Linux, bash. LIMITS   A busy machine is slow; the limits are for 2 idle cores. Its files go to a temporary
         directory: where that is a disk, syncing two files per operator is part of the figure.
"""
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from screen_stub import ROOT, StubScreen

WALL_LIMIT, MEMORY_LIMIT = 60.0, 300.0      # seconds beyond the stubs, MB

# One process per operator, as little as a benchmark can do.
FAST_STUB = r"""#!/bin/bash
[ "$1" != --check ] || exit 0
mkdir "$RUN_DIR" || exit 3
echo "run directory: $RUN_DIR"
printf '==== gemscreen begin ====\nschema: 1\nrepo: main\nop: %s\nmode: kernel\nlevel: core\n====\n
Operator: %s  Performance Test (dtype=torch.float16, mode=kernel,level=core)
Status      Torch Latency (ms)    Gems Latency (ms)         Gems Speedup         Size Detail
------------------------------------------------------------------------------------------
SUCCESS               0.010000            0.020000               0.500          [torch.Size([64, 64])]
==== gemscreen end ====\npytest_exit: 0\n====\n' "$1" "$1" > "$RUN_DIR/run.log"
echo '{"schema": 1, "pytest_exit": 0}' > "$RUN_DIR/exit.json"
echo '{"schema": 1, "node": "x", "outcome": "passed", "when": "call"}' > "$RUN_DIR/tests.jsonl"
"""


def main(argv):
    """Run the benchmark; the exit status."""
    count, devices = (int(text) for text in (argv + ["1000", "8"][len(argv):])[:2])
    with tempfile.TemporaryDirectory() as folder:
        stub = StubScreen(Path(folder) / "bench", ops=[f"op{number:04}" for number in range(count)])
        stub.stub.write_text(FAST_STUB)
        alone = time_stubs(stub, count, devices)
        names = ",".join(f"host:{number}" for number in range(devices))
        wall, memory = time_screen(stub, names)
        resumed, _ = time_screen(stub, names)
        assert len(stub.statuses()) == count and set(stub.statuses().values()) == {"ok"}
    lines = [("what", "value", "limit", ""),
             (f"stubs alone, {count} over {devices} at a time", f"{alone:.1f} s", "", ""),
             (f"screen of {count} ops over {devices} devices", f"{wall:.1f} s", "", ""),
             ("beyond the stubs' own time", f"{wall - alone:.1f} s", f"{WALL_LIMIT:.0f} s", judge(wall - alone, WALL_LIMIT)),
             ("resumed, everything complete", f"{resumed:.1f} s", "", ""),
             ("memory of run_batch.py", f"{memory:.0f} MB", f"{MEMORY_LIMIT:.0f} MB", judge(memory, MEMORY_LIMIT))]
    for what, value, limit, verdict in lines:
        print(f"{what:<42} {value:>8} {limit:>7}  {verdict}".rstrip())
    return int(any(line[3] == "TOO MUCH" for line in lines))


def judge(value, limit):
    """`ok` or `TOO MUCH`."""
    return "ok" if value < limit else "TOO MUCH"


def time_stubs(stub, count, devices):
    """Seconds for `count` calls of the stub alone, `devices` at a time."""
    def call(number):
        subprocess.run([stub.stub, f"op{number}"], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "RUN_DIR": f"{stub.folder}/alone-{number}"})
    start = time.monotonic()
    with ThreadPoolExecutor(devices) as pool:
        list(pool.map(call, range(count)))
    return time.monotonic() - start


def time_screen(stub, devices):
    """(seconds, peak memory in MB) of one run_batch.py."""
    start = time.monotonic()
    driver = subprocess.Popen([sys.executable, ROOT / "run_batch.py", "--devices", devices], env=stub.environ(),
                              stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(driver.pid, 0)
    if status != 0:
        sys.exit(f"bench_harness.py: error: run_batch.py ended with {os.waitstatus_to_exitcode(status)}")
    return time.monotonic() - start, usage.ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
