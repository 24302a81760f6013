"""summary_screen.py - screens written file by file, and batch_summary.py over them."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "batch_summary.py"

HEAD = ("Status       Torch Latency (ms)    Gems Latency (ms)         Gems Speedup           Size Detail\n"
        "-----------------------------------------------------------------------------------------------\n")
HEAD_ALL = ("Status       Torch Latency (ms)    Gems Latency (ms)         Gems Speedup               TFLOPS"
            "          Torch GBPS            Gems GBPS           Size Detail\n" + "-" * 158 + "\n")


def title(op, dtype="float16", mode="kernel"):
    return f"\nOperator: {op}  Performance Test (dtype=torch.{dtype}, mode={mode},level=core)\n"


def row(status, *figures, detail="[torch.Size([64])]"):
    return f"{status:<10}" + "".join(f"{figure:>20}" for figure in figures) + " " * 10 + detail + "\n"


def run_log(op, tables, repo="main", pytest_exit=0, cache="cold", host_target="", end=True):
    text = (f"==== gemscreen begin ====\nschema: 1\nrepo: {repo}\nop: {op}\nlevel: core\nmode: kernel\ntimer: do_bench\n"
            f"cache: {cache}\ndevice: 0\nattempt: 1\nfallback:\nhost_target: {host_target}\n====\ncollected 1 item\n{tables}")
    return text + (f"==== gemscreen end ====\npytest_exit: {pytest_exit}\nseconds: 1\n====\n" if end else "")


class Screen:
    """A screen directory as run_batch.py leaves it."""

    def __init__(self, path):
        self.path = path
        self.plan = []
        path.mkdir()
        (path / "screen.json").write_text(json.dumps({
            "schema": 1, "created": "2026-11-30T06:29:00Z", "repos": {"main": {"tree": "/x", "commit": "ed2508b"}},
            "knobs": {}, "devices": ["0", "1"], "run_id": "r"}))
        self.write_plan()

    def write_plan(self):
        lines = [",".join(["schema", "repo", "op", "status", "device", "nodes", "reason"])] + self.plan
        (self.path / "plan.csv").write_text("\n".join(lines) + "\n")

    def add(self, op, status=None, tables=None, log=None, plan="planned", reason="", attempt=1, repo="main", **marker):
        """Plan `op`; with `tables` or `log` write its run.log, with `status` its marker."""
        self.plan.append(f"1,{repo},{op},{plan},0,benchmark/test_{op}.py::test_{op},{reason if plan != 'planned' else ''}")
        self.write_plan()
        if tables is not None:
            log = run_log(op, tables, repo)
        if log is not None:
            self.log_path(op, attempt, repo).parent.mkdir(parents=True)
            self.log_path(op, attempt, repo).write_text(log)
        if status:
            (self.path / repo / op).mkdir(parents=True, exist_ok=True)
            (self.path / repo / op / ".complete").write_text(json.dumps({
                "schema": 1, "status": status, "finished": "2026-11-30T06:30:00Z", "inputs_sha256": "0", "attempt": attempt,
                "fallback": "", "reason": reason, "signature": "", "seconds": 2, "device": "1", **marker}))
        return self

    def log_path(self, op, attempt=1, repo="main"):
        return self.path / repo / op / "attempts" / str(attempt) / "run.log"


def summarize(*arguments, expect=0, environment=()):
    done = subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True,
                          env={**os.environ, "NO_COLOR": "1", **dict(environment)})
    assert done.returncode == expect, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def read_summary(path):
    with open(path / "summary.csv", newline="") as stream:
        return list(csv.DictReader(stream))


def columns(rows, *names):
    return [tuple(line[name] for name in names) for line in rows]


GOOD = title("abs") + HEAD + row("SUCCESS", "0.200000", "0.100000", "2.000")
