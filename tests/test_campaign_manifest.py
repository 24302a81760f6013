"""campaign/manifest.py and prepare.py: what is valid, each refusal with its line, freezing, and the shipped manifests."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MANIFESTS = ROOT / "campaign" / "manifests"
VALID = (MANIFESTS / "host_rlc.yaml").read_text()


def run_tool(name, *words, **variables):
    import os
    return subprocess.run([sys.executable, ROOT / "campaign" / f"{name}.py", *words], capture_output=True, text=True,
                          env={**{k: v for k, v in os.environ.items() if k not in ("OPS_DIR", "MANIFEST", "RUN")}, **variables})


def check(tmp_path, text):
    path = tmp_path / "m.yaml"
    path.write_text(text)
    return run_tool("manifest", path), path


@pytest.mark.parametrize("name, workloads, said", [
    ("host_rlc", 8, "timer none"), ("h200_rlc_stock", 32, "a stand-in for FlagTree's switch"), ("s5000_rlc", 32, "not run here")])
def test_the_shipped_manifests_are_valid(name, workloads, said):
    done = run_tool("manifest", MANIFESTS / f"{name}.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{name}: {workloads} workloads (2 canaries), floor 1, ") and said in done.stdout


REFUSALS = {  # what is replaced, by what, and what is said
    "policy": ("unchanged-off", "changed-on", "line 7: production_default_policy: 'changed-on': Input should be 'unchanged-off'"),
    "unknown key": ("timeout_s: 180", "timeout: 180", "timeout: unknown key; remove it"),
    "missing": ("timeout_s: 180\n", "", "timeout_s: is missing; add it"),
    "number as text": ("measured_launch_floor: 1", 'measured_launch_floor: "1"',
                       "measured_launch_floor: '1': Input should be a valid integer"),
    "text as number": ('{RLC_STOCK_ENHANCE: "0"}', "{RLC_STOCK_ENHANCE: 0}",
                       "cells.off.RLC_STOCK_ENHANCE: 0: Input should be a valid string"),
    "nodes and k": ("{k: dtype0,", "{k: dtype0, nodes: [tests/test_rand.py::test_accuracy_rand],",
                    "nodes and k: give one of them, never both"),
    "narrowing": (', reason: "the workload measures float16, dtype0 of utils.FLOAT_DTYPES"', "", "reason: a narrowing says why"),
    "blank in k": ("k: dtype0", "k: dtype0 and x", "correctness.k: 'dtype0 and x'"),
    "positive control": ("canary: reduction", "canary: identical", "none has `canary: reduction`"),
    "equal cells": ('RLC_STOCK_PHASE_MASK: "0"', 'RLC_STOCK_PHASE_MASK: "15"',
                    "off, mask0 and candidate must be there, and set different"),
    "a task twice": ("task: abs", "task: rand", "task rand is there twice"),
    "a key twice": ("jobs: 2", "jobs: 2\njobs: 3", "jobs: is there twice; remove one"),
    "times on the host": ("timer: none", "timer: graph", "the host device has no times"),
    "two hosts": ("product: host device", "product: host device, count: 2", "the host device is one; remove count"),
    "the campaign's own": ('cells:\n  off: {', 'cells:\n  off: {REPLAY_STRICT: "0", ',
                           "REPLAY_STRICT is set by the campaign itself"),
    "commit": ("source: {repo: samples}", "source: {repo: main}", "give the 40 hex digits"),
    "dtype": ("dtypes: [float16]", "dtypes: [float17]", "workloads.0.dtypes.0: 'float17'"),
    "no yaml": ("schema: 1", "schema: [1", "is no YAML"),
    "half a proof": ("index: {off: -e0-m0$, ", "index: {", "give a pattern of its own for each of off, mask0, candidate"),
    "a proof for two": ("mask0: -e1-m0$", "mask0: -e1-m15$", "give a pattern of its own for each of off, mask0, candidate"),
    "a proof of nothing": ("candidate: -e1-m15$", 'candidate: ""',
                           "proof.index.candidate: '': String should have at least 1 character"),
    "no pattern": ("off: -e0-m0$", "off: -e0(", "proof.index.off: is no regular expression: missing )"),
    "no pattern of a product": ("product: host device", 'product: "host (device"', "device.product: is no regular expression"),
    "a task with the switch": ("    canary: reduction", '    canary: reduction\n    environment: {RLC_STOCK_ENHANCE: "0"}',
                               "RLC_STOCK_ENHANCE is set by the cells; remove it"),
    "a key that is none": ("jobs: 2", "jobs: 2\n? [a]\n: b", "found unhashable key"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_a_manifest_is_refused_with_its_line(tmp_path, what):
    old, new, said = REFUSALS[what]
    assert old in VALID
    done, path = check(tmp_path, VALID.replace(old, new, 1))
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert str(path) in done.stderr and "line " in done.stderr and "Traceback" not in done.stderr


def test_off_is_a_word_and_no_boolean(tmp_path):
    done, _ = check(tmp_path, VALID)
    assert "\n  off: {RLC_STOCK_ENHANCE" in VALID and done.returncode == 0, done.stderr


def test_a_missing_file(tmp_path):
    done = run_tool("manifest", tmp_path / "no.yaml")
    assert done.returncode == 2 and "no.yaml: no such file; give one, as MANIFEST=" in done.stderr


# prepare -----------------------------------------------------------------------------------------------------------


def prepare(tmp_path, text=VALID):
    path = tmp_path / "m.yaml"
    path.write_text(text)
    return run_tool("prepare", path, "--out", tmp_path / "frozen")


def test_the_same_input_is_frozen_once(tmp_path):
    first, again = prepare(tmp_path), prepare(tmp_path)
    assert first.returncode == 0 and first.stdout == again.stdout, first.stderr
    folder = Path(first.stdout.strip())
    assert sorted(path.name for path in folder.iterdir()) == [".complete", "manifest.yaml", "tasks.json", "tools.json"]
    assert folder.name == "host_rlc-" + json.loads((folder / ".complete").read_text())["inputs_sha256"][:12]
    assert json.loads((folder / "tasks.json").read_text())["tasks"]["rand"] == {
        "op": "rand", "benchmark": ["benchmark/test_rand.py::test_rand"], "k": "dtype0", "dtypes": ["float16"],
        "canary": "reduction", "timeout_s": None,
        "tests": ["tests/test_rand.py::test_accuracy_rand", "tests/test_rand.py::test_rand_repeats_with_its_seed"],
        "environment": {}, "inventory_override": "", "narrowing": "the workload measures float16, dtype0 of utils.FLOAT_DTYPES"}
    other = prepare(tmp_path, VALID.replace("timeout_s: 180", "timeout_s: 181"))
    assert other.stdout != first.stdout


def test_shapes_go_over_the_trees_own(tmp_path):
    text = VALID.replace("    op: gelu\n", "    op: gelu\n    shapes: [[8, 16]]\n")
    folder = Path(prepare(tmp_path, text).stdout.strip())
    shapes = (folder / "shapes.yaml").read_text()
    assert "gelu:\n  shapes:\n  - [8, 16]\n" in shapes and "BlasBenchmark:" in shapes


TARGETS = {
    "no such op": ("op: gelu", "op: gleu", "gelu: op gleu: is not in the inventory"),
    "another op's node": ("op: gelu\n", "op: gelu\n    benchmark: [benchmark/test_abs.py::test_abs]\n",
                          "is no benchmark of gelu in the inventory"),
    "a node that is not there": ("op: gelu\n",
                                 "op: gelu\n    benchmark: [benchmark/test_gelu.py::test_x]\n    inventory_override: tried\n",
                                 "gelu: benchmark/test_gelu.py::test_x: is not in the tree"),
    "a test that is not there": ("op: gelu\n",
                                 "op: gelu\n    correctness: {nodes: [tests/test_gelu.py::test_x], reason: tried}\n",
                                 "gelu: tests/test_gelu.py::test_x: is not in the tree"),
    "shapes that do not fit": ("op: layer_norm\n", "op: layer_norm\n    shapes: [[8]]\n", "MANIFEST: shapes: "),
}


@pytest.mark.parametrize("what", TARGETS)
def test_a_target_that_cannot_be_resolved(tmp_path, what):
    old, new, said = TARGETS[what]
    done = prepare(tmp_path, VALID.replace(old, new, 1))
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert not (tmp_path / "frozen").exists()


def test_an_override_says_why_and_is_kept(tmp_path):
    done = prepare(tmp_path, VALID.replace("op: gelu\n", "op: gelu\n    benchmark: [benchmark/test_abs.py::test_abs]\n"
                                                         "    inventory_override: the sample tree's second name\n", 1))
    assert done.returncode == 0, done.stderr
    tasks = json.loads((Path(done.stdout.strip()) / "tasks.json").read_text())["tasks"]
    assert tasks["gelu"]["inventory_override"] == "the sample tree's second name"


def test_a_manifest_of_a_checkout_needs_one(tmp_path):
    done = run_tool("prepare", MANIFESTS / "h200_rlc_stock.yaml", "--out", tmp_path, FLAGGEMS_DIR=str(tmp_path))
    assert done.returncode == 2 and f"FLAGGEMS_DIR: {tmp_path}: is no checkout" in done.stderr
