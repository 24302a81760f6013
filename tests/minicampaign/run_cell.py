#!/usr/bin/env -S python3 -S
"""run_cell.py - stands in for run_pytest.sh: plants one outcome per operator into the run directory of a campaign's step.

The operator's name is the outcome, and PLANTED says what it does. Everything else is real: run.py starts this file as it
starts run_pytest.sh, and reads what it leaves. Kernels are (name, launches, converts by cell); the code differs where the
converts do. Times are 1 ms, times a fixed pseudo-random 0.3 %, times what is planted for the candidate.
"""
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

from campaign.topology import COLUMNS
from ttgir_text import digest_ttgir

OPERATOR = {"warmup": 2, "measured": 2}
ONCE = {"construction": 1}
KEYS = {"off": "sw-e0-m0", "mask0": "sw-e1-m0", "candidate": "sw-e1-m15"}
ORDER = ("off", "mask0", "candidate")
FEWER, SAME, NONE = {"off": 4, "candidate": 1}, {"off": 4, "candidate": 4}, {"off": 0, "candidate": 0}


def operate(converts, **more):
    return {"kernels": [("op_kernel", OPERATOR, converts)], **more}


PLANTED = {
    "gain": operate(FEWER, factor=0.8),
    "regression": operate(FEWER, factor=1.25),
    "converts_only": operate(FEWER),
    "drifting_clock": operate(FEWER, drift=0.02),
    "one_round_only": operate(FEWER, factor=0.8, factor_b=1.0),
    "mixed_rows": operate(FEWER, factor=0.9, factor_row2=1.08),
    "small_gain": operate(FEWER, factor=0.9845),
    "wild_rows": operate(FEWER, factor=0.97, placebo=(1.05, 0.95)),
    "same_binary": operate(FEWER, binary="same"),
    "same_binary_faster": operate(FEWER, factor=0.8, binary="same"),
    "nothing_to_remove": operate(NONE),
    "keeps_converts": operate(SAME),
    "other_code": operate(SAME, stamp="reordered"),
    "slower_code": operate({"off": 4, "candidate": 5}, factor=1.25),
    "inputs_only": {"kernels": [("op_kernel", OPERATOR, NONE)] + [(f"randn_{n}", ONCE, FEWER) for n in range(5)]},
    "below_floor_only": {"kernels": [("randn", ONCE, FEWER)]},
    "candidate_wrong": operate(FEWER, factor=0.5, wrong=("candidate",)),
    "mask0_wrong": operate(SAME, wrong=("mask0",)),
    "off_wrong": operate(SAME, wrong=("off", "mask0", "candidate")),
    "tests_crash": operate(FEWER, tests_crash=True),
    "tests_skipped": operate(FEWER, tests_skip=True),
    "tests_elsewhere": operate(FEWER, tests_unproven=True),
    "off_fails": operate(SAME, fails=("off",)),
    "candidate_fails": operate(SAME, fails=("candidate",)),
    "candidate_crashes": operate(SAME, crashes=("a1/candidate",)),
    "round_b_crashes": operate(FEWER, factor=0.8, crashes=("b1/mask0",)),
    "candidate_hangs": operate(SAME, hangs=True),
    "mask0_differs": operate({"off": 4, "mask0": 3, "candidate": 1}),
    "dump_missing": operate(FEWER, no_dump=True),
    "index_row_missing": operate(FEWER, stray=True),
    "replay_fallback": operate(FEWER, fallback=1),
    "other_launches": operate(FEWER, launches={"warmup": 2, "measured": 4}),
    "switch_ignored": operate(FEWER, hash_of="off"),
    "other_compiler": operate(FEWER, key_of="off"),
}


def vary(*words):
    """A fixed factor within 0.3 % of 1."""
    number = int.from_bytes(hashlib.sha256("/".join(map(str, words)).encode()).digest()[:4], "big") / 2**32
    return 1 + 0.006 * (number - 0.5)


def find_time(op, plan, part, cell, row):
    place = ORDER.index(cell) if part.startswith("a") else 2 - ORDER.index(cell)
    factor = 1 + plan.get("drift", 0) * place
    if cell == "candidate":
        factor *= plan.get(f"factor_row{row}", plan.get(f"factor_{part[0]}", plan.get("factor", 1)))
    if cell == "mask0":
        factor *= plan.get("placebo", (1, 1))[row - 1]
    return factor * vary(op, part, cell, row)


def write_benchmark(run_dir, op, plan, part, cell):
    """run.log's tables and the replay's line, autotune.json."""
    lines = [f"Operator: {op}  Performance Test (dtype=torch.float16, mode=kernel,level=core)",
             "Status      Torch Latency (ms)    Gems Latency (ms)         Gems Speedup         Size Detail", "-" * 90]
    for row in (1, 2):
        time = find_time(op, plan, part, cell, row)
        lines.append(f"SUCCESS{1.0:>21.6f}{time:>20.6f}{1.0:>20.3f}          [torch.Size([{row * 64}, 64])]")
    lines += [f"TIMER: Operator={op} dtype=torch.float16 row={row} timer=graph cache=cold reason=<<<>>>" for row in (1, 2)]
    if os.environ.get("REPLAY_FROM"):
        fallback = plan.get("fallback", 0) if cell == "candidate" else 0
        lines.append(f"AUTOTUNE_REPLAY libtuner: used=1 unused=0 missed=0 fallback={fallback} dropped=0 from=x")
    (run_dir / "autotune.json").write_text(json.dumps({"schema": 1, "entries": [{"kernel": "op_kernel"}]}))
    return lines


def write_dumps(run_dir, op, plan, cell):
    (run_dir / "ir").mkdir()
    rows = []
    for kernel, launches, converts in plan["kernels"]:
        rows.append(write_variant(run_dir, op, plan, cell, kernel, launches, converts))
    if cell == "candidate" and plan.get("stray"):
        rows = rows[:-1]
    lines = ["\t".join(row[column] for column in COLUMNS) for row in [dict(zip(COLUMNS, COLUMNS)), *rows]]
    (run_dir / "index.tsv").write_text("\n".join(lines) + "\n")
    if cell == "candidate" and plan.get("no_dump"):
        next((run_dir / "ir").iterdir()).unlink()


def write_variant(run_dir, op, plan, cell, kernel, launches, converts):
    """One TTGIR file; its row of the index."""
    count = converts.get(cell, converts["off"])
    stamp = plan.get("stamp", "") if cell == "candidate" else ""
    body = "    %1 = ttg.convert_layout %0 : tensor<64xf32, #a> -> tensor<64xf32, #b>\n" * count
    body += f"    // {stamp}\n    %9 = arith.addi %0, %0\n" if stamp else ""
    text = f'module attributes {{"ttg.num-warps" = 4 : i32}} {{\n  tt.func public @{kernel}() {{\n{body}  }}\n}}\n'
    digest = digest_ttgir(text)
    hash_ = hashlib.sha256(f"{op}{kernel}{plan.get('hash_of', cell)}".encode()).hexdigest()[:16]
    if cell == "candidate":
        launches = plan.get("launches", launches)
    phases = ("construction", "tuning", "warmup", "measured", "baseline")
    row = dict.fromkeys(COLUMNS, "") | {f"launches_{phase}": "0" for phase in phases}
    row |= {f"launches_{phase}": str(number) for phase, number in launches.items()}
    row |= {"schema": "1", "file": f"ir/{kernel}-{hash_}.ttgir", "kernel": kernel, "hash": hash_, "ttgir_sha256": digest,
            "binary_sha256": plan.get("binary", digest), "converts": str(count), "converts_in_loop": "0",
            "converts_weighted": str(count), "switch": KEYS[plan.get("key_of", cell)]}
    (run_dir / row["file"]).write_text(text)
    return row


def run_tests(run_dir, op, plan, cell):
    """(run.log's lines, pytest's status) of a correctness run."""
    if plan.get("tests_crash") and cell == "candidate":
        os.kill(os.getpid(), signal.SIGKILL)
    outcome = "failed" if cell in plan.get("wrong", ()) else "skipped" if plan.get("tests_skip") else "passed"
    test = {"schema": 1, "node": f"tests/test_{op}.py::test_{op}[dtype0]", "outcome": outcome, "when": "call", "seconds": 0.1}
    (run_dir / "tests.jsonl").write_text(json.dumps(test) + "\n")
    return [] if plan.get("tests_unproven") else [f"SWITCH {KEYS[cell]}"], int(outcome == "failed")


def run_benchmark(run_dir, op, plan, part, cell):
    """(run.log's lines, pytest's status) of a benchmark."""
    if f"{part}/{cell}" in plan.get("crashes", ()):
        os.kill(os.getpid(), signal.SIGSEGV)
    if plan.get("hangs") and cell == "candidate":
        time.sleep(600)
    write_dumps(run_dir, op, plan, cell)
    return write_benchmark(run_dir, op, plan, part, cell), int(cell in plan.get("fails", ()))


def main():
    op, run_dir = sys.argv[1], Path(os.environ["RUN_DIR"])
    time.sleep(float(os.environ.get("MINI_SLOW_S", "0")))
    part, cell = run_dir.parts[-4:-2]
    run_dir.mkdir(parents=True)
    print(f"run directory: {run_dir}")
    assert os.environ["SWITCH"] == KEYS[cell], "the cell's environment did not arrive"
    if os.environ["SUITE"] == "tests":
        lines, status = run_tests(run_dir, op, PLANTED[op], cell)
    else:
        lines, status = run_benchmark(run_dir, op, PLANTED[op], part, cell)
    banner = ["==== gemscreen begin ====", "schema: 1", f"op: {op}", "===="]
    end = ["==== gemscreen end ====", f"pytest_exit: {status}", "===="]
    (run_dir / "run.log").write_text("\n".join([*banner, *lines, *end]) + "\n")
    (run_dir / "exit.json").write_text(json.dumps({"schema": 1, "pytest_exit": status}))
    sys.exit(status)


if __name__ == "__main__":
    main()
