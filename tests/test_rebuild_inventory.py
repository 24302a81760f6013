"""ops/rebuild_inventory.py on small trees: what the source says, what pytest collects, and how both are joined.

Two rebuilds collect for real, through the host device; all others read the source only.
"""
import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
from common import devices
from inventory_tree import TREE, write_tree

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "ops" / "rebuild_inventory.py"

def rebuild(*arguments, cwd=None, **more):
    env = {name: value for name, value in os.environ.items() if name != "HOST_TARGET"}
    env.update({name: "" for name in devices.ALL_VARIABLES}, PYTHONDONTWRITEBYTECODE="1", **more)
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], env=env, capture_output=True, text=True, timeout=200,
                          cwd=cwd)


def read_rows(path):
    """({header key: value}, {(op, node): row})."""
    lines = path.read_text().splitlines()
    header = dict(line[2:].split(": ", 1) for line in lines if line.startswith("#"))
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    return header, {(row["op"], row["bench_node"]): row for row in rows}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return write_tree(tmp_path_factory.mktemp("tree"), TREE)


@pytest.fixture(scope="module")
def read_only(tree, tmp_path_factory):
    """(the finished process, header, rows) of a rebuild that reads the source only."""
    out = tmp_path_factory.mktemp("read") / "inventory.csv"
    done = rebuild("--tree", tree, "--out", out, "--collect", "no")
    assert done.returncode == 0, done.stderr
    return done, *read_rows(out)


@pytest.fixture(scope="module")
def collected(tree, tmp_path_factory):
    """The same with a collection on the host device."""
    out = tmp_path_factory.mktemp("collected") / "inventory.csv"
    done = rebuild("--tree", tree, "--out", out, "--collect", "yes")
    assert done.returncode == 0, done.stderr
    return done, *read_rows(out)


def fields(rows, op, node, *names):
    row = rows[op, f"benchmark/{node}"]
    return tuple(row[name] for name in names)


# ---- the source alone

def test_header_and_marks_of_the_source(read_only):
    done, header, rows = read_only
    assert header == {"repo": "main", "commit": "unknown", "collected on": "nothing (source only)", "verified": "no",
                      "generator": "ops/rebuild_inventory.py"}
    assert sorted(rows) == [
        ("_to_copy", "benchmark/test_to_copy.py::test_to_copy"),
        ("blas", "benchmark/test_blas.py::test_blas"),
        ("dynamic_op", "benchmark/test_dynamic.py::test_dynamic"),
        ("first", "benchmark/test_to_copy.py::test_both"),
        ("more_one", "benchmark/extra/test_more.py::test_more"),
        ("more_two", "benchmark/other/test_more.py::test_more"),
        ("never", "benchmark/test_dynamic.py::test_never"),
        ("relu", "benchmark/test_relu.py::test_relu"),
        ("relu_", "benchmark/test_relu.py::test_relu_inplace"),
        ("relu_backward", "benchmark/test_relu.py::test_relu_backward"),
        ("relu_out", "benchmark/test_relu.py::test_relu_out"),
        ("silu", "benchmark/test_silu.py::test_silu"),
        ("silu_and_mul", "benchmark/test_silu.py::TestGroup::test_forward"),
        ("to_copy_out", "benchmark/test_to_copy.py::test_to_copy_out"),
        ("unmarked", "benchmark/test_dynamic.py::test_perf_unmarked_benchmark"),
        ("vendor_op", "benchmark/test_vendor.py::test_vendor"),
    ]
    assert {(row["source"], row["verified"]) for row in rows.values()} == {("ast", "no")}
    assert "16 operators, 16 rows of 9 files, verified=no;" in done.stdout
    assert "no mark: benchmark/test_dynamic.py::test_dynamic: taken for dynamic_op\n" in done.stderr


@pytest.mark.parametrize("op, node, expected", [
    ("relu", "test_relu.py::test_relu", ("relu", "relu", "GenericBenchmark", "relu", "float16;float32", "relu")),
    ("relu_", "test_relu.py::test_relu_inplace", ("relu_", "", "GenericBenchmark", "relu_", "int16;int32", "DEFAULT_SHAPES")),
    ("relu_backward", "test_relu.py::test_relu_backward",
     ("relu_backward", "", "Benchmark", "relu_backward", "float16;float32", "DEFAULT_SHAPES")),
    # Assigned twice: what it stands for depends on the machine.
    ("relu_out", "test_relu.py::test_relu_out", ("relu_out", "", "Benchmark", "relu_out", "", "DEFAULT_SHAPES")),
    ("_to_copy", "test_to_copy.py::test_to_copy",
     ("_to_copy", "to_copy", "Benchmark", "_to_copy", "float16;float32", "DEFAULT_SHAPES")),
    ("silu", "test_silu.py::test_silu", ("silu", "", "OwnShapes", "silu", "float32", "own")),
    ("silu_and_mul", "test_silu.py::TestGroup::test_forward",
     ("silu_and_mul", "silu_and_mul", "OwnShapes", "silu_and_mul", "float16;float32", "own")),
    ("blas", "test_blas.py::test_blas", ("", "", "BlasBenchmark", "mm;bmm", "float16;float32", "BlasBenchmark")),
])
def test_what_the_source_says_of_a_benchmark(read_only, op, node, expected):
    assert fields(read_only[2], op, node, "mark", "yaml_id", "bench_class", "op_name", "dtypes", "shape_key") == expected


def test_skip_guards_in_the_sources_words(read_only):
    rows = read_only[2]
    assert fields(rows, "relu", "test_relu.py::test_relu", "skip_guard") == ("skipif 1 > 2: Issue #1: not working",)
    assert fields(rows, "relu_", "test_relu.py::test_relu_inplace", "skip_guard") == ("skip: never",)
    assert fields(rows, "relu_backward", "test_relu.py::test_relu_backward", "skip_guard") == ("in body: no base",)


def test_accuracy_tests_are_joined_by_mark(read_only):
    done, _, rows = read_only
    assert fields(rows, "relu", "test_relu.py::test_relu", "test_file", "test_nodes") == (
        "tests/test_relu.py", "tests/test_relu.py::TestMore::test_inside;tests/test_relu.py::test_accuracy")
    assert fields(rows, "silu", "test_silu.py::test_silu", "test_nodes") == ("",)
    assert "no accuracy test: silu\n" in done.stderr
    assert "no benchmark: orphan\n" in done.stderr


# ---- joined with what pytest collects

def test_collected_nodes_are_verified(collected):
    done, header, rows = collected
    assert header["collected on"] == "host device cuda:90" and header["verified"] == "yes"
    by_source = {source: sorted(op for (op, _), row in rows.items() if row["source"] == source)
                 for source in ("both", "collect", "ast")}
    assert by_source == {
        "both": ["_to_copy", "bmm", "dynamic", "first", "mm", "more_one", "more_two", "relu", "relu_", "relu_backward",
                 "relu_out", "silu", "silu_and_mul", "to_copy_out", "unmarked"],
        "collect": ["made_a", "made_b"],
        "ast": ["never", "vendor_op"]}
    assert {row["source"]: row["verified"] for row in rows.values()} == {"both": "yes", "collect": "yes", "ast": "no"}
    assert "19 operators, 19 rows of 9 files, verified=yes (17 cases collected);" in done.stdout


def test_cases_of_different_operators_are_named_one_by_one(collected):
    rows = collected[2]
    assert ("mm", "benchmark/test_blas.py::test_blas[mm]") in rows
    assert ("bmm", "benchmark/test_blas.py::test_blas[b mm]") in rows
    assert fields(rows, "mm", "test_blas.py::test_blas[mm]", "test_nodes") == ("tests/test_blas.py::test_blas[1]",)
    assert fields(rows, "relu", "test_relu.py::test_relu", "test_nodes") == (
        "tests/test_relu.py::TestMore::test_inside;tests/test_relu.py::test_accuracy",)


def test_differences_both_ways_are_reported(collected):
    done = collected[0]
    lines = done.stderr.splitlines()
    assert "source only: benchmark/test_dynamic.py::test_never" in lines
    assert "source only: benchmark/test_vendor.py::test_vendor (Skipped: no vendor library)" in lines
    assert "collected only: benchmark/test_dynamic.py::test_made_a" in lines
    assert "other mark: benchmark/test_dynamic.py::test_dynamic: source -, collected dynamic" in lines
    assert "other mark: benchmark/test_blas.py::test_blas: source -, collected mm | bmm" in lines
    assert "source only 2, collected only 2, other mark 3, no mark 1," in done.stdout


def test_a_function_that_only_pytest_knows_has_its_guard(collected):
    assert fields(collected[2], "made_a", "test_dynamic.py::test_made_a", "skip_guard", "bench_class") == ("skipif: made", "")


# ---- what must not happen

def test_a_collection_error_keeps_the_old_file_and_names_the_modules(tmp_path):
    files = {name: TREE[name] for name in ("benchmark/__init__.py", "benchmark/conftest.py", "benchmark/base.py",
                                           "benchmark/consts.py", "benchmark/test_relu.py", "tests/test_relu.py")}
    files["benchmark/test_vllm.py"] = "import no_such_vllm\nimport pytest\n@pytest.mark.a\ndef test_a(): pass\n"
    files["tests/test_broken.py"] = "raise RuntimeError('out of order')\n"
    write_tree(tmp_path, files)
    out = tmp_path / "inventory.csv"
    out.write_text("# verified: yes\nthe good one\n")
    done = rebuild("--tree", tmp_path, "--out", out, "--repo", "samples")
    assert done.returncode == 1
    assert out.read_text() == "# verified: yes\nthe good one\n"
    assert not list(tmp_path.glob("*.tmp"))
    assert "not collected: benchmark/test_vllm.py: ModuleNotFoundError: No module named 'no_such_vllm'" in done.stderr
    assert "not collected: tests/test_broken.py: RuntimeError: out of order" in done.stderr
    assert "2 failed, the old file stays" in done.stderr


def test_too_slow_a_collection_leaves_nothing(tree, tmp_path):
    out = tmp_path / "inventory.csv"
    done = rebuild("--tree", tree, "--out", out, "--repo", "samples", "--timeout", "0.2")
    assert done.returncode == 1
    assert "not collected: benchmark: too slow to collect; give it more time: --timeout" in done.stderr
    assert not out.exists() and "nothing is written" in done.stderr


def test_a_file_that_is_no_python(tmp_path):
    write_tree(tmp_path, {**{name: "" for name in ("benchmark/conftest.py", "benchmark/base.py")},
                          "benchmark/test_cut.py": "def test_cut(:\n"})
    out = tmp_path / "inventory.csv"
    done = rebuild("--tree", tmp_path, "--out", out, "--collect", "no")
    assert done.returncode == 1
    assert f"not collected: {tmp_path}/benchmark/test_cut.py: line 1: invalid syntax" in done.stderr
    assert not out.exists()


def test_a_tree_without_tests(tmp_path):
    write_tree(tmp_path, {"benchmark/conftest.py": "", "benchmark/base.py": ""})
    done = rebuild("--tree", tmp_path, "--out", tmp_path / "inventory.csv", "--collect", "no")
    assert done.returncode == 1 and "benchmark: no test in it" in done.stderr


def test_without_an_accelerator_a_verified_inventory_is_kept(tree, tmp_path):
    out = tmp_path / "inventory.csv"
    out.write_text("# verified: yes\n")
    done = rebuild("--tree", tree, "--out", out)
    assert done.returncode == 3
    assert f"error: {out}: is verified, and without an accelerator the tree can only be read" in done.stderr
    assert out.read_text() == "# verified: yes\n"
    out.write_text("# verified: no\n")
    assert rebuild("--tree", tree, "--out", out).returncode == 0
    assert read_rows(out)[0]["verified"] == "no"


@pytest.mark.parametrize("arguments, variables, status, complaint", [
    (["--tree", "/nowhere"], {}, 2, "--tree: /nowhere: is no checkout"),
    ([], {"FLAGGEMS_DIR": "/nowhere"}, 2, "FLAGGEMS_DIR: /nowhere: is no checkout"),
    (["--repo", "vllm"], {}, 2, "--repo: vllm: no checkout of it; give one: FLAGGEMS_VLLM_DIR=/path"),
    (["--repo", "cuda"], {}, 2, "invalid choice: 'cuda'"),
    (["--repo", "samples", "--out", "/nowhere/inventory.csv"], {}, 2,
     "--out: /nowhere/inventory.csv: there is no such directory"),
    (["--repo", "samples", "--python", "no-such-python"], {}, 3, "--python: no-such-python: no such program"),
])
def test_a_users_mistake_is_named(arguments, variables, status, complaint):
    done = rebuild(*arguments, **variables)
    assert (done.returncode, done.stdout) == (status, "")
    assert complaint in done.stderr and "Traceback" not in done.stderr


def test_the_commit_is_the_trees(tmp_path):
    write_tree(tmp_path, {**{name: TREE[name] for name in ("benchmark/conftest.py", "benchmark/base.py", "benchmark/consts.py",
                                                           "benchmark/test_relu.py")}})
    git = ["git", "-C", tmp_path, "-c", "user.name=x", "-c", "user.email=x@example.com"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "tree"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    out = tmp_path / "inventory.csv"
    assert rebuild("--tree", tmp_path, "--out", out, "--collect", "no").returncode == 0
    assert read_rows(out)[0]["commit"] == head
    (tmp_path / "benchmark" / "test_relu.py").write_text(TREE["benchmark/test_relu.py"] + "# changed\n")
    assert rebuild("--tree", tmp_path, "--out", out, "--collect", "no").returncode == 0
    assert read_rows(out)[0]["commit"] == f"{head}-dirty"


def test_a_relative_python_is_the_one_named_from_here(tmp_path):
    """pytest collects in another directory."""
    (tmp_path / "python").symlink_to(sys.executable)
    done = rebuild("--repo", "samples", "--python", "./python", "--collect", "yes", "--timeout", "0.1",
                   "--out", tmp_path / "out.csv", cwd=tmp_path)
    assert done.returncode == 1 and "too slow to collect" in done.stderr and "Traceback" not in done.stderr


def test_the_samples_inventory_is_up_to_date(tmp_path):
    out = tmp_path / "inventory.csv"
    assert rebuild("--repo", "samples", "--out", out, "--collect", "no").returncode == 0

    def strip(path):
        rows = read_rows(path)[1]
        return {key: {name: value for name, value in row.items() if name not in ("source", "verified")}
                for key, row in rows.items()}
    assert strip(out) == strip(ROOT / "ops" / "inventory_samples.csv")
