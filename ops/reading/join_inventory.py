"""join_inventory.py - what the source says and what pytest collected, joined by node id into the rows of an inventory.

PURPOSE  The pure half of rebuild_inventory.py: no file is written, nothing is run. The rows' columns are described in
         common/inventory.py.
INPUT    sources    {node: SourceTest} of scan_tests.py
         collected  {node: [{"id", "marks", "skips"}, ...]} of collect_tests.py; {} where nothing was collected
NEEDS    PyYAML (conf/operators.yaml).
"""

import re
from pathlib import Path

import yaml
from common.errors import UserError
from common.inventory import SCHEMA
from ops.reading.scan_tests import BUILTIN_MARKS


def op_marks(marks):
    """`marks` without pytest's own, each once, in pytest's order."""
    return tuple(dict.fromkeys(name for name in marks if name not in BUILTIN_MARKS))


def split_cases(node, cases, name_cases):
    """[(node id, marks)]: the function's id if all cases agree in what `name_cases` makes of their marks, else one per case.

    So that an operator's run holds none of another's cases.
    """
    if len({name_cases(op_marks(case["marks"])) for case in cases}) == 1:
        return [(node, op_marks(cases[0]["marks"]))]
    return [(f"{node}[{case['id']}]", op_marks(case["marks"])) for case in cases]


def name_op(node, marks, source):
    """The operator of a node: its first mark; else the only op_name in the source; else the function's name, shortened."""
    if marks:
        return marks[0]
    op_names = {name for bench in source.benches for name in bench.op_names} if source else set()
    if len(op_names) == 1 and re.fullmatch(r"\w[\w.]*", *op_names):     # it becomes a directory's name
        return op_names.pop()
    name = node.rpartition("::")[2].partition("[")[0]
    for prefix in ("test_", "perf_"):
        name = name.removeprefix(prefix)
    for suffix in ("_perf", "_benchmark"):
        name = name.removesuffix(suffix)
    return name or node


def source_marks(source):
    """Marks of a function as the source shows them. A single mark inside pytest.param stands for the function; of several
    it is unknown which case has which, so none is taken."""
    return source.marks or (source.param_marks if len(source.param_marks) == 1 else ())


def list_benchmarks(sources, collected):
    """[(op, mark, node id, SourceTest or None, `ast|collect|both`, collected cases)] of all benchmark nodes."""
    rows = []
    for node in {**sources, **collected}:
        source, cases = sources.get(node), collected.get(node, [])
        seen_by = "both" if source and cases else "collect" if cases else "ast"
        parts = split_cases(node, cases, lambda marks: marks[:1]) if cases else [(node, source_marks(source))]
        for part, marks in parts:
            rows.append((name_op(part, marks, source), marks[0] if marks else "", part, source, seen_by, cases))
    return sorted(rows, key=lambda row: (row[0], row[2]))


def map_tests(sources, collected):
    """{mark: [node ids]} of the accuracy tests. A test counts for every mark it carries, as with `pytest -m`."""
    found = {}
    for node in sorted({**sources, **collected}):
        if node in collected:
            parts = split_cases(node, collected[node], lambda marks: marks)
            # `;` separates the ids in the file
            parts = [(node if ";" in part else part, marks) for part, marks in parts]
        else:
            parts = [(node, sources[node].marks + sources[node].param_marks)]
        for part, marks in parts:
            for mark in marks:
                if part not in found.setdefault(mark, []):
                    found[mark].append(part)
    return found


def read_yaml_ids(tree):
    """{name: id}: the ids of conf/operators.yaml by themselves, and by the aten names that they are for."""
    path = Path(tree, "conf", "operators.yaml")
    if not path.is_file():
        return {}
    try:
        entries = (yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {})["ops"]
        names = {str(name): entry["id"] for entry in entries for name in entry.get("for") or []}
        return {**names, **{entry["id"]: entry["id"] for entry in entries}}
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise UserError(f"{path}: no list of operators under `ops` ({type(error).__name__}: {error}); mend the file") from None


def find_yaml_id(ids, mark, source):
    op_names = [name for bench in source.benches for name in bench.op_names] if source else []
    return next((ids[name] for name in [mark, *op_names, mark.lstrip("_")] if name and name in ids), "")


# ---- rows

def build_rows(repo, benchmarks, tests, ids):
    """The rows of the inventory, as dicts by column."""
    rows = []
    for op, mark, node, source, seen_by, cases in benchmarks:
        benches = source.benches if source else ()
        dtypes = [bench.dtypes for bench in benches]
        test_nodes = tests.get(mark or op, [])
        guards = source.guards if source else tuple(text for case in cases for text in case["skips"])
        rows.append({
            "schema": SCHEMA, "repo": repo, "op": op, "mark": mark, "yaml_id": find_yaml_id(ids, mark or op, source),
            "bench_node": node, "bench_file": node.partition("::")[0],
            "bench_class": join(bench.class_name for bench in benches),
            "op_name": join(name for bench in benches for name in bench.op_names),
            "dtypes": "" if None in dtypes else join(name for names in dtypes for name in names),
            "shape_key": join(bench.shape_key for bench in benches),
            "test_file": join(test.partition("::")[0] for test in test_nodes), "test_nodes": join(test_nodes),
            "skip_guard": "; ".join(dict.fromkeys(guards)),
            "source": seen_by, "verified": "no" if seen_by == "ast" else "yes",
        })
    return rows


def join(values):
    return ";".join(dict.fromkeys(value for value in values if value))


# ---- differences

def compare(sources, collected, rows, tests, ids):
    """{heading: [lines]} of what the two sides, and benchmarks and tests, do not have in common."""
    found = {name: [] for name in ("source only", "collected only", "other mark")}
    for folder in collected:
        seen = collected[folder]["functions"]
        skipped = {entry["node"]: entry["text"] for entry in collected[folder]["skipped"]}
        for node in sorted({*sources[folder], *seen}):
            if node not in seen:
                reason = skipped.get(node.partition("::")[0])
                found["source only"].append(node + (f" ({reason})" if reason else ""))
            elif node not in sources[folder]:
                found["collected only"].append(node)
            else:
                marks = [op_marks(case["marks"]) for case in seen[node]]
                if any(each != source_marks(sources[folder][node]) for each in marks):
                    found["other mark"].append(f"{node}: source {','.join(source_marks(sources[folder][node])) or '-'}, "
                                               f"collected {' | '.join(dict.fromkeys(','.join(m) or '-' for m in marks))}")
    marks = {row["mark"] or row["op"] for row in rows}
    found["no mark"] = [f"{row['bench_node']}: taken for {row['op']}" for row in rows if not row["mark"]]
    found["no accuracy test"] = sorted({row["op"] for row in rows if not row["test_nodes"]})
    found["no benchmark"] = sorted(mark for mark in tests if mark not in marks)
    found["no yaml id"] = sorted({row["op"] for row in rows if ids and not row["yaml_id"]})
    return found
