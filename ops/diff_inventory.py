#!/usr/bin/env python3
"""diff_inventory.py - what changed between two trees, or two inventories: operators and their benchmarks.

USAGE    make inventory-diff OLD=... NEW=...
         ops/diff_inventory.py [--repo REPO] OLD NEW
           OLD, NEW  a checkout (its sources are read, nothing is imported) or an inventory_<repo>.csv
INPUT    Of a checkout benchmark/, tests/ and conf/operators.yaml, as rebuild_inventory.py --collect no reads them.
OUTPUT   One line per change, sorted by kind and operator, then their numbers:
           added    vdot  benchmark/test_vdot.py::test_vdot
           removed  svd  benchmark/test_svd.py::test_svd
           renamed  less -> lt  benchmark/test_less.py::test_less
           moved    abs  benchmark/test_abs.py::test_abs -> benchmark/test_unary.py::test_abs
           guard    mm  benchmark/test_mm.py::test_mm: `-` -> `skipif flag_gems.vendor_name == 'hygon': #2885`
           opaque   benchmark/test_blas_perf_parallel.py::test_blas_benchmark: only collecting tells its operators
           3 added, 1 removed, 1 renamed, 1 moved, 1 guard, 1 opaque (ed2508b -> 0f3a1c2)
         renamed: a node that is there in both trees names another operator now, or an operator that is gone and one that is
                  new print the same table (op_name) from the same file or function
         moved:   an operator's node is gone, and a new one has the same function or file name
         opaque:  a function whose operators one side knows from pytest's parameters and the other only from the source
EXIT     0 done, 2 usage.  NEEDS PyYAML.  Two trees of FlagGems' size: 8 s.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common import inventory  # noqa: E402
from common.errors import UserError, run_main  # noqa: E402
from common.trees import is_tree  # noqa: E402
from ops.reading.join_inventory import build_rows, list_benchmarks, map_tests, read_yaml_ids  # noqa: E402
from ops.reading.scan_tests import scan_tests  # noqa: E402
from ops.reading.targets import read_commit  # noqa: E402

KINDS = ("added", "removed", "renamed", "moved", "guard", "opaque")


def read_side(path, repo):
    """(rows, commit) of a checkout or an inventory. UserError for anything else."""
    path = Path(path)
    if path.is_dir() and is_tree(path):
        try:
            sources = {folder: scan_tests(path, folder) for folder in ("benchmark", "tests")}
        except SyntaxError as error:
            raise UserError(f"{error.filename}: line {error.lineno}: is no Python ({error.msg}); mend the tree") from None
        rows = build_rows(repo, list_benchmarks(sources["benchmark"], {}), map_tests(sources["tests"], {}), read_yaml_ids(path))
        return rows, read_commit(path, repo)
    if path.is_file():
        return inventory.read_rows(path), inventory.read_header(path).get("commit", "unknown")
    raise UserError(f"{path}: is neither a checkout (benchmark/conftest.py and benchmark/base.py) nor an inventory; give one")


def function_of(node):
    """The node without a case's parameters."""
    return node.partition("[")[0]


def find_opaque(sides):
    """Functions whose operators only one side knows one by one, through pytest's parameters."""
    split = [{function_of(row["bench_node"]) for row in rows if "[" in row["bench_node"]} for rows in sides]
    plain = [{row["bench_node"] for row in rows if "[" not in row["bench_node"]} for rows in sides]
    return (split[0] & plain[1]) | (split[1] & plain[0])


def index_rows(rows, opaque):
    """{(operator, function-level node): row}, without opaque functions."""
    return {(row["op"], function_of(row["bench_node"])): row for row in rows if function_of(row["bench_node"]) not in opaque}


def compare_rows(old_rows, new_rows):
    """[(kind, operator, text)] of all changes, each row in at most one of added, removed, renamed and moved."""
    opaque = find_opaque((old_rows, new_rows))
    old, new = index_rows(old_rows, opaque), index_rows(new_rows, opaque)
    changes = [("opaque", "", f"{node}: only collecting tells its operators") for node in sorted(opaque)]
    for key in sorted(old.keys() & new.keys()):
        before, after = old[key]["skip_guard"], new[key]["skip_guard"]
        if before != after:
            changes.append(("guard", key[0], f"{key[0]}  {key[1]}: `{before or '-'}` -> `{after or '-'}`"))
    gone, fresh = [key for key in old if key not in new], [key for key in new if key not in old]
    for kind, is_pair, describe in (("renamed", is_renamed, describe_renamed), ("moved", is_moved, describe_moved)):
        for before in sorted(gone):
            after = next((key for key in sorted(fresh) if is_pair(before, key, old[before], new[key])), None)
            if after is not None:
                changes.append((kind, before[0], describe(before, after)))
                gone.remove(before)
                fresh.remove(after)
    changes += [("removed", op, f"{op}  {node}") for op, node in sorted(gone)]
    changes += [("added", op, f"{op}  {node}") for op, node in sorted(fresh)]
    return sorted(changes, key=lambda change: (KINDS.index(change[0]), change[1], change[2]))


def is_renamed(before, after, old, new):
    """Another operator of the same node, or of another node of the file or function that prints the same table."""
    if before[0] == after[0]:
        return False
    same_table = bool(old["op_name"]) and old["op_name"] == new["op_name"]
    return before[1] == after[1] or (same_table and (old["bench_file"] == new["bench_file"] or name_of(before) == name_of(after)))


def is_moved(before, after, old, new):
    """The same operator, whose node has kept its function's or its file's name."""
    same_file = Path(old["bench_file"]).name == Path(new["bench_file"]).name
    return before[0] == after[0] and (same_file or name_of(before) == name_of(after))


def name_of(key):
    return key[1].rpartition("::")[2]


def describe_renamed(before, after):
    node = before[1] if before[1] == after[1] else f"{before[1]} -> {after[1]}"
    return f"{before[0]} -> {after[0]}  {node}"


def describe_moved(before, after):
    return f"{before[0]}  {before[1]} -> {after[1]}"


def main(argv):
    parser = argparse.ArgumentParser(description="What changed between two trees or inventories.", allow_abbrev=False)
    parser.add_argument("old", metavar="OLD", help="a checkout or an inventory")
    parser.add_argument("new", metavar="NEW", help="a checkout or an inventory")
    parser.add_argument("--repo", choices=inventory.REPOS, default="main")
    args = parser.parse_args(argv)
    (old, old_commit), (new, new_commit) = read_side(args.old, args.repo), read_side(args.new, args.repo)
    changes = compare_rows(old, new)
    for kind, _, text in changes:
        print(f"{kind:8} {text}")
    counts = Counter(kind for kind, _, _ in changes)
    print(", ".join(f"{counts[kind]} {kind}" for kind in KINDS) + f" ({old_commit} -> {new_commit})")


if __name__ == "__main__":
    run_main(main)
