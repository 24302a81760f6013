#!/usr/bin/env python3
"""rebuild_inventory.py - rebuild ops/inventory_<repo>.csv from a tree: which operators there are, and their nodes.

PURPOSE  Joins, by node id, what the source of benchmark/ and tests/ says (scan_tests.py) with what pytest collects
         (collect_tests.py), and adds conf/operators.yaml. The format is described in common/inventory.py.
USAGE    make inventory [REPO=main] [TREE=/path]
         ops/rebuild_inventory.py [--repo main|vllm|samples] [--tree DIR] [--out FILE] [--collect auto|yes|no]
                                  [--python PYTHON] [--timeout SECONDS]
           --collect auto   on an accelerator; the sample tree always, on the host device; otherwise the source only
           --collect yes    also without an accelerator, on the host device
           --collect no     read the source only: verified=no
INPUT    The tree: --tree, else FLAGGEMS_DIR, FLAGGEMS_VLLM_DIR and their defaults, else the sample tree.
OUTPUT   The file, written whole or not at all. On stderr, per line, what differs: nodes that only one side sees, marks on
         which they disagree, operators without accuracy test, tests without benchmark. On stdout the sum:
           ops/inventory_main.csv: 1081 operators, 1132 rows of 711 files, verified=yes (1188 cases collected);
           source only 0, collected only 0, other mark 3, no accuracy test 40, no benchmark 61, no yaml id 30
EXIT     0 done, 1 a module could not be read or collected (each is named; the old file stays), 2 usage,
         3 a verified inventory would be replaced by an unverified one, or there is no such Python
NEEDS    PyYAML; to collect also pytest, torch, triton, flag_gems. FlagGems at ed2508b: 3 s to read, 40 s to collect.
LIMITS   What is collected can depend on the card: a case may exist on one and not on another.
"""

import argparse
import csv
import io
import os
import subprocess
import sys
from collections import Counter, namedtuple
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "ops")]

import yaml  # noqa: E402
from collect_tests import CollectError, collect_tests  # noqa: E402
from common import devices, trees  # noqa: E402
from common.errors import BAD_RESULT, DONE, REFUSED, UserError, run_main  # noqa: E402
from common.inventory import COLUMNS, REPOS, SCHEMA, inventory_path, read_header  # noqa: E402
from common.state import write_text_atomic  # noqa: E402
from scan_tests import BUILTIN_MARKS, find_test_files, scan_tests  # noqa: E402

FOLDERS = ("benchmark", "tests")
Target = namedtuple("Target", "repo tree out")


# ---- what belongs to which operator

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
    if len(op_names) == 1:
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


# ---- the file

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


def format_inventory(header, rows):
    text = io.StringIO()
    text.writelines(f"# {key}: {value}\n" for key, value in header.items())
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read_commit(tree, repo):
    """The tree's commit, with `-dirty` if what is read here was changed; `unknown` outside Git."""
    if repo == "samples":
        return "part of this project"
    git = ["git", "-c", "safe.directory=*", "-C", str(tree)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    if head.returncode:
        return "unknown"
    changed = subprocess.run([*git, "status", "--porcelain", *FOLDERS, "conf"], capture_output=True, text=True).stdout
    return head.stdout.strip() + ("-dirty" if changed else "")


# ---- differences

def compare(sources, collected, rows, tests, ids):
    """{heading: [lines]} of what the two sides, and benchmarks and tests, do not have in common."""
    found = {name: [] for name in ("source only", "collected only", "other mark")}
    for folder in FOLDERS if collected else ():
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


def print_differences(found):
    for heading, lines in found.items():
        for line in lines:
            print(f"{heading}: {line}", file=sys.stderr)


# ---- the command

def choose_targets(args, environ):
    """The trees to read. UserError for one that is none."""
    if args.tree:
        if not trees.is_tree(args.tree):
            raise UserError(f"--tree: {args.tree}: is no checkout (no benchmark/conftest.py and benchmark/base.py in it)")
        tree = Path(args.tree).resolve()
        found = {args.repo or ("samples" if tree == trees.SAMPLES else "main"): tree}
    elif args.repo == "samples":
        found = {"samples": trees.SAMPLES}
    elif args.repo:
        found = {args.repo: trees.find_tree(args.repo, environ)}
        if found[args.repo] is None:
            raise UserError(f"--repo: {args.repo}: no checkout of it; give one: {trees.VARIABLES[args.repo]}=/path")
    else:
        found = trees.find_trees(environ)
    if args.out and len(found) > 1:
        raise UserError(f"--out: {args.out}: there are {len(found)} trees; choose one with --repo")
    return [Target(repo, tree, args.out or inventory_path(ROOT, repo)) for repo, tree in found.items()]


def choose_host(repo, how, python, environ):
    """Whether to collect, and whether on the host device."""
    if how == "no":
        return False, False
    if repo == "samples":
        return True, True
    has_accelerator = devices.ask_count(python, environ)["count"] > 0
    return has_accelerator or how == "yes", not has_accelerator


def refuse_downgrade(target, how):
    """An inventory that pytest has verified is not replaced by one that was only read, unless that was asked for."""
    if how == "auto" and target.out.is_file() and read_header(target.out).get("verified") == "yes":
        raise UserError(f"{target.out}: is verified, and without an accelerator the tree can only be read; keep it, or "
                        f"replace it with --collect no, or collect on the host device with --collect yes", REFUSED)


def rebuild(target, args, environ):
    """Rebuild one inventory; returns an exit status."""
    collects, on_host = choose_host(target.repo, args.collect, args.python, environ)
    if not collects:
        refuse_downgrade(target, args.collect)
    try:
        sources = {folder: scan_tests(target.tree, folder) for folder in FOLDERS}
        collected = collect_tests(target.tree, FOLDERS, python=args.python, environ=environ, timeout=args.timeout,
                                  on_host=on_host) if collects else {}
    except SyntaxError as error:
        return report_failure(target, [f"{error.filename}: line {error.lineno}: {error.msg}"])
    except CollectError as error:
        return report_failure(target, error.problems)
    seen = {folder: collected[folder]["functions"] if collected else {} for folder in FOLDERS}
    tests, ids = map_tests(sources["tests"], seen["tests"]), read_yaml_ids(target.tree)
    rows = build_rows(target.repo, list_benchmarks(sources["benchmark"], seen["benchmark"]), tests, ids)
    if not rows:
        return report_failure(target, [f"{target.tree}/benchmark: no test in it"])
    header = {"repo": target.repo, "commit": read_commit(target.tree, target.repo),
              "collected on": name_device(collected, on_host, environ), "verified": "yes" if collected else "no",
              "generator": "ops/rebuild_inventory.py"}
    write_text_atomic(target.out, format_inventory(header, rows))
    found = compare(sources, collected, rows, tests, ids)
    print_differences(found)
    print_sum(target, header, rows, collected, found)
    return DONE


def report_failure(target, problems):
    for problem in problems:
        print(f"not collected: {problem}", file=sys.stderr)
    stays = "the old file stays" if target.out.is_file() else "nothing is written"
    print(f"{target.out}: {len(problems)} failed, {stays}; mend or remove the modules named above", file=sys.stderr)
    return BAD_RESULT


def name_device(collected, on_host, environ):
    if not collected:
        return "nothing (source only)"
    if on_host:
        return f"host device {environ.get('HOST_TARGET') or devices.DEFAULT_TARGET}"
    return collected["benchmark"]["device"]


def print_sum(target, header, rows, collected, found):
    files = len(find_test_files(target.tree / "benchmark"))
    cases = f" ({collected['benchmark']['items']} cases collected)" if collected else ""
    counts = Counter({heading: len(lines) for heading, lines in found.items()})
    print(f"{target.out}: {len({row['op'] for row in rows})} operators, {len(rows)} rows of {files} files, "
          f"verified={header['verified']}{cases};", ", ".join(f"{name} {counts[name]}" for name in found))


def main(argv):
    parser = argparse.ArgumentParser(description="Rebuild ops/inventory_<repo>.csv from a tree.")
    parser.add_argument("--repo", choices=REPOS, help="default: every repo that has a tree")
    parser.add_argument("--tree", help="the checkout to read; default: FLAGGEMS_DIR, FLAGGEMS_VLLM_DIR or the sample tree")
    parser.add_argument("--out", type=Path, help="file to write; default: ops/inventory_<repo>.csv")
    parser.add_argument("--collect", choices=("auto", "yes", "no"), default="auto", help="ask pytest as well")
    parser.add_argument("--python", default=sys.executable, help="Python that collects; default: this one")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that collecting may take (default 300)")
    args = parser.parse_args(argv)
    return max(rebuild(target, args, os.environ) for target in choose_targets(args, os.environ))


if __name__ == "__main__":
    run_main(main)
