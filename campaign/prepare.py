#!/usr/bin/env python3
"""prepare.py - freeze a campaign: resolve every target of a manifest against the real tree, and digest what will run.

USAGE    campaign/prepare.py MANIFEST [--out DIR]              make prepare MANIFEST=campaign/manifests/host_rlc.yaml
INPUT    A manifest, its tree (FLAGGEMS_DIR, FLAGGEMS_VLLM_DIR, or the sample tree), ops/inventory_*.csv.
OUTPUT   DIR/<name>-<digest>/ (default DIR campaign/frozen):
           manifest.yaml   as given           tasks.json   {task: op, benchmark nodes, test nodes, k, dtypes, ...}
           shapes.yaml     the tree's core_shapes.yaml with the workloads' own shapes over it, if any has some
           tools.json      SHA-256 of the driver, run_pytest.sh, the plugins and the inventory
           .complete       written last
         and on stdout its path. The same manifest, tree and tools give the same directory: nothing is written twice.
EXIT     0 done; 2 the manifest is not valid, or targets are not resolved: each is named; 3 no such tree.
NEEDS    PyYAML, pydantic, git. Nothing of the tree is imported: nodes are read from its sources.
"""
import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import yaml

from campaign import layout
from campaign.manifest import read_manifest
from common.errors import REFUSED, UserError, run_main
from common.inventory import read_inventory
from common.state import SCHEMA, read_marker, sha256_file, sha256_json, sha256_text, write_marker, write_text_atomic
from common.trees import ROOT, SAMPLES, VARIABLES, find_tree

# What decides how a cell is run and judged. Output, help and tests are not among it.
TOOL_PATTERNS = ("run_pytest.sh", "common/*.py", "common/*.sh", "campaign/*.py", "plugins/*.py", "plugins/*/*.py", "warm/*.py",
                 "samples/**/*.py", "samples/**/*.yaml")


def find_manifest_tree(manifest, environ):
    """The tree that the manifest means. UserError REFUSED where there is none."""
    repo = manifest.source.repo
    if repo == "samples":
        return SAMPLES
    tree = find_tree(repo, environ)
    if tree is None:
        raise UserError(f"{VARIABLES[repo]}: unset: this manifest is about a checkout of {repo}; give one: "
                        f"{VARIABLES[repo]}=/path/to/checkout", REFUSED)
    return tree


def find_inventory(manifest, environ):
    """The inventory of the manifest's repo: in OPS_DIR, or ops/."""
    return Path(environ.get("OPS_DIR") or ROOT / "ops") / f"inventory_{manifest.source.repo}.csv"


def digest_tools():
    """{path: SHA-256} of the project's files that make a campaign what it is."""
    files = sorted({path for pattern in TOOL_PATTERNS for path in ROOT.glob(pattern)})
    return {path.relative_to(ROOT).as_posix(): sha256_file(path) for path in files}


# Targets -----------------------------------------------------------------------------------------------------------


def resolve_tasks(manifest, tree, inventory_file):
    """{task: facts} of all workloads. UserError that names every target which is not there."""
    ops = {op.op: op for op in read_inventory(inventory_file)}
    defined, errors, tasks = {}, [], {}
    for workload in manifest.workloads:
        found = resolve_workload(workload, ops, errors)
        for node in (*found["benchmark"], *found["tests"]):
            if not is_defined(tree, node, defined):
                errors.append(f"{workload.task}: {node}: is not in the tree {tree}")
        tasks[workload.task] = found
    if errors:
        raise UserError("MANIFEST: targets are not resolved:\n  " + "\n  ".join(errors))
    return tasks


def resolve_workload(workload, ops, errors):
    """Facts of one workload; adds what the inventory lacks to `errors`."""
    known = ops.get(workload.op)
    if known is None and not workload.inventory_override:
        errors.append(f"{workload.task}: op {workload.op}: is not in the inventory; correct it, or say why it is right all "
                      f"the same: inventory_override: REASON")
    benchmark = workload.benchmark or (known.nodes if known else ())
    outside = [node for node in workload.benchmark if known and node not in known.nodes]
    if outside and not workload.inventory_override:
        errors.append(f"{workload.task}: {outside[0]}: is no benchmark of {workload.op} in the inventory; correct it, or say "
                      f"why: inventory_override: REASON")
    tests = workload.correctness.nodes or (known.test_nodes if known else ())
    if not benchmark or not tests:
        errors.append(f"{workload.task}: has no {'tests' if benchmark else 'benchmark'}; name nodes")
    return {"op": workload.op, "benchmark": list(benchmark), "tests": list(tests), "k": workload.correctness.k,
            "dtypes": list(workload.dtypes), "canary": workload.canary, "timeout_s": workload.timeout_s,
            "environment": dict(workload.environment), "inventory_override": workload.inventory_override,
            "narrowing": workload.correctness.reason}


def is_defined(tree, node, defined):
    """True if the node's function (its parameters aside) stands in the tree's file. `defined` keeps what was read."""
    name, *parts = node.split("::")
    path = Path(tree) / name
    if path not in defined:
        try:
            source = ast.parse(path.read_text(encoding="utf-8"))
            defined[path] = {each.name for each in ast.walk(source) if isinstance(each, (ast.FunctionDef, ast.ClassDef))}
        except (OSError, SyntaxError, UnicodeDecodeError):
            defined[path] = set()
    return all(re.sub(r"\[.*", "", part) in defined[path] for part in parts)


# Shapes ------------------------------------------------------------------------------------------------------------


def merge_shapes(manifest, tree):
    """Text of the tree's core_shapes.yaml with the workloads' shapes under their operators' names, or None."""
    wanted = {}
    for workload in manifest.workloads:
        shapes = workload.shapes
        if shapes and wanted.setdefault(workload.op, shapes) != shapes:
            raise UserError(f"MANIFEST: {workload.task}: two workloads of {workload.op} have different shapes; one shape file "
                            f"serves them all, so give both the same")
    if not wanted:
        return None
    text = (Path(tree) / "benchmark" / "core_shapes.yaml").read_text(encoding="utf-8")
    merged = yaml.safe_load(text)
    for op, shapes in wanted.items():
        merged[op] = {**merged.get(op, {}), "shapes": shapes}
    return yaml.safe_dump(merged, sort_keys=True, default_flow_style=None)


def check_shapes(text, manifest, tree):
    """UserError if a benchmark of the tree could not unpack what `text` gives it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / layout.SHAPES
        path.write_text(text, encoding="utf-8")
        done = subprocess.run([sys.executable, ROOT / "ops" / "merge_shapes.py", "--check", path, "--repo", manifest.source.repo,
                               "--tree", tree], capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"MANIFEST: shapes: {done.stderr.strip().removeprefix('merge_shapes.py: error: ')}")


# Freezing ----------------------------------------------------------------------------------------------------------


def freeze(path, environ, out):
    """The frozen directory of the manifest `path`, made if it is not there yet."""
    manifest, text = read_manifest(path)
    tree = find_manifest_tree(manifest, environ)
    inventory_file = find_inventory(manifest, environ)
    shapes = merge_shapes(manifest, tree)
    if shapes is not None:
        check_shapes(shapes, manifest, tree)
    tasks = resolve_tasks(manifest, tree, inventory_file)
    files = {layout.MANIFEST: text,
             layout.TASK_MATRIX: layout.write_json_text({"schema": SCHEMA, "tasks": tasks}),
             layout.TOOLS: layout.write_json_text({"schema": SCHEMA, "files": digest_tools(),
                                                   "inventory": sha256_file(inventory_file)})}
    if shapes is not None:
        files[layout.SHAPES] = shapes
    digest = sha256_json({name: sha256_text(content) for name, content in files.items()})
    folder = Path(out) / f"{manifest.name}-{digest[:12]}"
    if not (folder / ".complete").exists():
        write_frozen(folder, files, digest)
    return folder


def write_frozen(folder, files, digest):
    shutil.rmtree(folder, ignore_errors=True)  # a killed prepare's; without `.complete` it is nothing
    folder.mkdir(parents=True)
    for name, content in files.items():
        write_text_atomic(folder / name, content)
    write_marker(folder, "frozen", digest, files={name: sha256_text(content) for name, content in sorted(files.items())})


def find_changed(folder):
    """["tools.json: changed", ...]: how a frozen directory differs from what its marker and its name say."""
    folder, marker = Path(folder), read_marker(folder) or {}
    expected = marker.get("files") or {}
    found = {path.name: sha256_file(path) for path in sorted(folder.iterdir()) if path.is_file() and path.name != ".complete"}
    changes = [f"{name}: {'missing' if name not in found else 'added' if name not in expected else 'changed'}"
               for name in sorted(found.keys() | expected.keys()) if found.get(name) != expected.get(name)]
    if sha256_json(expected) != marker.get("inputs_sha256"):
        changes.append(".complete: changed")
    return changes


def main(argv):
    parser = argparse.ArgumentParser(prog="prepare.py", description="freeze a campaign")
    parser.add_argument("manifest", nargs="?", type=Path, default=os.environ.get("MANIFEST") or None)
    parser.add_argument("--out", type=Path, default=layout.FROZEN_ROOT)
    options = parser.parse_args(argv)
    if options.manifest is None:
        raise UserError("MANIFEST: missing; give one, as MANIFEST=campaign/manifests/host_rlc.yaml")
    print(freeze(options.manifest, os.environ, options.out))


if __name__ == "__main__":
    run_main(main)
