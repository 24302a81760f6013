"""The plan of a screen: which operators, on which device; plan.csv.

    schema,repo,op,status,device,nodes,reason
    1,main,abs,planned,6,benchmark/test_abs.py::test_abs,
    1,main,old_op,not_found,,benchmark/test_old.py::test_old,benchmark/test_old.py is not in /path/FlagGems
    1,main,hangs,dismissed,,benchmark/test_hangs.py::test_hangs,kills the driver
    1,main,mm,left_out,7,benchmark/test_mm.py::test_mm,BUDGET=2h: expected to take 80 s

Every planned operator is reported at the end, whatever became of it. Several nodes are joined by `;`.

Requirements: the standard library.
"""

import csv
import difflib
import io
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from common import inventory
from common.errors import UserError
from common.inputs import split_list
from common.state import SCHEMA, write_text_atomic
from screen import sharding
from screen.plan_file import COLUMNS, read_rows

PLANNED, DISMISSED, NOT_FOUND, LEFT_OUT = "planned", "dismissed", "not_found", "left_out"


@dataclass(frozen=True)
class PlannedOp:
    """One row of plan.csv."""
    repo: str
    op: str
    status: str
    device: str = ""
    nodes: tuple = ()
    reason: str = ""

    @property
    def key(self):
        return self.repo, self.op

    @property
    def name(self):
        return f"{self.repo}/{self.op}"


def read_inventories(trees, folder):
    """The operators that the inventories in `folder` list for the repos of `trees`. UserError for one that lacks."""
    ops = []
    for repo in trees:
        path = Path(folder) / f"inventory_{repo}.csv"
        if not path.is_file():
            raise UserError(f"{path}: missing: no inventory of {repo}; make one: `make inventory`")
        found = inventory.read_inventory(path)
        foreign = next((op for op in found if op.repo != repo), None)
        if foreign:
            raise UserError(f"{path}: {foreign.repo}/{foreign.op}: is no operator of {repo}; make it again: `make inventory`")
        ops += found
    return ops


def plan_ops(ops, trees, environ, ops_dir, dismissed):
    """`ops` minus the dismissed ones ({(repo, op): reason}), as OPS, MATCH and SHARD_INDEX choose them: rows without a device.

    UserError for an operator that is in no inventory (with what ops_dir/aliases.csv says, or close matches) and for a bad
    MATCH.
    """
    picked = _pick_ops(ops, split_list(environ.get("OPS")), Path(ops_dir) / "aliases.csv")
    chosen = _match_ops(picked, environ.get("MATCH"))
    part = sharding.read_part(environ.get("SHARD_INDEX"))
    if part:
        total = len(chosen)
        chosen = [op for op in chosen if sharding.is_in_part(f"{op.repo}/{op.op}", *part)]
        if not chosen:
            raise UserError(f"SHARD_INDEX: {environ['SHARD_INDEX']}: holds none of the {total} operators; use fewer parts")
    suite = environ.get("SUITE") or "benchmark"
    return [_plan_op(op, trees[op.repo], dismissed, suite) for op in sorted(chosen, key=lambda op: (op.repo, op.op))]


def keep_earlier_rows(planned, earlier, ops):
    """`planned` and what `earlier` (the plan in this directory so far) has beyond it, so that no row is lost.

    An earlier operator that the inventory (`ops`) has no more is not_found.
    """
    keys = {each.key for each in planned}
    known = {(op.repo, op.op) for op in ops}
    kept = [each if each.key in known else replace(each, status=NOT_FOUND, device="", reason="no longer in the inventory")
            for each in earlier if each.key not in keys]
    return sorted(planned + kept, key=lambda each: each.key)


def list_names(planned):
    """Names of the rows that are to run, in their order."""
    return [each.name for each in planned if each.status == PLANNED]


def assign(planned, shares):
    """The planned rows with the device that each has in `shares` ({device: names}, sharding.py)."""
    devices = {name: device for device, share in shares.items() for name in share}
    return [replace(each, device=devices.get(each.name, "")) for each in planned]


def write_plan(path, rows):
    """Write plan.csv, atomically."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for each in rows:
        writer.writerow([SCHEMA, each.repo, each.op, each.status, each.device, ";".join(each.nodes), each.reason])
    write_text_atomic(path, text.getvalue())


def read_plan(path):
    """The rows of plan.csv; [] if there is no such file. UserError INTEGRITY for a damaged one."""
    if not Path(path).exists():
        return []
    return [PlannedOp(row["repo"], row["op"], row["status"], row["device"],
                      tuple(node for node in (row.get("nodes") or "").split(";") if node), row["reason"])
            for row in read_rows(path)]


def _pick_ops(everything, wanted, aliases):
    """Those of `everything` that `wanted` names, as `op` or `repo/op`; all of them if it names none."""
    if not wanted:
        return everything
    by_name = defaultdict(list)
    for op in everything:
        by_name[op.op].append(op)
        by_name[f"{op.repo}/{op.op}"].append(op)
    unknown = [name for name in wanted if name not in by_name]
    if unknown:
        known_as = inventory.explain_name(aliases, unknown[0].rpartition("/")[2], {op.repo for op in everything})
        if known_as:
            raise UserError(f"OPS: {unknown[0]}: {known_as}")
        close = difflib.get_close_matches(unknown[0], sorted(by_name), n=5, cutoff=0.5)
        raise UserError(f"OPS: {unknown[0]}: in no inventory of {', '.join(sorted({op.repo for op in everything}))}; "
                        + (f"did you mean {', '.join(close)}?" if close else "the inventories are ops/inventory_*.csv"))
    keys = {(op.repo, op.op) for name in wanted for op in by_name[name]}
    return [op for op in everything if (op.repo, op.op) in keys]


def _match_ops(ops, pattern):
    if not pattern:
        return ops
    try:
        regex = re.compile(pattern)
    except re.error as error:
        raise UserError(f"MATCH: {pattern}: is no regular expression ({error}); an example: ^add") from None
    matched = [op for op in ops if regex.search(op.op)]
    if not matched:
        raise UserError(f"MATCH: {pattern}: matches none of {len(ops)} operators; try `--dry-run` without it for the names")
    return matched


def _plan_op(op, tree, dismissed, suite):
    row = PlannedOp(op.repo, op.op, PLANNED, nodes=tuple(op.test_nodes if suite == "tests" else op.nodes))
    if row.key in dismissed:
        return replace(row, status=DISMISSED, reason=dismissed[row.key])
    if not row.nodes:
        return replace(row, status=NOT_FOUND, reason="the inventory has no tests of it (SUITE=tests)")
    files = sorted({node.partition("::")[0] for node in row.nodes})
    missing = [name for name in files if not (tree / name).is_file()]
    if missing:
        return replace(row, status=NOT_FOUND, reason=f"{missing[0]} is not in {tree}; `make inventory` renews the list")
    return row
