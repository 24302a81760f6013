#!/usr/bin/env python3
"""speed_check.py - upstream's tools/run_tests.py against ours on a card, side by side, as one table. Not part of `make test`.

USAGE   source the environment that has torch, triton, flag_gems and FLAGGEMS_DIR, then in the project's root
          OUT=runs/speed OPS=abs,add,gelu,softmax python tests/gpu/speed_check.py ours upstream compare
PARTS   ours      run_batch.py on one card: level core, all dtypes, compile and tuner caches of its own, empty; WARM=1
        plain     the same with WARM=0
        upstream  tools/run_tests.py of FLAGGEMS_DIR on the same card, caches of its own, empty
        compare   what OUT has of both so far (more OPS may come in later calls): wall time, ratio, rows, start
KNOBS   OPS (the 12 of issue 7)  DEVICE (the card, 0)  OUT (runs/speed-check)
        LIMIT_S (seconds for one part, 1800; what runs then is ended, with all that it started, before the next part begins)
        OURS_ONLY=1, UPSTREAM_ONLY=1: that part and compare, where no part is named. Upstream takes 40 s and more per op.
HOW     Upstream's accuracy phase is left out: the `pytest` that it starts is one that ends at once below tests/. Its
        collection of marks (only above 10 operators) is given away likewise for tests/, and paid for benchmark/.
        wall      the whole command, of both, for the operators of that call
        op        run_tests.py's own duration of the benchmark phase; ours: from .complete (all attempts)
        rows      (dtype, shape) with a figure for FlagGems
        begins    start of run_pytest.sh to the first call of the timer, ends: to its first figure (start_trace.py), which also
                  has what else the time went into
OUTPUT  OUT/{ours,plain,upstream}/, OUT/report.txt (printed too):
          op        upstream s  ours s  ratio  rows up  rows ours  begins s  ends s
          abs             38.2     4.1    9.3       15         15      0.71    1.32
EXIT    0; 1 if there are operators of which ours has fewer rows or no outcome, or a ratio of the sums below 6, or a median start
        of 1.5 s
LIMITS  Writes into FLAGGEMS_DIR/benchmark, as run_tests.py does: give a copy. Needs `distro` for run_tests.py.
"""
import csv
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from common.process import Child  # noqa: E402

OPS = "abs,add,gelu,softmax,layer_norm,mm,addmm,topk,sort,cumsum,rand,index_select"
PARTS = ("ours", "plain", "upstream", "compare")
MIN_RATIO, MAX_START = 6.0, 1.5
PYTEST = """#!/bin/bash
# stands before the real one on PATH: no accuracy phase
case "$PWD $*" in */tests\\ * | *" tests/") exit 5 ;; esac
exec "{python}" -m pytest "$@"
"""


def main(parts):
    """Run the parts in the order given."""
    if not parts:
        ours, upstream = os.environ.get("UPSTREAM_ONLY") != "1", os.environ.get("OURS_ONLY") != "1"
        parts = ["ours"] * ours + ["upstream"] * upstream + ["compare"]
    unknown = [part for part in parts if part not in PARTS]
    if unknown or not os.environ.get("FLAGGEMS_DIR"):
        fault = f"{unknown[0]}: no such part; there are {PARTS}" if unknown else "FLAGGEMS_DIR: missing"
        print(f"speed_check.py: error: {fault}", file=sys.stderr)
        return 2
    out = Path(os.environ.get("OUT") or ROOT / "runs" / "speed-check").absolute()
    ops = (os.environ.get("OPS") or OPS).split(",")
    status = 0
    for part in parts:
        if part == "compare":
            status = compare(out)
        elif part == "upstream":
            run_part(out, part, ops, lambda folder: run_upstream(folder, ops))
        else:
            run_part(out, part, ops, lambda folder, warm=part == "ours": run_ours(folder, ops, warm))
    return status


def run_part(out, part, ops, run):
    """Run one part into a folder of its own, OUT/<part>/<n>-<random>, and note its wall time."""
    (out / part).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{1 + len(list((out / part).glob('*')))}-", dir=out / part))    # two may run at once
    start = time.monotonic()
    code = run(folder)
    wall = time.monotonic() - start
    (folder / "part.json").write_text(json.dumps({"ops": ops, "wall": wall, "code": code}))
    print(f"{part}: {len(ops)} operators, {wall:.1f} s, exit {code}", flush=True)


def run_command(folder, command, environ):
    """Its exit status; None where it took longer than LIMIT_S. Output goes to FOLDER/output."""
    env = {**os.environ, "TRITON_CACHE_DIR": str(folder / "triton"), "FLAGGEMS_CACHE_DIR": str(folder / "gems"), **environ}
    limit = time.monotonic() + float(os.environ.get("LIMIT_S") or 1800)
    tag, late = f"speed-check-{os.getpid()}/{folder.name}", False
    child = Child(list(map(str, command)), tag=tag, env=env, log=folder / "output", cwd=ROOT, grace=60)
    while not child.advance(time.monotonic()):
        if time.monotonic() > limit:
            late = True
            child.end(time.monotonic())
        time.sleep(0.02)
    return None if late else child.returncode


def run_ours(folder, ops, warm):
    python_path = os.pathsep.join(filter(None, [str(ROOT / "tests" / "gpu"), os.environ.get("PYTHONPATH")]))
    return run_command(folder, [sys.executable, ROOT / "run_batch.py"], {
        "PYTHON": sys.executable, "RUN": str(folder / "screen"), "RUNS": str(folder / "runs"), "OPS": ",".join(ops),
        "DEVICES": os.environ.get("DEVICE") or "0", "DEVICE": "", "LEVEL": "core", "WARM": str(int(warm)),
        "PYTHONPATH": python_path, "PYTEST_EXTRA": "-p start_trace"})


def run_upstream(folder, ops):
    (folder / "bin").mkdir()
    (folder / "bin" / "pytest").write_text(PYTEST.format(python=sys.executable))
    (folder / "bin" / "pytest").chmod(0o755)
    command = [sys.executable, Path(os.environ["FLAGGEMS_DIR"], "tools", "run_tests.py"), "--ops", ",".join(ops), "--gpus",
               os.environ.get("DEVICE") or "0", "--output-dir", folder / "results", "--dump-output", "--color", "never"]
    return run_command(folder, command, {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"})


# ---- what they left

def normalize(shape):
    """A shape's text without what the two sides write differently."""
    return re.sub(r"\s+|torch\.Size\(|[()'\"]", "", str(shape))


def read_ours(folder):
    """{op: (seconds, Counter of (dtype, shape), start.json or {})}; of a screen that LIMIT_S ended, what had an outcome."""
    found = {}
    if not (folder / "screen" / "summary.csv").is_file():
        subprocess.run([sys.executable, ROOT / "batch_summary.py", folder / "screen"], stdout=subprocess.DEVNULL, check=False)
    with open(folder / "screen" / "summary.csv", newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    for marker in (folder / "screen").glob("*/*/.complete"):
        op = marker.parent.name
        facts = json.loads(marker.read_text())
        start = marker.parent / "attempts" / str(facts["attempt"]) / "start.json"
        figures = Counter((row["dtype"], normalize(row["shape"])) for row in rows if row["op"] == op and row["latency_ms"])
        found[op] = facts["seconds"], figures, json.loads(start.read_text()) if start.is_file() else {}
    return found


def read_upstream(folder):
    """{op: (seconds, Counter of (dtype, shape), status)}."""
    found = {}
    for path in (folder / "results").glob("summary[0-9]*.json"):
        for op, result in json.loads(path.read_text()).items():
            figures = Counter()
            raw = folder / "results" / op / "performance_result.json"
            named = json.loads(raw.read_text()).values() if raw.is_file() else ()    # op_name, which need not be the mark
            for table in (table for each in named for table in each.get("details", [])):
                figures.update((str(table["dtype"]).replace("torch.", ""), normalize(row.get("shape_detail")))
                               for row in table.get("result", []) if row.get("latency"))
            found[op] = result["performance"]["duration"], figures, result["performance"]["status"]
    return found


def read_part(out, part, read):
    """({op: ...} of all calls of a part, [(operators, wall)])."""
    found, walls = {}, []
    for path in sorted((out / part).glob("*/part.json"), key=lambda path: int(path.parent.name.partition("-")[0])):
        facts = json.loads(path.read_text())
        walls.append((facts["ops"], facts["wall"]))
        found.update(read(path.parent))
    return found, walls


def compare(out):
    """Print the table of what both have; 1 if something does not hold."""
    lines, failed = [], []
    ours, our_walls = read_part(out, "ours", read_ours)
    plain, _ = read_part(out, "plain", read_ours)
    upstream, up_walls = read_part(out, "upstream", read_upstream)
    lines.append("op            upstream s  ours s  ratio  plain s  rows up  rows ours  begins s  ends s  upstream's status")
    ratios, begins = [], []
    lost = {op for ops, _ in our_walls for op in ops} - {*ours}
    failed += [f"{op}: no outcome of ours, so that no ratio has it" for op in sorted(lost)]
    for op in sorted({*ours, *upstream}):
        mine, theirs = ours.get(op), upstream.get(op)
        ratio = theirs[0] / mine[0] if mine and theirs and mine[1] and theirs[1] else None
        ratios += [ratio] if ratio else []
        begins += [mine[2]["first_begins"]] if mine and "first_begins" in mine[2] else []
        cells = [theirs and f"{theirs[0]:.1f}", mine and f"{mine[0]:.1f}", ratio and f"{ratio:.1f}",
                 f"{plain[op][0]:.1f}" if op in plain else None,
                 theirs and f"{theirs[1].total()}", mine and f"{mine[1].total()}", mine and mine[2].get("first_begins"),
                 mine and mine[2].get("first_ends"), theirs and theirs[2]]
        lines.append(f"{op:<12}" + "".join(f"{cell if cell or cell == 0 else '-':>{width}}" for cell, width in
                                           zip(cells, (12, 8, 7, 9, 9, 11, 10, 8, 19))))
        if mine and theirs and mine[1].total() < theirs[1].total():
            failed.append(f"{op}: {mine[1].total()} rows, upstream {theirs[1].total()}; lacking {list(theirs[1] - mine[1])[:3]}")
        elif mine and theirs and theirs[1] - mine[1]:
            others = theirs[1] - mine[1]
            lines.append(f"  {op}: as many rows, {others.total()} named otherwise: {list(others)[:2]}")
    for name, walls in (("upstream", up_walls), ("ours", our_walls)):
        lines += [f"wall: {name}: {wall:.1f} s for {','.join(ops)}" for ops, wall in walls]
    if ratios:
        same = [op for op in ours if op in upstream and ours[op][1] and upstream[op][1]]      # a crash is not fast
        total = sum(upstream[op][0] for op in same) / sum(ours[op][0] for op in same)
        lines.append(f"ratio: {total:.2f} of the sums, median {statistics.median(ratios):.2f}, over {len(same)} operators")
        if total < MIN_RATIO:
            failed.append(f"the ratio is below {MIN_RATIO}")
    if begins:
        lines.append(f"start to first measurement: median {statistics.median(begins):.2f} s, most {max(begins):.2f} s")
        if statistics.median(begins) >= MAX_START:
            failed.append(f"the median start is not below {MAX_START} s")
    lines += ["", "what ours spent, s        start  columns  compiles  launchers  tuner's trials  after  the rest of its attempt"]
    for op, (seconds, _, start) in sorted(ours.items()):
        if "last_ends" in start:
            parts = [("{1:.1f} ({0})".format(*start[name]) if name in start else "-")
                     for name in ("columns", "compiles", "launchers", "trials")]
            lines.append(f"{op:<24} {start['first_begins']:>6}"
                         + "".join(f"{part:>{width}}" for part, width in zip(parts, (11, 11, 10, 14)))
                         + f"{start['left'] - start['last_ends']:>7.1f}{seconds - start['left']:>9.1f}")
    spent = [start[2].get("steps", {}) | {"database": start[2].get("database", (0, 0))} for start in ours.values()]
    for name in dict.fromkeys(name for steps in spent for name in steps):     # of all operators, as start_trace.py names them
        counts, totals = zip(*(steps.get(name, (0, 0)) for steps in spent))
        lines.append(f"{name:<12}{sum(totals):>8.1f} ({sum(counts)})")
    text = "\n".join([*lines, *(f"FAIL {each}" for each in failed)])
    (out / "report.txt").write_text(text + "\n", encoding="utf-8")
    print(text, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
