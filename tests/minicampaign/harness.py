"""harness.py - a campaign of planted outcomes in a folder: a tree, its inventory, a manifest, stubs of Python and nvidia-smi.

    mini = MiniCampaign(folder, tasks, floor=1)
    mini.run()                      campaign/run.py to its end; the CompletedProcess
    mini.matrix()                   {task: row of matrix.csv}
    mini.tool("verify", mini.run_dir)
    run_golden(), run_small()       two sealed ones that the test files share (fixtures mini and small)

All of it runs in a copy of the project: a campaign refuses tools that change while it runs, and so one may edit meanwhile.
"""
import csv
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/minicampaign"), str(ROOT)]

from common.switches import list_switches
from run_cell import PLANTED
from shared import make_once

# All but the one that makes the campaign's own false alarms.
GOLDEN_TASKS = [task for task in PLANTED if task != "same_binary_faster"]
FEW = ["gain", "keeps_converts", "candidate_wrong", "inputs_only", "below_floor_only"]
PARTS = ("campaign", "common", "plugins", "ops", "samples", "tests/minicampaign", "warm", "run_pytest.sh")
COLUMNS = ("schema,repo,op,mark,yaml_id,bench_node,bench_file,bench_class,op_name,dtypes,shape_key,test_file,test_nodes,"
           "skip_guard,source,verified")
# Nothing of the caller's campaign reaches a test, nor do switches of his compiler.
FOREIGN = re.compile(r"^(MANIFEST|RUN|RUNS|TASK|FLOOR|DEVICES?|HOST_\w+|FLAGGEMS_\w+|OPS_DIR|RUN_PYTEST|PYTHON|PYTHONPATH|SWITCH"
                     r"|TRITON_CACHE_DIR|GEMSCREEN_TAG|\w+_VISIBLE_DEVICES|MINI_\w+|RLC_\w+)$")
PYTHON = """#!/bin/bash
case "$*" in
    *device_count*) echo 'GEMSCREEN {"count": '"${MINI_CARDS:-1}"', "vendor": "nvidia", "cards": []}' ;;
    *) echo 'GEMSCREEN {"python": "3.11.0", "triton": "3.6.0"}' ;;
esac
"""
SMI = """#!/bin/bash
case "$*" in
    *compute-apps*) cat "$MINI_FOLDER/users" 2>/dev/null || true ;;
    *) for card; do :; done  # the last word is the card
       throttle=0x0; [ ! -e "$MINI_FOLDER/throttle" ] || read -r throttle < "$MINI_FOLDER/throttle" || true
       echo "GPU-mini${card#0}, Mini Card, 1.0, 1000, 4, 345, 1980, 2619, 31, 70, $throttle" ;;
esac
"""
HEAD = """schema: 1
name: mini
purpose: Planted outcomes.
status: a test
production_default_policy: unchanged-off
source: {repo: main, commit: 00000000000000000000000000000000000000aa}
versions: {triton: 3.6.0}
device: {vendor: nvidia, product: Mini Card}
cells:
  off: {SWITCH: sw-e0-m0}
  mask0: {SWITCH: sw-e1-m0}
  candidate: {SWITCH: sw-e1-m15}
proof:
  index: {off: ^sw-e0-m0$, mask0: ^sw-e1-m0$, candidate: ^sw-e1-m15$}
  log: {off: SWITCH sw-e0-m0, mask0: SWITCH sw-e1-m0, candidate: SWITCH sw-e1-m15}
timing: {timer: graph}
timeout_s: 60
jobs: 2
"""


@make_once
def copy_project(folder):
    """A copy of what a campaign consists of, for this test session. Its run_cell.py names the Python that runs it: `python3`
    may be a shell script that takes longer than all else in a step (pyenv's is)."""
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", "frozen", "results"))
        else:
            shutil.copy2(ROOT / part, folder / part)
    edit(folder / "tests/minicampaign/run_cell.py", "#!/usr/bin/env -S python3 -S", f"#!{sys.executable} -S")
    return folder


@make_once
def run_golden(folder):
    """The sealed campaign of all planted outcomes, run once per session; `.done` is its CompletedProcess."""
    campaign = MiniCampaign(folder, GOLDEN_TASKS, candidate_hangs=3)
    campaign.done = campaign.run()
    assert campaign.done.returncode == 1, campaign.done.stdout + campaign.done.stderr  # sealed, with tasks in F and R
    return campaign


@make_once
def run_small(folder):
    """A sealed campaign of FEW at floor 0, as the published one, run once per session."""
    campaign = MiniCampaign(folder, FEW, floor=0)
    campaign.done = campaign.run()
    assert campaign.done.returncode == 1, campaign.done.stdout + campaign.done.stderr
    return campaign


class MiniCampaign:
    """`canaries`: {task: reduction | identical}; the default is gain's reduction."""

    def __init__(self, folder, tasks, floor=1, canaries=None, **timeouts):
        self.folder, self.tasks, self.project = Path(folder), tasks, copy_project()
        self.canaries = {"gain": "reduction"} if canaries is None else canaries
        self.run_dir = self.folder / "runs" / "mini"
        self.tree = self.folder / "tree"
        for name in ("benchmark", "tests"):
            (self.tree / name).mkdir(parents=True)
        for name in ("conftest.py", "base.py"):
            (self.tree / "benchmark" / name).write_text("")
        self.write_targets()
        self.write_manifest(floor, timeouts)
        for name, text in (("python", PYTHON), ("nvidia-smi", SMI)):
            path = self.folder / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)

    def write_targets(self):
        lines = ["# repo: main", "# commit: mini", "# verified: yes", COLUMNS]
        for op in self.tasks:
            bench, test = f"benchmark/test_{op}.py", f"tests/test_{op}.py"
            for path in (bench, test):
                (self.tree / path).write_text(f"def test_{op}():\n    pass\n")
            node = f"{bench}::test_{op}"
            lines.append(f"1,main,{op},{op},{op},{node},{bench},Benchmark,{op},float16,,{test},{test}::test_{op},,both,yes")
        (self.folder / "ops").mkdir()
        (self.folder / "ops" / "inventory_main.csv").write_text("\n".join(lines) + "\n")

    def write_manifest(self, floor, timeouts=()):
        timeouts = dict(timeouts)
        text = HEAD + f"measured_launch_floor: {floor}\nworkloads:\n"
        for task in self.tasks:
            canary = f", canary: {self.canaries[task]}" if task in self.canaries else ""
            limit = f", timeout_s: {timeouts[task]}" if task in timeouts else ""
            text += f"  - {{task: {task}, op: {task}, dtypes: [float16]{canary}{limit}}}\n"
        self.manifest = self.folder / "mini.yaml"
        self.manifest.write_text(text)

    def environ(self, **variables):
        switches = list_switches(os.environ)
        clean = {name: value for name, value in os.environ.items() if not FOREIGN.match(name) and name not in switches}
        own = {"FLAGGEMS_DIR": self.tree, "FLAGGEMS_COMMIT": "00000000000000000000000000000000000000aa",
               "OPS_DIR": self.folder / "ops", "RUN_PYTEST": self.project / "tests" / "minicampaign" / "run_cell.py",
               "PYTHON": self.folder / "bin" / "python", "MINI_FOLDER": self.folder,
               "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "TMPDIR": self.folder, "DEVICES": "0"}
        return {**clean, **{name: str(value) for name, value in {**own, **variables}.items() if value is not None}}

    @property
    def command(self):
        return [sys.executable, self.project / "campaign" / "run.py", self.manifest, "--run", self.run_dir,
                "--frozen", self.folder / "frozen"]

    def run(self, **variables):
        return subprocess.run(self.command, env=self.environ(**variables), capture_output=True, text=True, timeout=300)

    def start(self, **variables):
        with open(self.folder / "output", "ab") as output:
            return subprocess.Popen(self.command, env=self.environ(**variables), stdout=output, stderr=subprocess.STDOUT,
                                    start_new_session=True)

    def tool(self, name, *words):
        command = [sys.executable, self.project / "campaign" / f"{name}.py", *words]
        return subprocess.run(command, env=self.environ(), capture_output=True, text=True, timeout=120)

    def matrix(self, folder=None):
        with open((folder or self.run_dir) / "matrix.csv", newline="") as stream:
            return {row["task"]: row for row in csv.DictReader(stream)}


def edit(path, old, new):
    """Replace one place of a file that must be there."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.02)
