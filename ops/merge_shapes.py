#!/usr/bin/env python3
"""merge_shapes.py - merge a shape set over upstream's core_shapes.yaml, or check a shape file, before anything is run.

PURPOSE  Upstream takes an operator's shapes from the file's key op_name, else from the first class name of its bases that is
         a key. A file that lacks the class keys lets every BLAS operator unpack 2^30 as (b, m, n, k). So a set is merged
         over all of upstream's keys, and each of its shapes is checked against what the benchmarks unpack.
USAGE    ops/merge_shapes.py --set NAME [--tree DIR] [--repo REPO] --out FILE      make shapes SET=NAME
         ops/merge_shapes.py --check FILE [--tree DIR] [--repo REPO]
           NAME   a set of ops/shapes/, or a set file's path
           --tree default: FLAGGEMS_DIR and its defaults, else the sample tree; with --repo vllm FLAGGEMS_VLLM_DIR
INPUT    The set (ops/reading/shape_sets.py), benchmark/core_shapes.yaml and the sources in benchmark/ of the tree.
OUTPUT   FILE, the same bytes for the same input:
           # Merged by ops/merge_shapes.py; change ops/shapes/smoke.yaml and merge again.
           # set: smoke
           # set sha256: 4f0a...
           # upstream: benchmark/core_shapes.yaml
           # upstream sha256: 91bc...
           # commit: ed2508bcb5a03000e9774734201d840ba362cd11
           # keys of the set: BlasBenchmark mm
           # keys that no operator uses: topk (TopKBenchmark sets its own shapes)
           mm:
             shape_desc: "B, M, N, K"
             shapes:
               - [1, 16, 896, 896]  # Qwen2.5-0.5B o_proj, 16 tokens
         On stdout one line: what was merged, and the keys that no operator uses.
EXIT     0 done; 2 usage, or a shape that a benchmark cannot unpack, or (--check) a file that would break benchmarks: each is
         named, with the families that break; nothing is written then.
NEEDS    PyYAML.  LIMITS those of shape_form.py. On kunlunxin and enflame upstream ignores --shape_file.
"""

import argparse
import ast
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.errors import UserError, run_main  # noqa: E402
from common.state import sha256_file, write_text_atomic  # noqa: E402
from ops.reading import shape_uses  # noqa: E402
from ops.reading.shape_sets import find_set, read_set, read_shape_file  # noqa: E402
from ops.reading.targets import choose_targets, read_commit  # noqa: E402
from ops.scan_shapes import scan_uses  # noqa: E402

CORE = Path("benchmark") / "core_shapes.yaml"
MOST_FAMILIES = 12    # that a refusal spells out


def choose_tree(args, environ):
    """(repo, tree): --tree, else the repo's checkout, else the first that there is."""
    repo, tree, _ = choose_targets(argparse.Namespace(repo=args.repo, tree=args.tree, out=None), environ)[0]
    return repo, tree


def read_tree_uses(repo, tree):
    return shape_uses.apply_hand(scan_uses(tree), shape_uses.read_hand(repo))


def read_default_shapes(tree):
    """DEFAULT_SHAPES of benchmark/consts.py, each value as 1: only the lengths count. [] if they are not literal."""
    path = tree / "benchmark" / "consts.py"
    body = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
    for node in body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "DEFAULT_SHAPES":
            shapes = node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else []
            return [[1] * len(shape.elts) for shape in shapes if isinstance(shape, ast.List | ast.Tuple)]
    return []


# ---- merging

def merge_tables(core, entries):
    """Upstream's table with the set's keys in place of, or beside, its own."""
    return {**core, **entries}


def explain_unused(uses, table, entries):
    """{key: why} of the set's keys that no operator takes shapes from."""
    read = {use.find_key(table) for use in uses if use.reads != "no"}
    unused = {}
    for key in entries:
        if key not in read:
            named = [use for use in uses if key in (use.op_name, *use.classes)]
            own = next((use for use in named if use.reads == "no"), None)
            unused[key] = (f"{own.classes[0]} sets its own shapes" if own else
                           "every operator of it has a nearer key" if named else "no op_name or class of the tree")
    return unused


def describe_unused(unused):
    """`mm, bmm (no op_name or class of the tree), topk (TopKBenchmark sets its own shapes)`."""
    by_reason = {}
    for key, why in unused.items():
        by_reason.setdefault(why, []).append(key)
    return ", ".join(f"{', '.join(keys)} ({why})" for why, keys in by_reason.items())


def format_merged(head, table):
    """The merged file: `# key: value` lines, then one key after the other, each shape with where it comes from."""
    lines = [f"# {line}" for line in head]
    for key, entry in table.items():
        lines += ["", f"{key}:"]
        lines += [f"  shape_desc: {json.dumps(entry['shape_desc'])}"] if entry["shape_desc"] else []
        lines += ["  shapes:"]
        sources = entry.get("from") or [""] * len(entry["shapes"])
        lines += [f"    - {json.dumps(shape)}" + (f"  # {source}" if source else "")
                  for shape, source in zip(entry["shapes"], sources)]
    return "\n".join(lines) + "\n"


def describe_provenance(path, name, repo, tree, entries, unused):
    return [f"Merged by ops/merge_shapes.py; change {name_file(path)} and merge again.",
            f"set: {name}", f"set sha256: {sha256_file(path)}", f"repo: {repo}", f"upstream: {CORE.as_posix()}",
            f"upstream sha256: {sha256_file(tree / CORE)}", f"commit: {read_commit(tree, repo)}",
            f"keys of the set: {' '.join(entries)}", f"keys that no operator uses: {describe_unused(unused) or 'none'}"]


def name_file(path):
    """A path below the project relative to it: a merged file must not differ from machine to machine."""
    path = Path(path).resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def merge_set(args, environ):
    """Merge one set and write it."""
    repo, tree = choose_tree(args, environ)
    path = find_set(args.set)
    chosen, core, uses = read_set(path), read_shape_file(tree / CORE), read_tree_uses(repo, tree)
    entries = chosen["keys"]
    shapes = {key: entry["shapes"] for key, entry in entries.items()}
    faults = shape_uses.group_faults(shape_uses.find_set_faults(uses, shapes))
    if faults:
        raise UserError(f"{path}: " + "; ".join(f"{key}: {shape}: {text} by {shape_uses.name_uses(users)}"
                                                for key, shape, text, users in faults) + "; mend the entry")
    merged = merge_tables(core, entries)
    unused = explain_unused(uses, merged, entries)
    args.out.absolute().parent.mkdir(parents=True, exist_ok=True)
    write_text_atomic(args.out, format_merged(describe_provenance(path, chosen["set"], repo, tree, entries, unused), merged))
    notes = f"; no operator uses {describe_unused(unused)}" if unused else ""
    print(f"{args.out}: {chosen['set']}: {len(entries)} keys over {len(core)} of upstream's{notes}")


# ---- checking a file

def find_lacking(uses, core, table):
    """Class keys of upstream's file that benchmarks read and `table` lacks."""
    classes = {name for use in uses for name in use.classes}
    read = {use.find_key(core) for use in uses if use.reads != "no"}
    return sorted(key for key in core if key in classes and key in read and key not in table)


def check_file(args, environ):
    """UserError naming the lacking class keys and the families that would break, the BLAS ones first."""
    repo, tree = choose_tree(args, environ)
    core, table, uses = read_shape_file(tree / CORE), read_shape_file(args.check), read_tree_uses(repo, tree)
    shapes = {key: entry["shapes"] for key, entry in table.items()}
    reading = [use for use in uses if use.reads != "no"]
    families = {}
    for fault in shape_uses.find_faults(reading, shapes, read_default_shapes(tree)):
        families.setdefault(fault.use.classes[0], []).append(fault)
    lacking = find_lacking(uses, core, table)
    if not lacking and not families:
        print(f"{args.check}: {len(table)} keys, fit for the {len(reading)} uses of {repo} that read it")
        return
    order = sorted(families.values(), key=lambda faults: ("BlasBenchmark" not in faults[0].use.classes, faults[0].use.classes))
    lines = [f"lacks the class keys {', '.join(lacking)}"] if lacking else []
    lines += [f"breaks {describe_family(faults)}" for faults in order[:MOST_FAMILIES]]
    lines += [f"breaks {len(order) - MOST_FAMILIES} more families"] if len(order) > MOST_FAMILIES else []
    raise UserError(f"{args.check}: " + "\n  ".join(lines) + "\n  put your shapes into a set (ops/README.md) and merge it over "
                    "upstream's: ops/merge_shapes.py --set FILE --out MERGED")


def describe_family(faults):
    """`BlasBenchmark (mm, bmm and 9 more): the default shape has 1 value, 4 are unpacked (b, m, n, k)`."""
    ops = list(dict.fromkeys(fault.use.op_name or fault.use.where for fault in faults))
    more = f" and {len(ops) - 3} more" if len(ops) > 3 else ""
    origin = f"{faults[0].key} {faults[0].shape}" if faults[0].key else "the default shape"
    return f"{faults[0].use.classes[0]} ({', '.join(ops[:3])}{more}): {origin} {faults[0].text}"


def main(argv):
    parser = argparse.ArgumentParser(description="Merge a shape set over upstream's, or check a shape file.", allow_abbrev=False)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--set", help="a set of ops/shapes/, or a set file")
    what.add_argument("--check", type=Path, metavar="FILE", help="a shape file: would it break benchmarks?")
    parser.add_argument("--tree", help="checkout; default: FLAGGEMS_DIR and its defaults, else the sample tree")
    parser.add_argument("--repo", choices=("main", "vllm", "samples"))
    parser.add_argument("--out", type=Path, help="the merged file (with --set)")
    args = parser.parse_args(argv)
    if args.check:
        return check_file(args, os.environ)
    if not args.out:
        raise UserError("--out: missing; say where the merged file goes, as --out runs/shapes/smoke.yaml")
    return merge_set(args, os.environ)


if __name__ == "__main__":
    run_main(main)
