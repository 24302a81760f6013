#!/usr/bin/env python3
"""check_ops.py - check everything in ops/ that a person keeps by hand, without an accelerator and without torch.

USAGE    make check-ops
         ops/check_ops.py [--ops-dir DIR] [--tree DIR [--repo REPO]]
           --tree  check the aliases, the shape uses and the pins against this tree's sources as well (5 s more)
INPUT    inventory_{main,vllm,samples}.csv, aliases.csv, dismiss.csv, shapes/*.yaml, shape_uses.csv, shape_hand.csv,
         mthreads_guards.csv in ops/.
CHECKS   inventory   schema, columns, rows twice, header; nodes whose file is not bench_file
         aliases     names twice, aliases that point nowhere, no reason; names that need an alias and have none: an op_name that
                     is no operator, an operator without id. With --tree: an id of conf/operators.yaml that nothing covers
         dismiss     scope, evidence, date, commit; operators that are in no inventory
         shapes      every set: words, where each shape is from, keys that are no op_name and no class of any repo, shapes that a
                     benchmark cannot unpack, in each repo that has the key
         guards      status, evidence; a pin twice; pins of files that are left in place
OUTPUT   One line per fault, naming file, value and mend, then a line of counts:
           ops/aliases.csv: line 7: main/trunc: points to trunc__, which is no operator of inventory_main.csv; mend the row
           ops: 3 inventories with 1182 operators, 132 aliases, 0 dismissals, 10 shape sets, 41 pins: 1 fault
EXIT     0 no fault, 1 faults, 2 usage.  NEEDS PyYAML.  Takes 1 to 2 s.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

from common import dismissals, inventory  # noqa: E402
from common.errors import BAD_RESULT, DONE, UserError, run_main  # noqa: E402
from common.trees import SAMPLES, is_tree  # noqa: E402
from mthreads_guard import pins as pin_list  # noqa: E402
from ops.reading import shape_sets, shape_uses  # noqa: E402

ALIAS_KINDS = ("id", "op_name", "op")
HEADER_KEYS = ("repo", "commit", "collected on", "verified", "generator")


class Report:
    """Faults as they are found, and counts for the last line."""

    def __init__(self):
        self.faults, self.counts = [], Counter()

    def add(self, text):
        self.faults.append(text)

    def guard(self, read, *arguments):
        """What `read` returns; None where it raises, which is a fault then."""
        try:
            return read(*arguments)
        except (UserError, ValueError, OSError) as error:
            self.add(str(error))
            return None


def check_inventories(ops_dir, report):
    """{repo: rows} of the inventories that can be read."""
    found = {}
    for path in sorted(ops_dir.glob("inventory_*.csv")):
        rows = report.guard(inventory.read_rows, path)
        if rows is None:
            continue
        repo, header = path.stem.removeprefix("inventory_"), inventory.read_header(path)
        for key in HEADER_KEYS:
            if not header.get(key):
                report.add(f"{path}: no line `# {key}: ...` at its head; make it again: `make inventory`")
        for row in rows:
            if row["repo"] != repo:
                report.add(f"{path}: {row['op']}: repo {row['repo']}: does not belong into this file")
            if row["bench_node"].partition("::")[0] != row["bench_file"]:
                report.add(f"{path}: {row['op']}: {row['bench_node']}: is not in {row['bench_file']}")
        found[repo] = rows
        report.counts["inventories"] += 1
        report.counts["operators"] += len({row["op"] for row in rows})
    return found


# ---- aliases

def check_aliases(path, inventories, report):
    """The rows of the alias table; faults of each, and names that need one and have none."""
    rows = report.guard(inventory.read_aliases, path) or []
    seen = {}
    for line, row in rows:
        where = f"{path}: line {line}: {row['repo']}/{row['name']}"
        if row["kind"] not in ALIAS_KINDS:
            report.add(f"{where}: kind {row['kind']}: unknown; valid are {', '.join(ALIAS_KINDS)}")
        if not row["reason"].strip():
            report.add(f"{where}: no reason; say why the names differ")
        key = row["repo"], row["kind"], row["name"], row["op"]
        if key in seen:
            report.add(f"{where}: is in line {seen[key]} already; remove one")
        seen[key] = line
        if row["repo"] not in inventories:
            report.add(f"{where}: repo {row['repo']}: has no inventory")
        elif row["op"] not in {each["op"] for each in inventories[row["repo"]]} | ({""} if row["kind"] == "id" else set()):
            report.add(f"{where}: points to {row['op'] or 'nothing'}, which is no operator of inventory_{row['repo']}.csv; "
                       "mend the row")
    for repo, ops in inventories.items():
        given = {(row["kind"], row["name"], row["op"]) for _, row in rows if row["repo"] == repo}
        for name in list_unaliased(ops, given):
            report.add(f"{path}: {repo}/{name}; add a row with the reason")
    report.counts["aliases"] = len(rows)
    return [row for _, row in rows]


def list_unaliased(ops, given):
    """What needs an alias and has none: tables under a name that is not the operator's, operators without an id."""
    names = {row["op"] for row in ops}
    for row in ops:
        for op_name in filter(None, row["op_name"].split(";")):
            is_other_ops = ";" in row["op_name"] and op_name in names   # a node that makes several operators' tables
            if row["mark"] and op_name != row["op"] and not is_other_ops and ("op_name", op_name, row["op"]) not in given:
                yield f"{op_name}: is the table's name of {row['op']} and has no alias of kind op_name"
    for row in {row["op"]: row for row in ops}.values():
        if row["mark"] and not row["yaml_id"] and ("op", row["op"], row["op"]) not in given:
            yield f"{row['op']}: has no id in conf/operators.yaml and no alias of kind op"


def check_tree_ids(tree, repo, inventories, aliases, path, report):
    """Faults: ids of the tree's conf/operators.yaml that neither an operator nor an alias covers, and aliases of gone ids."""
    from ops.reading.join_inventory import read_yaml_ids
    ids = set(read_yaml_ids(tree).values())
    covered = {row["op"] for row in inventories[repo]} | {row["name"] for row in aliases
                                                          if row["repo"] == repo and row["kind"] == "id"}
    for name in sorted(ids - covered):
        report.add(f"{path}: {repo}/{name}: is an id of conf/operators.yaml without operator or alias; add a row of kind id")
    for row in aliases:
        if row["repo"] == repo and row["kind"] == "id" and row["name"] not in ids:
            report.add(f"{path}: {repo}/{row['name']}: is no id of conf/operators.yaml any more; remove the row")


# ---- dismissals, shapes, pins

def check_dismissals(path, inventories, report):
    entries = report.guard(dismissals.read_dismissals, path) or []
    for entry in entries:
        if entry.op not in {row["op"] for row in inventories.get(entry.repo, ())}:
            report.add(f"{path}: line {entry.line}: {entry.repo}/{entry.op}: is in no inventory; remove the row or mend the name")
    report.counts["dismissals"] = len(entries)


def check_shapes(ops_dir, report):
    """Every set against the uses of every repo."""
    uses_path = ops_dir / "shape_uses.csv"
    uses = {repo: report.guard(shape_uses.read_uses, uses_path, repo) or [] for repo in inventory.REPOS}
    report.guard(shape_uses.read_hand, "main", ops_dir / "shape_hand.csv")
    names = {name for each in uses.values() for use in each for name in (use.op_name, *use.classes)}
    for path in sorted((ops_dir / "shapes").glob("*.yaml")):
        chosen = report.guard(shape_sets.read_set, path)
        if chosen is None:
            continue
        report.counts["shape sets"] += 1
        table = {key: entry["shapes"] for key, entry in chosen["keys"].items()}
        for key in table:
            if key not in names:
                report.add(f"{path}: {key}: is no op_name and no class of any repo; mend the key or make {uses_path.name} again")
        for repo, each in uses.items():
            for key, shape, text, users in shape_uses.group_faults(shape_uses.find_set_faults(each, table)):
                report.add(f"{path}: {key}: {shape}: {text} by {shape_uses.name_uses(users)} of {repo}; mend the shape")


def check_pins(path, report):
    seen = {}
    rows = report.guard(pin_list.read_pins, path) or []
    for line, pin in rows:
        key = pin.repo, pin.file, pin.reason
        if pin.find_fault():
            report.add(f"{path}: line {line}: {pin.file}: {pin.find_fault()}")
        if key in seen:
            report.add(f"{path}: line {line}: {pin.file} {pin.reason!r}: is pinned in line {seen[key]} already; remove one")
        seen[key] = line
    report.counts["pins"] = len(rows)


def check_tree(tree, repo, ops_dir, report):
    """Is ops/shape_uses.csv what the tree's sources say?"""
    from ops.scan_shapes import scan_uses
    path = ops_dir / "shape_uses.csv"
    now = shape_uses.apply_hand(scan_uses(tree), shape_uses.read_hand(repo, ops_dir / "shape_hand.csv"))
    kept = report.guard(shape_uses.read_uses, path, repo) or []
    stale = {(use.op_name, use.classes, use.reads, use.form) for use in kept} ^ {
        (use.op_name, use.classes, use.reads, use.form) for use in now}
    if stale:
        names = ", ".join(sorted({op_name or classes[0] for op_name, classes, *_ in stale})[:5])
        report.add(f"{path}: {repo}: {len(stale)} rows are not what {tree} says ({names}); make it again: ops/scan_shapes.py")


def choose_repo(args):
    """(tree, repo) of --tree and --repo, or (None, None)."""
    if args.tree is None:
        return None, None
    if not is_tree(args.tree):
        raise UserError(f"--tree: {args.tree}: is no checkout (no benchmark/conftest.py and benchmark/base.py in it); give one")
    tree = args.tree.resolve()
    return tree, args.repo or ("samples" if tree == SAMPLES else "main")


def main(argv):
    parser = argparse.ArgumentParser(description="Check everything in ops/.", allow_abbrev=False)
    parser.add_argument("--ops-dir", type=Path, default=ROOT / "ops")
    parser.add_argument("--tree", type=Path, help="a checkout to check against")
    parser.add_argument("--repo", choices=inventory.REPOS, help="which repo --tree is (default: main)")
    args = parser.parse_args(argv)
    tree, repo = choose_repo(args)
    if not args.ops_dir.is_dir():
        raise UserError(f"--ops-dir: {args.ops_dir}: no such directory")
    report, ops_dir = Report(), args.ops_dir
    inventories = check_inventories(ops_dir, report)
    aliases = check_aliases(ops_dir / "aliases.csv", inventories, report)
    check_dismissals(ops_dir / "dismiss.csv", inventories, report)
    check_shapes(ops_dir, report)
    check_pins(ops_dir / "mthreads_guards.csv", report)
    if tree and repo in inventories:
        check_tree_ids(tree, repo, inventories, aliases, ops_dir / "aliases.csv", report)
        check_tree(tree, repo, ops_dir, report)
    for fault in report.faults:
        print(fault)
    counts = report.counts
    print(f"{ops_dir}: {counts['inventories']} inventories with {counts['operators']} operators, {counts['aliases']} aliases, "
          f"{counts['dismissals']} dismissals, {counts['shape sets']} shape sets, {counts['pins']} pins: "
          f"{len(report.faults) or 'no'} fault{'s' if len(report.faults) != 1 else ''}")
    return BAD_RESULT if report.faults else DONE


if __name__ == "__main__":
    run_main(main)
