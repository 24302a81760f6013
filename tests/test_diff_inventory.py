"""ops/diff_inventory.py on two small trees, and on inventories."""
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

BASE = "class Benchmark:\n    pass\nclass UnaryPointwiseBenchmark(Benchmark):\n    pass\n"
TEST = '''
import pytest
from . import base

{marks}
def {name}():
    base.UnaryPointwiseBenchmark(op_name="{op}", torch_op=None)
'''


def make_tree(root, **tests):
    """A tree of benchmark files: file=[(function, op_name, decorators), ...]."""
    (root / "benchmark").mkdir(parents=True)
    for name, text in {"conftest.py": "", "base.py": BASE, "core_shapes.yaml": "Benchmark:\n  shapes:\n    - [4]\n"}.items():
        (root / "benchmark" / name).write_text(text)
    for file, functions in tests.items():
        text = "".join(TEST.format(name=name, op=op, marks="\n".join(marks)) for name, op, marks in functions)
        (root / "benchmark" / f"test_{file}.py").write_text(text)
    return root


def mark(op):
    return f"@pytest.mark.{op}"


HYGON = "@pytest.mark.skipif(flag_gems.vendor_name == 'hygon', reason='#2885')"
OLD = {
    "abs": [("test_abs", "abs", [mark("abs")]), ("test_abs_inplace", "abs_", [mark("abs_")])],
    "less": [("test_less", "less", [mark("less")])],
    "mm": [("test_mm", "mm", [mark("mm")])],
    "mul": [("test_mul", "mul", [HYGON, mark("mul")])],
    "svd": [("test_svd", "svd", [mark("svd")])],
    "trunc": [("test_trunc", "trunc", [mark("trunc_")])],
}
NEW = {
    "unary": [("test_abs", "abs", [mark("abs")])],
    "abs": [("test_abs_", "abs_", [mark("abs_")])],
    "less": [("test_less", "lt", [mark("lt")])],
    "mm": [("test_mm", "mm", [HYGON, mark("mm")])],
    "mul": [("test_mul", "mul", [mark("mul")])],
    "trunc": [("test_truncate", "trunc", [mark("trunc")])],
    "vdot": [("test_vdot", "vdot", [mark("vdot")])],
}
CHANGES = """\
added    vdot  benchmark/test_vdot.py::test_vdot
removed  svd  benchmark/test_svd.py::test_svd
renamed  less -> lt  benchmark/test_less.py::test_less
renamed  trunc_ -> trunc  benchmark/test_trunc.py::test_trunc -> benchmark/test_trunc.py::test_truncate
moved    abs  benchmark/test_abs.py::test_abs -> benchmark/test_unary.py::test_abs
moved    abs_  benchmark/test_abs.py::test_abs_inplace -> benchmark/test_abs.py::test_abs_
guard    mm  benchmark/test_mm.py::test_mm: `-` -> `skipif flag_gems.vendor_name == 'hygon': #2885`
guard    mul  benchmark/test_mul.py::test_mul: `skipif flag_gems.vendor_name == 'hygon': #2885` -> `-`
1 added, 1 removed, 2 renamed, 2 moved, 2 guard, 0 opaque (unknown -> unknown)
"""


def diff(*words):
    return subprocess.run([sys.executable, str(ROOT / "ops/diff_inventory.py"), *map(str, words)], capture_output=True, text=True)


@pytest.fixture
def trees(tmp_path):
    return make_tree(tmp_path / "old", **OLD), make_tree(tmp_path / "new", **NEW)


def test_every_kind_of_change(trees):
    done = diff(*trees)
    assert done.returncode == 0, done.stderr
    assert done.stdout == CHANGES


def test_nothing_changed(trees):
    assert diff(trees[0], trees[0]).stdout == "0 added, 0 removed, 0 renamed, 0 moved, 0 guard, 0 opaque (unknown -> unknown)\n"


def test_inventory_against_tree(trees, tmp_path):
    old, new = trees
    inventory = tmp_path / "inventory_main.csv"
    subprocess.run([sys.executable, str(ROOT / "ops/rebuild_inventory.py"), "--repo", "main", "--tree", str(old),
                    "--collect", "no", "--out", str(inventory)], check=True, capture_output=True)
    assert diff(inventory, old).stdout.splitlines() == [
        "0 added, 0 removed, 0 renamed, 0 moved, 0 guard, 0 opaque (unknown -> unknown)"]
    assert diff(inventory, new).stdout == CHANGES


HEADER = ("# repo: main\n# commit: {commit}\nschema,repo,op,mark,yaml_id,bench_node,bench_file,bench_class,op_name,dtypes,"
          "shape_key,test_file,test_nodes,skip_guard,source,verified\n")


def write_inventory(path, commit, rows):
    lines = [f"1,main,{op},{op},,{node},{node.partition('::')[0]},,,,,,,,both,yes" for op, node in rows]
    path.write_text(HEADER.format(commit=commit) + "\n".join(lines) + "\n")
    return path


def test_operators_that_only_collecting_tells_are_not_called_changes(tmp_path):
    file = "benchmark/test_blas.py"
    collected = write_inventory(tmp_path / "a.csv", "aaaaaaa", [
        ("mm", f"{file}::test_blas[mm]"), ("bmm", f"{file}::test_blas[bmm]"), ("abs", "benchmark/test_abs.py::test_abs[1]")])
    read = write_inventory(tmp_path / "b.csv", "bbbbbbb", [
        ("blas", f"{file}::test_blas"), ("mv", "benchmark/test_mv.py::test_mv")])
    assert diff(collected, read).stdout == (
        "added    mv  benchmark/test_mv.py::test_mv\n"
        "removed  abs  benchmark/test_abs.py::test_abs\n"
        "opaque   benchmark/test_blas.py::test_blas: only collecting tells its operators\n"
        "1 added, 1 removed, 0 renamed, 0 moved, 0 guard, 1 opaque (aaaaaaa -> bbbbbbb)\n")


def test_what_is_neither_is_refused(trees, tmp_path):
    done = diff(tmp_path / "none", trees[0])
    assert done.returncode == 2
    assert done.stderr == (f"diff_inventory.py: error: {tmp_path}/none: is neither a checkout (benchmark/conftest.py and "
                           "benchmark/base.py) nor an inventory; give one\n")


def test_tree_that_is_no_python_is_named(trees):
    (trees[1] / "benchmark/test_bad.py").write_text("def test_(:\n")
    done = diff(*trees)
    assert done.returncode == 2
    assert f"{trees[1]}/benchmark/test_bad.py: line 1: is no Python" in done.stderr
