"""ops/check_ops.py on the real ops/, and on copies of it with one fault each."""
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent


def check(ops_dir, *words, **options):
    return subprocess.run([sys.executable, str(ROOT / "ops/check_ops.py"), "--ops-dir", str(ops_dir), *words],
                          capture_output=True, text=True, **options)


@pytest.fixture
def ops(tmp_path):
    """A copy of ops/ without the scripts."""
    folder = tmp_path / "ops"
    shutil.copytree(ROOT / "ops", folder, ignore=lambda _, names: [n for n in names if n.endswith(".py") or n == "__pycache__"])
    return folder


def append(path, line):
    path.write_text(path.read_text() + line + "\n")


def expect(ops_dir, fault):
    """One fault, and this one."""
    done = check(ops_dir)
    assert done.returncode == 1, done.stdout + done.stderr
    assert fault in done.stdout
    assert done.stdout.splitlines()[-1].endswith(": 1 fault"), done.stdout


def test_ops_has_no_fault_and_needs_no_torch(tmp_path):
    for name in ("torch", "triton", "flag_gems"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')\n")
    done = check(ROOT / "ops", env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(" pins: no faults")
    assert "3 inventories with " in done.stdout and " 10 shape sets, " in done.stdout


@pytest.mark.parametrize("row, fault", [
    ("1,main,id,nothing_like_it,no_such_op,why", "main/nothing_like_it: points to no_such_op, which is no operator of "
     "inventory_main.csv; mend the row"),
    ("1,main,op_name,some_table,,why", "main/some_table: points to nothing, which is no operator"),
    ("1,main,id,trunc,trunc_,again", "main/trunc: is in line "),
    ("1,main,id,some_id,mm, ", "main/some_id: no reason; say why the names differ"),
    ("1,main,mark,some_id,mm,why", "main/some_id: kind mark: unknown; valid are id, op_name, op"),
    ("1,other,id,some_id,mm,why", "other/some_id: repo other: has no inventory"),
])
def test_bad_alias(ops, row, fault):
    append(ops / "aliases.csv", row)
    expect(ops, fault)


def remove(path, start):
    lines = path.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(start)]
    assert len(kept) == len(lines) - 1
    path.write_text("".join(kept))


def test_name_without_alias(ops):
    remove(ops / "aliases.csv", "1,main,op_name,trunc,")
    expect(ops, "main/trunc: is the table's name of trunc_ and has no alias of kind op_name; add a row with the reason")


def test_operator_without_id_needs_an_alias(ops):
    remove(ops / "aliases.csv", "1,main,op,fft,")
    expect(ops, "main/fft: has no id in conf/operators.yaml and no alias of kind op; add a row with the reason")


def test_table_without_its_header(ops):
    (ops / "aliases.csv").write_text("schema,repo,name\n")
    assert "aliases.csv: line 1: no column kind; the columns are schema,repo,kind,name,op,reason" in check(ops).stdout


@pytest.mark.parametrize("row, fault", [
    ("1,main,no_such_op,vendor=nvidia,r,e,2026-11-30,ed2508b", "main/no_such_op: is in no inventory; remove the row"),
    ("1,other,mm,vendor=nvidia,r,e,2026-11-30,ed2508b", "other/mm: is in no inventory"),
    ("1,main,mm,,r,e,2026-11-30,ed2508b", "main/mm: scope: empty: no vendor"),
    ("1,main,mm,vendor=nvidia,r,,2026-11-30,ed2508b", "main/mm: evidence is empty"),
])
def test_bad_dismissal(ops, row, fault):
    append(ops / "dismiss.csv", row)
    expect(ops, f"dismiss.csv: line 2: {fault}")


def test_good_dismissal(ops):
    append(ops / "dismiss.csv", "1,main,mm,vendor=nvidia;arch=9.0,r,e,2026-11-30,ed2508b")
    assert check(ops).returncode == 0


def write_set(ops, keys):
    entries = {key: {"shapes": [{"shape": shape, "from": "Llama-3-8B"} for shape in shapes]} for key, shapes in keys.items()}
    (ops / "shapes/mine.yaml").write_text(yaml.safe_dump({"schema": 1, "set": "mine", "about": "x", "keys": entries}))


@pytest.mark.parametrize("class_name, op, shape, fault", [
    ("BlasBenchmark", "mm", [4096, 4096, 4096], "has 3 values, 4 are unpacked (b, m, n, k)"),
    ("BlasBenchmark", "addmm", [4096, 4096], "has 2 values, 4 are unpacked (b, m, n, k)"),
    ("BaddbmmBenchmark", "baddbmm", [1, 2, 3, 4, 5], "has 5 values, 4 are unpacked (b, m, n, k)"),
    ("LinearBenchmark", "linear", [4096], "has 1 value, 4 are unpacked (b, m, n, k)"),
    ("MatMulAddBenchmark", "matmuladd", [4096], "has 1 value, 4 are unpacked (b, m, n, k)"),
    ("MatmulBiasActivationBenchmark", "matmul_bias_activation", [4096], "has 1 value, 4 are unpacked (b, m, n, k)"),
    ("SparseSampledAddmmBenchmark", "sparse_sampled_addmm", [1, 2, 3], "has 3 values, 4 are unpacked (b, m, n, k)"),
    ("GroupmmBenchmark", "grouped_mm", [1, 2, 3, 4], "has 4 values, 3 are unpacked (groups, n, k)"),
    ("AddrBenchmark", "addr", [4096], "has 1 value, at least 2 are needed (shape[0])"),
    ("AddrInplaceBenchmark", "addr_", [4096], "has 1 value, at least 2 are needed (shape[0])"),
    ("AddmvBenchmark", "addmv", [1, 4096, 4096], "has 3 values, 2 are unpacked (m, n)"),
    ("MvBenchmark", "mv", [4096], "has 1 value, 2 are unpacked (m, n)"),
    ("OuterBenchmark", "outer", [4096], "has 1 value, 2 are unpacked (m, n)"),
    ("MmSelfTransposeBenchmark", "mm_self_transpose", [1, 2, 3, 4], "has 4 values, 2 are unpacked (m, k)"),
])
def test_shape_that_upstreams_blas_class_cannot_take(ops, class_name, op, shape, fault):
    write_set(ops, {op: [shape]})
    done = check(ops)
    assert done.returncode == 1
    assert f"mine.yaml: {op}: {shape}: {fault} by {op} ({class_name}, benchmark/" in done.stdout


def test_class_key_of_a_set_must_fit_what_falls_to_it(ops):
    write_set(ops, {"BlasBenchmark": [[4096, 4096]]})
    done = check(ops)
    assert done.returncode == 1
    assert "mine.yaml: BlasBenchmark: [4096, 4096]: has 2 values, 4 are unpacked (b, m, n, k) by " in done.stdout
    assert "grouped_mm" not in done.stdout      # it has a key of its own in upstream's file


def test_shape_key_that_nothing_has(ops):
    write_set(ops, {"matmul_of_my_own": [[1, 2, 3, 4]]})
    expect(ops, "mine.yaml: matmul_of_my_own: is no op_name and no class of any repo")


def test_set_without_a_model(ops):
    write_set(ops, {"mm": [[1, 2, 3, 4]]})
    path = ops / "shapes/mine.yaml"
    path.write_text(path.read_text().replace("Llama-3-8B", "''"))
    expect(ops, "mine.yaml: mm: [1, 2, 3, 4]: from is empty; say which model the shape comes from")


@pytest.mark.parametrize("row, fault", [
    ("1,main,benchmark/test_x.py,CUDA,,verified,2026-10-09,,ed2508b,", "benchmark/test_x.py: verified without device"),
    ("1,main,benchmark/test_fft.py,CUDA is not available,,unverified,,,,", "'CUDA is not available': is pinned in line "),
    ("1,main,benchmark/test_x.py,CUDA,,dropped,,,,", "benchmark/test_x.py: status: dropped: unknown"),
    ("1,main,tests/test_grid_sample.py,other,,verified,2026-10-09,MTT S5000,ed2508b,", "set status to left"),
])
def test_bad_pin(ops, row, fault):
    append(ops / "mthreads_guards.csv", row)
    expect(ops, fault)


def test_bad_inventories(ops):
    path = ops / "inventory_main.csv"
    text = path.read_text()
    path.write_text(text.replace("1,main,abs,", "1,vllm,abs,", 1))
    assert "inventory_main.csv: abs: repo vllm: does not belong into this file" in check(ops).stdout
    path.write_text(text.replace("# commit:", "# comit:", 1))
    expect(ops, "inventory_main.csv: no line `# commit: ...` at its head; make it again: `make inventory`")
    path.write_text(text.replace(",bench_class,", ",class,", 1))
    assert "inventory_main.csv: line 6: no column bench_class" in check(ops).stdout


def test_every_fault_is_reported_at_once(ops):
    append(ops / "aliases.csv", "1,main,id,a,no_such_op,why")
    append(ops / "dismiss.csv", "1,main,b,vendor=nvidia,r,e,2026-11-30,ed2508b")
    done = check(ops)
    assert len(done.stdout.splitlines()) == 3
    assert done.stdout.splitlines()[-1].endswith(": 2 faults")


def test_sample_tree_agrees_with_ops():
    done = check(ROOT / "ops", "--tree", str(ROOT / "samples/flaggems"))
    assert done.returncode == 0, done.stdout


def test_stale_uses_and_ids_are_found_with_a_tree(ops, tmp_path):
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "samples/flaggems", tree)
    append(tree / "conf/operators.yaml", "  - id: brand_new\n    for:\n      - brand_new")
    (tree / "benchmark/test_mm.py").unlink()
    done = check(ops, "--tree", str(tree), "--repo", "samples")
    assert done.returncode == 1
    assert "aliases.csv: samples/brand_new: is an id of conf/operators.yaml without operator or alias; add a row" in done.stdout
    assert "shape_uses.csv: samples: 1 rows are not what " in done.stdout and "(mm); make it again" in done.stdout


def test_wrong_directories_are_refused(tmp_path):
    assert check(tmp_path / "none").returncode == 2
    done = check(ROOT / "ops", "--tree", str(tmp_path))
    assert (done.returncode, f"--tree: {tmp_path}: is no checkout" in done.stderr) == (2, True)
