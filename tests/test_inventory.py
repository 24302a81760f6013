"""common/inventory.py: the file's checks, the lookup by hand, and the inventories that come with the project."""
import subprocess
import sys
from pathlib import Path

import pytest
from common.errors import UserError
from common.inventory import Op, inventory_path, read_header, read_inventory

ROOT = Path(__file__).resolve().parent.parent
HEADER = ("schema,repo,op,mark,yaml_id,bench_node,bench_file,bench_class,op_name,dtypes,shape_key,test_file,test_nodes,"
          "skip_guard,source,verified\n")
MUL = ("1,main,mul,mul,mul,benchmark/test_mul.py::test_mul,benchmark/test_mul.py,BinaryPointwiseBenchmark,mul,"
       "float16;float32,DEFAULT_SHAPES,tests/test_mul.py,tests/test_mul.py::test_mul;tests/test_mul.py::test_mul_0d,,both,yes\n")
MM = ("1,main,mm,mm,mm,benchmark/test_mm.py::test_mm,benchmark/test_mm.py,BlasBenchmark,mm,float16,BlasBenchmark,,,"
      "\"skipif vendor == 'x': slow, very\",both,yes\n")
MM_MORE = "1,main,mm,mm,mm,benchmark/test_blas.py::test_blas[mm],benchmark/test_blas.py,,,bfloat16,,,,,collect,yes\n"
MM_SEEN = "1,main,mm,mm,mm,benchmark/test_gone.py::test_mm,benchmark/test_gone.py,,,int8,,,,,ast,no\n"


def write(folder, text, name="inventory_main.csv"):
    path = folder / name
    path.write_text(text, newline="")
    return path


def lookup(*arguments):
    return subprocess.run([sys.executable, "-m", "common.inventory", *map(str, arguments)], cwd=ROOT, capture_output=True,
                          text=True)


def test_rows_become_operators(tmp_path):
    path = write(tmp_path, "# repo: main\n# commit: ed2508b\n" + HEADER + MUL + MM_MORE + MM)
    assert read_inventory(path) == [
        Op("main", "mm", ("benchmark/test_blas.py::test_blas[mm]", "benchmark/test_mm.py::test_mm"), (),
           ("bfloat16", "float16"), "skipif vendor == 'x': slow, very"),
        Op("main", "mul", ("benchmark/test_mul.py::test_mul",),
           ("tests/test_mul.py::test_mul", "tests/test_mul.py::test_mul_0d"), ("float16", "float32"), "")]
    assert read_header(path) == {"repo": "main", "commit": "ed2508b"}


def test_a_node_that_pytest_did_not_collect_is_left_out_beside_one_it_did(tmp_path):
    assert read_inventory(write(tmp_path, HEADER + MM + MM_SEEN))[0].nodes == ("benchmark/test_mm.py::test_mm",)
    assert read_inventory(write(tmp_path, HEADER + MM_SEEN))[0].nodes == ("benchmark/test_gone.py::test_mm",)


def test_windows_line_ends_and_a_byte_order_mark(tmp_path):
    path = write(tmp_path, ("\ufeff# repo: main\n" + HEADER + MUL).replace("\n", "\r\n"))
    assert [op.op for op in read_inventory(path)] == ["mul"]
    assert read_header(path) == {"repo": "main"}


@pytest.mark.parametrize("text, complaint", [
    (HEADER.replace(",bench_node", "") + MUL, "line 1: no column bench_node; make it again: `make inventory`"),
    ("# repo: main\n" + HEADER.replace("\n", ",colour\n") + MUL, "line 2: unknown column colour"),
    (HEADER + MUL.replace("1,", "2,", 1), "line 2: schema '2': this version reads 1"),
    ("# a\n" + HEADER + MM + MUL + MM, "line 5: mm benchmark/test_mm.py::test_mm: already in line 3; remove one"),
    (HEADER + MUL.replace(",both,yes", ",guess,yes"), "line 2: source 'guess': valid are ast, collect, both"),
    (HEADER + MUL.replace(",both,yes", ",both,maybe"), "line 2: verified 'maybe': valid are yes, no"),
    (HEADER + MUL + "1,main,mm\n", "line 3: 16 fields expected, the row has another number"),
    (HEADER + MUL.replace(",both,", ",both,,"), "line 2: 16 fields expected, the row has another number"),
    (HEADER + MUL.replace("mul,mul", ",mul", 1), "line 2: repo, op or bench_node is empty"),
    (HEADER + '1,main,"mm', "line 2: no CSV (unexpected end of data)"),
    ("", "line 1: no column schema"),
])
def test_a_bad_file_is_named_with_its_line(tmp_path, text, complaint):
    path = write(tmp_path, text)
    with pytest.raises(UserError) as caught:
        read_inventory(path)
    assert str(caught.value).startswith(f"{path}: {complaint}")
    assert caught.value.code == 2


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "inventory_main.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is no UTF-8 text"):
        read_inventory(path)


def test_lookup_prints_the_nodes_one_per_line(tmp_path):
    write(tmp_path, HEADER + MUL + MM + MM_MORE)
    done = lookup("nodes", "main", "mm", "--ops-dir", tmp_path)
    assert (done.returncode, done.stdout) == (0, "benchmark/test_mm.py::test_mm\nbenchmark/test_blas.py::test_blas[mm]\n")
    done = lookup("tests", "main", "mul", "--ops-dir", tmp_path)
    assert (done.returncode, done.stdout) == (0, "tests/test_mul.py::test_mul\ntests/test_mul.py::test_mul_0d\n")


def test_lookup_of_an_unknown_operator_names_close_ones(tmp_path):
    path = write(tmp_path, HEADER + MUL + MM)
    done = lookup("nodes", "main", "mul_", "--ops-dir", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"inventory.py: error: OP: mul_: not in {path}; did you mean mul?\n"
    done = lookup("nodes", "main", "zzz", "--ops-dir", tmp_path)
    assert done.returncode == 2 and "the file lists the 2 that there are" in done.stderr


def test_lookup_without_a_file(tmp_path):
    done = lookup("nodes", "vllm", "abs", "--ops-dir", tmp_path)
    assert done.returncode == 2
    assert done.stderr == (f"inventory.py: error: {tmp_path}/inventory_vllm.csv: no such file; make it again: "
                           f"`make inventory`\n")


# ---- what comes with the project

def test_the_samples_inventory_is_verified_and_covers_every_family():
    path = inventory_path(ROOT, "samples")
    assert read_header(path)["verified"] == "yes"
    ops = {op.op: op for op in read_inventory(path)}
    assert set(ops) == {
        "abs", "add", "mul", "mul_", "gelu", "bitwise_and_tensor", "_to_copy", "sum", "mean", "max", "argmax", "cumsum",
        "softmax", "softmax_backward", "layer_norm", "rms_norm", "mm", "addmm", "bmm", "rand", "dropout", "sort", "topk",
        "index_select", "gather", "masked_fill", "masked_select", "where_self", "scale_transpose", "conv2d"}
    assert all(op.nodes and op.test_nodes and op.dtypes for op in ops.values())
    assert ops["bitwise_and_tensor"].dtypes == ("int16", "int32", "bool")
    assert ops["conv2d"].skip_guard == "skip: sample of a skipped operator: never measured"
    assert ops["mul_"].nodes == ("benchmark/test_mul.py::test_mul_inplace",)


def test_the_main_inventory_holds_the_operators_of_flaggems():
    path = inventory_path(ROOT, "main")
    assert read_header(path)["repo"] == "main"
    ops = {op.op: op for op in read_inventory(path)}
    assert ops["add"].nodes == ("benchmark/test_add.py::test_add",)
    assert ops["_reshape_alias"].nodes == ("benchmark/test__reshape_alias.py::test__reshape_alias",)
    assert "tests/test_softmax.py::test_softmax" in ops["softmax"].test_nodes
    assert len(ops) > 1000
