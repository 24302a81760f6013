"""inventory.py - the list of operators and of the benchmark and test nodes that belong to each.

PURPOSE  Read ops/inventory_<repo>.csv and ops/aliases.csv; look an operator's nodes up by hand.
USAGE    python -m common.inventory nodes REPO OP [--ops-dir DIR]     one node id per line (run_pytest.sh uses it)
         python -m common.inventory tests REPO OP [--ops-dir DIR]     the same for the accuracy tests
INPUT    `# key: value` lines, the header, then one row per operator and benchmark node:
           # repo: main
           # commit: ed2508bcb5a03000e9774734201d840ba362cd11
           # collected on: NVIDIA H200
           # verified: yes
           # generator: ops/rebuild_inventory.py
           schema,repo,op,mark,yaml_id,bench_node,...
           1,main,mul_,mul_,mul_,benchmark/test_mul.py::test_mul_inplace,...
         op            the operator's name: its first mark that is pytest's own
         mark          that mark; empty if the node has none and the name was derived
         yaml_id       its id in conf/operators.yaml; empty if it has none
         bench_node    node id relative to the tree; of the function, or of single cases where they differ in operator
         bench_class, op_name, dtypes, shape_key    what the source says; empty if it does not say it literally.
                       shape_key: key in core_shapes.yaml, DEFAULT_SHAPES, or `own` (the class sets its shapes)
         test_file, test_nodes    accuracy tests that carry the mark
         skip_guard    what can skip the node, in the source's words
         source        ast (read only), collect (pytest only), both;  verified: pytest has collected the node
         Several values in a field are separated by `;`.
         ops/aliases.csv, names that upstream writes in another way elsewhere:
           schema,repo,kind,name,op,reason
           1,main,id,trunc,trunc_,both benchmarks of test_trunc_.py have the mark trunc_
           1,main,id,clone,,no benchmark carries this mark or op_name
         kind          id: an id of conf/operators.yaml that is no operator; op is the operator, empty if it has no benchmark
                       op_name: what a table of the operator op is called;  op: the operator has no id in conf/operators.yaml
         A name may have several rows: div_mode is the id of two operators.
EXIT     0 done, 2 usage (unknown operator with close matches; a bad file, naming file and line)
NEEDS    The standard library.
"""

import argparse
import csv
import difflib
import io
import itertools
import re
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError, run_main

SCHEMA = "1"
REPOS = ("main", "vllm", "samples")
COLUMNS = tuple("schema,repo,op,mark,yaml_id,bench_node,bench_file,bench_class,op_name,dtypes,shape_key,test_file,"
                "test_nodes,skip_guard,source,verified".split(","))
SOURCES = ("ast", "collect", "both")
OP_NAME = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9_.+-]*")
ALIAS_COLUMNS = ("schema", "repo", "kind", "name", "op", "reason")
OPS_DIR = Path(__file__).resolve().parent.parent / "ops"


@dataclass(frozen=True)
class Op:
    """One operator of one repo. `nodes` and `test_nodes` are node ids relative to the tree, `dtypes` have no `torch.`."""
    repo: str
    op: str
    nodes: tuple
    test_nodes: tuple
    dtypes: tuple
    skip_guard: str


def inventory_path(root, repo):
    """Where the inventory of `repo` is kept under the project's directory `root`."""
    return Path(root) / "ops" / f"inventory_{repo}.csv"


def read_inventory(path):
    """The operators of an inventory, sorted by name.

    A node that only the source shows (`ast`) is left out where pytest has collected another node of the same operator:
    a node id that does not exist would end the whole call. UserError for a missing file or column, another schema, a
    value outside its set or a row twice, naming file and line.
    """
    grouped = {}
    for row in read_rows(path):
        grouped.setdefault((row["repo"], row["op"]), []).append(row)
    return [_make_op(repo, op, rows) for (repo, op), rows in sorted(grouped.items())]


def read_rows(path):
    """The rows of an inventory as dicts by column; the checks of read_inventory."""
    rows = []
    first_line = {}
    for line, row in read_table(path, COLUMNS, "make it again: `make inventory`"):
        if row["source"] not in SOURCES:
            raise UserError(f"{path}: line {line}: source {row['source']!r}: valid are {', '.join(SOURCES)}")
        if row["verified"] not in ("yes", "no"):
            raise UserError(f"{path}: line {line}: verified {row['verified']!r}: valid are yes, no")
        key = row["repo"], row["op"], row["bench_node"]
        if not all(key):
            raise UserError(f"{path}: line {line}: repo, op or bench_node is empty; make it again: `make inventory`")
        if row["repo"] not in REPOS:
            raise UserError(f"{path}: line {line}: repo {row['repo']!r}: valid are {', '.join(REPOS)}")
        if not OP_NAME.fullmatch(row["op"]):
            raise UserError(f"{path}: line {line}: op {row['op']!r}: is no operator's name (letters, digits and _.+-, no dot "
                            f"first): it names a directory")
        if key in first_line:
            raise UserError(f"{path}: line {line}: {row['op']} {row['bench_node']}: already in line {first_line[key]}; "
                            f"remove one")
        first_line[key] = line
        rows.append(row)
    return rows


def read_header(path):
    """The `# key: value` lines of an inventory as a dict."""
    try:
        with open(path, encoding="utf-8-sig") as stream:
            comments = [line[1:].partition(":") for line in itertools.takewhile(_is_comment, stream)]
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; make it: `make inventory`") from None
    return {key.strip(): value.strip() for key, _, value in comments}


def read_aliases(path):
    """[(line number, row)] of ops/aliases.csv, [] if there is none. UserError for other columns or another schema."""
    columns = ALIAS_COLUMNS
    return list(read_table(path, columns, f"the columns are {','.join(columns)}")) if Path(path).is_file() else []


def explain_name(path, name, repos):
    """What the alias table says of a name that is no operator of `repos`: `NAME is OP here: REASON`; "" if nothing."""
    rows = [row for _, row in read_aliases(path) if row["name"] == name and row["repo"] in repos and row["kind"] != "op"]
    ops = list(dict.fromkeys(row["op"] for row in rows if row["op"]))
    if ops:
        return f"{name} is {' and '.join(ops)} here: {rows[0]['reason']}"
    return f"{name} cannot be run: {rows[0]['reason']}" if rows else ""


def read_table(path, columns, mend):
    """Yields (line number, row) of the CSV below the comment lines."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; {mend}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is no UTF-8 text ({error.reason} at byte {error.start}); {mend}") from None
    lines = io.StringIO(text, newline="").readlines()
    above = sum(1 for _ in itertools.takewhile(_is_comment, lines))
    reader = csv.DictReader(lines[above:], strict=True)
    try:
        _check_columns(path, reader.fieldnames or [], columns, above + 1, mend)
        for row in reader:
            line = above + reader.line_num
            if None in row or None in row.values():
                raise UserError(f"{path}: line {line}: {len(columns)} fields expected, the row has another number; {mend}")
            if row["schema"] != SCHEMA:
                raise UserError(f"{path}: line {line}: schema {row['schema']!r}: this version reads {SCHEMA}; {mend}")
            yield line, row
    except csv.Error as error:
        raise UserError(f"{path}: line {above + reader.line_num + 1}: no CSV ({error}); {mend}") from None


def _is_comment(line):
    return line.startswith("#")


def _check_columns(path, found, columns, line, mend):
    missing = [name for name in columns if name not in found]
    unknown = [name for name in found if name not in columns]
    if missing:
        raise UserError(f"{path}: line {line}: no column {missing[0]}; {mend}")
    if unknown:
        raise UserError(f"{path}: line {line}: unknown column {unknown[0]}; {mend}")


def _make_op(repo, op, rows):
    rows = [row for row in rows if row["source"] != "ast"] or rows
    guards = [row["skip_guard"] for row in rows]
    return Op(repo, op, nodes=tuple(row["bench_node"] for row in rows), test_nodes=_join_fields(rows, "test_nodes"),
              dtypes=_join_fields(rows, "dtypes"), skip_guard="; ".join(dict.fromkeys(filter(None, guards))))


def _join_fields(rows, column):
    return tuple(dict.fromkeys(value for row in rows for value in row[column].split(";") if value))


def find_op(ops, name, path):
    """The operator `name` of `ops`. UserError with what the alias table says, else close matches, if there is none."""
    by_name = {op.op: op for op in ops}
    if name in by_name:
        return by_name[name]
    known_as = explain_name(Path(path).parent / "aliases.csv", name, {Path(path).stem.removeprefix("inventory_")})
    if known_as:
        raise UserError(f"OP: {name}: not in {path}; {known_as}")
    close = difflib.get_close_matches(name, sorted(by_name), n=5, cutoff=0.5)
    hint = f"did you mean {', '.join(close)}?" if close else f"the file lists the {len(by_name)} that there are"
    raise UserError(f"OP: {name}: not in {path}; {hint}")


def main(argv):
    parser = argparse.ArgumentParser(prog="python -m common.inventory", description="node ids of an operator, one per line")
    parser.add_argument("what", choices=("nodes", "tests"), help="benchmark nodes or accuracy tests")
    parser.add_argument("repo", choices=REPOS)
    parser.add_argument("op")
    parser.add_argument("--ops-dir", type=Path, default=OPS_DIR, help="directory with inventory_<repo>.csv (default: ops)")
    args = parser.parse_args(argv)
    path = args.ops_dir / f"inventory_{args.repo}.csv"
    op = find_op(read_inventory(path), args.op, path)
    for node in op.nodes if args.what == "nodes" else op.test_nodes:
        print(node)


if __name__ == "__main__":
    run_main(main)
