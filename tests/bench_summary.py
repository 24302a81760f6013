#!/usr/bin/env python3
"""bench_summary.py - batch_summary.py over a large screen: wall time and memory (`make bench`; never part of the tests).

USAGE    bench_summary.py [OPS [ROWS]]       (1000 operators, 50 rows each)
OUTPUT   what                                        value   limit
         batch_summary.py, 1000 logs, 50000 rows     2.5 s     5 s   ok
         memory                                      86 MB
EXIT     0 within the limit, 1 beyond it
"""
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WALL_LIMIT = 5.0  # seconds
DTYPES = ("float16", "float32")
HEADER = """==== gemscreen begin ====
schema: 1
repo: main
op: {op}
mode: kernel
level: core
timer: do_bench
cache: cold
device: 0
attempt: 1
====
"""
FOOTER = "==== gemscreen end ====\npytest_exit: 0\nfinished: 2026-11-30T06:00:00Z\nseconds: 7\n====\n"


def write_table(op, dtype, rows):
    """Upstream's text of one table."""
    lines = [f"\nOperator: {op}  Performance Test (dtype=torch.{dtype}, mode=kernel,level=core)",
             "Status       Torch Latency (ms)    Gems Latency (ms)         Gems Speedup               TFLOPS"
             "          Size Detail",
             "-" * 116]
    for n in range(1, rows + 1):
        lines.append(f"{'SUCCESS':<10}{0.01 * n:>20.6f}{0.02 * n:>20.6f}{0.5:>20.3f}{1.25:>20.3f}"
                     f"          [torch.Size([{n}, 64])]")
    return "\n".join(lines) + "\n\n"


def write_screen(run, ops, rows):
    """A finished screen of `ops` operators as run_batch.py leaves it, `rows` rows each."""
    names = [f"op{n:04}" for n in range(ops)]
    run.mkdir()
    (run / "screen.json").write_text(json.dumps({"schema": 1, "run_id": "bench", "knobs": {}, "repos": {}, "devices": ["0"]}))
    (run / "plan.csv").write_text("schema,repo,op,status,device,nodes,reason\n"
                                  + "".join(f"1,main,{name},planned,0,n,\n" for name in names))
    for name in names:
        attempt = run / "main" / name / "attempts" / "1"
        attempt.mkdir(parents=True)
        tables = "".join(write_table(name, dtype, rows // len(DTYPES)) for dtype in DTYPES)
        (attempt / "run.log").write_text(HEADER.format(op=name) + tables + FOOTER)
        (attempt / "exit.json").write_text('{"schema": 1, "pytest_exit": 0}\n')
        (run / "main" / name / ".complete").write_text(json.dumps(
            {"schema": 1, "status": "ok", "finished": "2026-11-30T06:00:00Z", "inputs_sha256": "0", "attempt": 1,
             "fallback": "", "reason": "", "signature": "", "seconds": 7.0, "device": "0"}))


def main(argv):
    """Run the benchmark; the exit status."""
    ops, rows = (int(text) for text in (argv + ["1000", "50"][len(argv):])[:2])
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "screen"
        write_screen(run, ops, rows)
        start = time.monotonic()
        summary = subprocess.Popen([sys.executable, ROOT / "batch_summary.py", run], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(summary.pid, 0)
        wall = time.monotonic() - start
        written = sum(1 for _ in open(run / "summary.csv", encoding="utf-8")) - 1
    assert os.waitstatus_to_exitcode(status) == 0 and written == ops * rows, (status, written)
    verdict = "ok" if wall < WALL_LIMIT else "TOO MUCH"
    what = f"batch_summary.py, {ops} logs, {written} rows"
    print(f"{what:<42} {wall:>6.1f} s {WALL_LIMIT:>5.0f} s  {verdict}\n{'memory':<42} {usage.ru_maxrss / 1024:>5.0f} MB")
    return int(wall >= WALL_LIMIT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
