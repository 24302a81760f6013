"""layout.py - where a campaign keeps what: the frozen directory, a run, a step. No step of it is done here.

    campaign/frozen/<name>-<digest>/      manifest.yaml tasks.json tools.json [shapes.yaml] .complete
    <run>/frozen/                         a copy of it
    <run>/campaign.json                   run id, start, device, sources, tools, the caller's switches
    <run>/tasks/<task>/a1/off/            one step: .complete, command.txt, driver.log, attempts/<n>/ (run_pytest.sh's own)
    <run>/tasks/<task>/record/off/        off's benchmark once more, before all: what it tunes, the others replay
    <run>/tasks/<task>/tests/off/         the correctness step of a cell
    <run>/matrix.csv rows.csv receipt.json report.md FILES SHA256SUMS      once sealed

A step is named <task>/<part>/<cell>; part is `tests`, `record`, or round and replicate: a1, a2, b1. An odd replicate of round a
runs the cells in order, an even one reversed; round b the other way round. So drift meets every cell alike.
"""
import json
from dataclasses import dataclass
from pathlib import Path

import yaml

from campaign.manifest import CELLS, Yaml12Loader, parse_manifest
from common.errors import INTEGRITY, UserError
from common.state import read_json
from common.trees import ROOT

SCHEMA = 1
FROZEN, TASKS, CAMPAIGN, TESTS, RECORD = "frozen", "tasks", "campaign.json", "tests", "record"
MANIFEST, TASK_MATRIX, TOOLS, SHAPES = "manifest.yaml", "tasks.json", "tools.json", "shapes.yaml"
SEALED = "SHA256SUMS"
FROZEN_ROOT = ROOT / "campaign" / "frozen"


@dataclass(frozen=True)
class Step:
    """One process: a benchmark or the correctness tests of one task in one cell."""
    task: str
    part: str
    cell: str

    @property
    def name(self):
        return f"{self.task}/{self.part}/{self.cell}"

    @property
    def is_tests(self):
        return self.part == TESTS

    @property
    def is_recording(self):
        """The one that records autotune configs; all other benchmarks of the task replay them. Nothing of it is timed or
        counted: a process that has tuned is not like one that has not (campaign/README.md)."""
        return self.part == RECORD

    @property
    def recording(self):
        return Step(self.task, RECORD, "off")


def list_tests(task):
    return [Step(task, TESTS, cell) for cell in CELLS]


def list_round(task, round_, replicates):
    """The steps of one round of a task, in their order; the first round begins with the record."""
    steps = [Step(task, RECORD, "off")] if round_ == "a" else []
    for replicate in range(1, replicates + 1):
        is_forward = (replicate % 2 == 1) == (round_ == "a")
        steps += [Step(task, f"{round_}{replicate}", cell) for cell in (CELLS if is_forward else CELLS[::-1])]
    return steps


def step_dir(run, step):
    return Path(run) / TASKS / step.task / step.part / step.cell


def attempt_dir(run, step, marker):
    """The run directory that a step's marker names."""
    return step_dir(run, step) / "attempts" / str(marker["attempt"])


@dataclass(frozen=True)
class Frozen:
    """A frozen directory, read. `tasks`: {task: {op, benchmark, tests, k, dtypes, ...}} in the manifest's order."""
    path: Path
    manifest: object
    tasks: dict
    tools: dict
    digest: str

    @property
    def order(self):
        """The tasks in the manifest's order."""
        return tuple(workload.task for workload in self.manifest.workloads)


def read_frozen(path):
    """Frozen of a directory. UserError INTEGRITY if it is none; that its files are unchanged is preflight's to say."""
    path = Path(path)
    marker, tasks, tools = (read_json(path / name) for name in (".complete", TASK_MATRIX, TOOLS))
    if not all(isinstance(found, dict) for found in (marker, tasks, tools)):
        raise UserError(f"{path}: is no frozen campaign; make one: make prepare MANIFEST=campaign/manifests/NAME.yaml", INTEGRITY)
    text = (path / MANIFEST).read_text(encoding="utf-8")
    manifest = parse_manifest(text, yaml.compose(text, Loader=Yaml12Loader), path / MANIFEST)
    return Frozen(path, manifest, tasks["tasks"], tools["files"], marker["inputs_sha256"])


def read_switches(run):
    """The caller's switches, as campaign.json has them; None if it has none, as older ones, or what no campaign writes."""
    known = read_json(run / CAMPAIGN)
    switches = known.get("switches") if isinstance(known, dict) else None
    return switches if isinstance(switches, dict) and all(isinstance(value, str) for value in switches.values()) else None


def is_sealed(path):
    """True if `path` or a directory above it is a sealed run, through links and `..` as well."""
    path = Path(path).resolve()
    return any((place / SEALED).exists() for place in (path, *path.parents))


def write_json_text(value):
    """JSON as all files of a campaign have it."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
