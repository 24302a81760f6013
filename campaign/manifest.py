#!/usr/bin/env python3
"""manifest.py - read a campaign's manifest: the contract, checked whole before anything starts.

USAGE    campaign/manifest.py FILE              says what it would run, or each error with its line and a mend
         from campaign.manifest import read_manifest
INPUT    YAML, schema 1; the models below are the schema, campaign/README.md explains it. In short:
           schema: 1
           name: host_rlc
           production_default_policy: unchanged-off      # fixed: any other value is refused
           source: {repo: samples}
           device: {vendor: host, product: "host device"}
           cells: {off: {RLC_STOCK_ENHANCE: "0"}, mask0: {...}, candidate: {...}}
           timing: {timer: none}
           measured_launch_floor: 1
           workloads:
             - {task: rand, op: rand, dtypes: [float16], canary: reduction}
EXIT     0 it is valid, 2 it is not.
NEEDS    PyYAML, pydantic 2.
"""
import argparse
import re
import sys
from pathlib import Path
from typing import Annotated, Literal, Optional

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from common.errors import UserError, run_main

MOST_ERRORS = 20
CELLS = ("off", "mask0", "candidate")
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=80)]
Node = Annotated[str, Field(pattern=r"^[A-Za-z0-9_./-]+\.py(::[^\s:]+)+$")]
Dtype = Annotated[str, Field(pattern=r"^(u?int(8|16|32|64)|float(16|32|64)|float8_e\w+|bfloat16|bool|complex(64|128)|cfloat)$")]


def check_pattern(pattern):
    """A regular expression, or ValueError: re.error is none, and would end as a traceback."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return pattern


Pattern = Annotated[str, Field(min_length=1), AfterValidator(check_pattern)]
Environment = dict[Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")], str]
# What worker.py sets itself; a manifest that set it too would say something that is not done.
RESERVED = {"REPO", "FLAGGEMS_DIR", "FLAGGEMS_VLLM_DIR", "PYTHON", "RUN_DIR", "SUITE", "DTYPES", "SHAPES", "CHECK_SHAPES",
            "TUNER_CACHE", "REPLAY_FROM", "REPLAY_STRICT", "REPLAY_FORCE", "IR_META", "PYTEST_EXTRA", "TIMER", "CACHE", "LEVEL",
            "WARMUP_MS", "ITER_MS", "MODE", "DEVICE", "HOST_TARGET", "PLUGINS", "ATTEMPT", "FALLBACK"}


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Source(Model):
    """The tree. `commit` is required but for the sample tree, which is part of this project."""
    repo: Literal["main", "vllm", "samples"]
    commit: Annotated[str, Field(pattern=r"^([0-9a-f]{40})?$")] = ""

    @model_validator(mode="after")
    def check_commit(self):
        if (self.repo == "samples") != (not self.commit):
            raise ValueError("commit: give the 40 hex digits of the tree's commit (and none for the sample tree)")
        return self


class Device(Model):
    """The physical device: its vendor as flag_gems names it, or `host`, and a pattern for its product name. With `count`
    above 1 as many cards of one host, each task bound to one of them: no ratio is ever taken across cards."""
    vendor: Name
    product: Pattern
    count: Annotated[int, Field(ge=1, le=16)] = 1


class Timing(Model):
    """`timer: none`: no times are taken (the host device has none), and a reduction is X by rule."""
    timer: Literal["none", "graph", "event", "do_bench"]
    cache: Literal["cold", "warm"] = "cold"
    level: Literal["core", "comprehensive"] = "core"
    warmup_ms: Optional[Annotated[int, Field(ge=0)]] = None
    iter_ms: Optional[Annotated[int, Field(ge=1)]] = None


class Thresholds(Model):
    """band: a ratio inside 1 +- band is no effect. min_noise: what the timer resolves. Both as shares (0.01 is 1 %)."""
    band: Annotated[float, Field(gt=0, lt=1)] = 0.01
    level: Annotated[float, Field(ge=0.8, lt=1)] = 0.95
    min_noise: Annotated[float, Field(gt=0, lt=1)] = 0.0005


class Proof(Model):
    """Patterns per cell, each its own: `index` for the column `switch` of every variant, `log` for run.log of the correctness
    run. Empty where the compiler says nothing of itself: then disjoint variant hashes are the proof."""
    index: dict[Literal["off", "mask0", "candidate"], Pattern] = {}
    log: dict[Literal["off", "mask0", "candidate"], Pattern] = {}

    @field_validator("index", "log")
    @classmethod
    def check_patterns(cls, patterns):
        if patterns and (set(patterns) != set(CELLS) or len({*patterns.values()}) != len(CELLS)):
            raise ValueError("give a pattern of its own for each of off, mask0, candidate, or none at all")
        return patterns


class Correctness(Model):
    """Which tests. Without `nodes` and `k`: all that the inventory has for the operator. Both at once are refused."""
    nodes: tuple[Node, ...] = Field(default=(), strict=False)
    k: Annotated[str, Field(pattern=r"^[A-Za-z0-9_\[\].-]*$")] = ""
    reason: str = ""

    @model_validator(mode="after")
    def check_narrowing(self):
        if self.nodes and self.k:
            raise ValueError("nodes and k: give one of them, never both: it would be unclear which tests had run")
        if (self.nodes or self.k) and not self.reason:
            raise ValueError("reason: a narrowing says why, as `reason: the workload measures float16`")
        return self


class Workload(Model):
    """One task. `shapes`: [[4096, 4096], ...] in place of the tree's own. `canary`: it runs first and must show a
    reduction (`reduction`) or off's own code in the candidate (`identical`), or the campaign stops."""
    task: Name
    op: Name
    benchmark: tuple[Node, ...] = Field(default=(), strict=False)
    correctness: Correctness = Correctness()
    dtypes: tuple[Dtype, ...] = Field(min_length=1, strict=False)
    shapes: list[Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]] = []
    timeout_s: Optional[Annotated[int, Field(ge=1)]] = None
    canary: Literal["", "reduction", "identical"] = ""
    inventory_override: str = ""
    environment: Environment = {}


class Manifest(Model):
    """A campaign. `status` is for people: what has been done with it. `jobs`: correctness runs, and benchmarks without
    times, that run at once; whatever is timed runs alone. `correctness_options`: more words for pytest."""
    schema_: Literal[1] = Field(alias="schema")
    name: Name
    purpose: str
    status: str
    production_default_policy: Literal["unchanged-off"]
    source: Source
    versions: dict[str, str] = {}
    device: Device
    environment: Environment = {}
    cells: dict[Literal["off", "mask0", "candidate"], Environment]
    proof: Proof = Proof()
    timing: Timing
    replicates: Annotated[int, Field(ge=1, le=20)] = 1
    measured_launch_floor: Annotated[int, Field(ge=0)]
    thresholds: Thresholds = Thresholds()
    timeout_s: Annotated[int, Field(ge=1)]
    jobs: Annotated[int, Field(ge=1, le=64)] = 1
    correctness_options: str = ""
    workloads: tuple[Workload, ...] = Field(min_length=1, strict=False)

    @property
    def switches(self):
        """The variables that make the cells, sorted."""
        return tuple(sorted({name for cell in self.cells.values() for name in cell}))

    @property
    def has_times(self):
        return self.timing.timer != "none"

    @model_validator(mode="after")
    def check_whole(self):
        cells = [self.cells.get(name) for name in CELLS]
        if None in cells or len({tuple(sorted(cell.items())) for cell in cells}) != 3:
            raise ValueError("cells: off, mask0 and candidate must be there, and set different values")
        tasks = [workload.task for workload in self.workloads]
        twice = sorted({task for task in tasks if tasks.count(task) > 1})
        if twice:
            raise ValueError(f"workloads: task {twice[0]} is there twice; give each its own name")
        if all(workload.canary != "reduction" for workload in self.workloads):
            raise ValueError("workloads: none has `canary: reduction`; without one that must show a reduction a switch that "
                             "never engaged would look like 32 baselines")
        if self.device.vendor == "host" and self.has_times:
            raise ValueError("timing: the host device has no times; give `timer: none`")
        if self.device.vendor == "host" and self.device.count > 1:
            raise ValueError("device: the host device is one; remove count, `jobs` says how much runs at once")
        common = (self.environment, *(workload.environment for workload in self.workloads))
        places = [(cell, RESERVED) for cell in self.cells.values()]
        places += [(each, RESERVED | set(self.switches)) for each in common]
        for place, others in places:
            taken = sorted(others & place.keys())
            if taken:
                setter = "the campaign itself" if taken[0] in RESERVED else "the cells"
                raise ValueError(f"environment: {taken[0]} is set by {setter}; remove it")
        return self


class Yaml12Loader(yaml.SafeLoader):
    """Only true and false are booleans: a cell is called off."""


Yaml12Loader.yaml_implicit_resolvers = {first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:bool"]
                                        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()}
Yaml12Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:true|false)$"), list("tf"))


# Reading -----------------------------------------------------------------------------------------------------------


def read_manifest(path):
    """(Manifest, its text). UserError with a line for each error: file, line, key, what is wrong."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=Yaml12Loader)
        yaml.load(text, Loader=Yaml12Loader)  # tags and keys that are none
    except (FileNotFoundError, IsADirectoryError):
        raise UserError(f"MANIFEST: {path}: no such file; give one, as MANIFEST=campaign/manifests/host_rlc.yaml") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: is no YAML: {' '.join(str(error).split())}") from None
    return parse_manifest(text, node, path), text


def parse_manifest(text, node, path):
    lines = {}
    note_lines(node, (), lines)
    twice = lines.get("twice")
    if twice:
        raise UserError(f"{path}: line {twice[0]}: {twice[1]}: is there twice; remove one")
    try:
        return Manifest.model_validate(yaml.load(text, Loader=Yaml12Loader))
    except ValidationError as error:
        found = [describe_error(each, lines) for each in error.errors()]
        more = [f"and {len(found) - MOST_ERRORS} more"] if len(found) > MOST_ERRORS else []
        raise UserError("\n  ".join([f"{path}: is no valid manifest:", *found[:MOST_ERRORS], *more])) from None


def note_lines(node, path, lines):
    """Fill `lines`: {path of keys: line}, and under "twice" (line, key) of a key that a mapping holds twice."""
    if node is None:
        return
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if key.value in seen:
                lines["twice"] = key.start_mark.line + 1, key.value
            seen.add(key.value)
            lines[(*path, key.value)] = key.start_mark.line + 1
            note_lines(value, (*path, key.value), lines)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            note_lines(value, (*path, number), lines)


def describe_error(error, lines):
    """`line 12: workloads.0.dtype: unknown key; ...` for one of pydantic's errors."""
    place = tuple(part for part in error["loc"] if part != "[key]")
    known = place
    while known not in lines and known:
        known = known[:-1]
    line = lines.get(known, 1)
    where = ".".join(map(str, place)) or "manifest"
    what = {"extra_forbidden": "unknown key; remove it, or see campaign/README.md for those that there are",
            "missing": "is missing; add it"}.get(error["type"], error["msg"].removeprefix("Value error, "))
    value = "" if error["type"] in ("missing", "extra_forbidden", "value_error") else f": {error['input']!r}"
    return f"line {line}: {where}{value}: {what}"


def main(argv):
    parser = argparse.ArgumentParser(prog="manifest.py", description="check a campaign's manifest")
    parser.add_argument("file", type=Path)
    manifest, _ = read_manifest(parser.parse_args(argv).file)
    canaries = sum(bool(workload.canary) for workload in manifest.workloads)
    print(f"{manifest.name}: {len(manifest.workloads)} workloads ({canaries} canaries), floor {manifest.measured_launch_floor}, "
          f"timer {manifest.timing.timer}, replicates {manifest.replicates}; {manifest.status}")


if __name__ == "__main__":
    run_main(main)
