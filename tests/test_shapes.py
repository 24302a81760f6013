"""ops/merge_shapes.py and ops/scan_shapes.py on a small tree with upstream's interface, and the sets of ops/shapes/."""
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from shapes_tree import CORE, make_tree

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path / "tree")


def call(script, *words):
    return subprocess.run([sys.executable, str(ROOT / "ops" / script), *map(str, words)], capture_output=True, text=True)


def write_set(folder, **keys):
    """A set file, one shape per key."""
    entries = {key: {"shapes": [{"shape": shape, "from": "Llama-3-8B, a test"}]} for key, shape in keys.items()}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({"schema": 1, "set": "mine", "about": "a test", "keys": entries}))
    return path


def merge(tree, path):
    return call("merge_shapes.py", "--set", path, "--tree", tree, "--out", tree.parent / "merged.yaml")


BLAS_CASES = [
    ("BlasBenchmark", "mm", [1, 16, 4096, 4096], [16, 4096, 4096], "has 3 values, 4 are unpacked (b, m, n, k)"),
    ("BaddbmmBenchmark", "baddbmm", [2, 16, 64, 64], [2, 16, 64, 64, 1], "has 5 values, 4 are unpacked (b, m, n, k)"),
    ("LinearBenchmark", "linear", [2, 16, 64, 64], [16, 64], "has 2 values, 4 are unpacked (batch, m, n, k)"),
    ("GroupmmBenchmark", "grouped_mm", [8, 64, 64], [1, 8, 64, 64], "has 4 values, 3 are unpacked (groups, n, k)"),
    ("AddrBenchmark", "addr", [64, 64], [64], "has 1 value, at least 2 are needed (shape[0])"),
    ("VdotBenchmark", "vdot", [64], [64, 64], "has 2 values, 1 are unpacked (m)"),
    ("MvBenchmark", "mv", [64, 64], [1, 64, 64], "has 3 values, 2 are unpacked (m, n)"),
    ("GenericBenchmark2DOnly", "outer", [64, 64], [64], "has 1 value, 2 are unpacked (m, n)"),
    ("BlasBenchmark", "bmm_backward", [2, 16, 64, 64], [2, 16], "has 2 values, 4 are unpacked (b, m, n, k)"),
]


@pytest.mark.parametrize("class_name, op, good, bad, fault", BLAS_CASES)
def test_blas_class_refuses_what_it_cannot_unpack(tree, class_name, op, good, bad, fault):
    done = merge(tree, write_set(tree.parent, **{op: good}))
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load((tree.parent / "merged.yaml").read_text())[op]["shapes"] == [good]
    (tree.parent / "merged.yaml").unlink()
    done = merge(tree, write_set(tree.parent, **{op: bad}))
    assert done.returncode == 2
    assert f"mine.yaml: {op}: {bad}: {fault} by {op} ({class_name}, benchmark/test_blas.py:" in done.stderr
    assert not (tree.parent / "merged.yaml").exists()


def test_class_key_must_fit_all_operators_that_get_it(tree):
    done = merge(tree, write_set(tree.parent, BlasBenchmark=[64, 64]))
    assert done.returncode == 2
    # linear unpacks its own names; grouped_mm, addr and vdot have keys of their own in core_shapes.yaml
    assert "BlasBenchmark: [64, 64]: has 2 values, 4 are unpacked (b, m, n, k) by baddbmm (BaddbmmBenchmark, " in done.stderr
    assert "has 2 values, 4 are unpacked (batch, m, n, k) by linear (LinearBenchmark, " in done.stderr
    assert "grouped_mm" not in done.stderr and "addr" not in done.stderr and "vdot" not in done.stderr


@pytest.mark.parametrize("op, bad, fault", [
    ("conv2d", [1, 2, 3], "has 3 values, 10 are unpacked (batch, channels, h, w, out, kh, kw, stride, padding, groups)"),
    ("sdpa", [4, 32, 1024], "has 3 values, 4 are unpacked (batch, heads, sequence, head size"),
    ("abs", [64, [64]], "holds [64], and every value is a tensor's size"),
    ("eq", ["64"], "holds '64', and every value is a tensor's size"),
    ("ne", [64, 1.5], "holds 1.5, and every value is a tensor's size"),
    ("index", [64, 64, 64], "has 3 values, 2 are unpacked (input_shape, indices_shape)"),
    ("offset", [4, 4], "has 2 values, at least 3 are needed (shape[2])"),
    ("lambda", [4, 4, 4], "has 3 values, at least 4 are needed (shape[3])"),
    ("fit", [4, 4], "has 2 values, 3 are unpacked (tokens, heads, fp4)"),
    ("topk", [4, 4], "has 2 values, 3 are unpacked (m, n, k)"),
    ("clip", [[4]], "holds [4], and every value is a tensor's size"),
])
def test_other_classes_refuse_what_they_cannot_take(tree, op, bad, fault):
    done = merge(tree, write_set(tree.parent, **{op: bad}))
    assert done.returncode == 2
    assert f"{op}: {bad}: {fault}" in done.stderr


def test_what_cannot_be_followed_is_not_refused(tree):
    assert merge(tree, write_set(tree.parent, by_length=[1, 2, 3])).returncode == 0


def test_merged_file_keeps_every_key_and_says_where_it_is_from(tree):
    path = write_set(tree.parent, mm=[1, 16, 6144, 4096], conv3d=[1, 2], topk=[4, 64, 2], Benchmark=[64, 64])
    done = merge(tree, path)
    assert done.stdout == (f"{tree.parent}/merged.yaml: mine: 4 keys over 12 of upstream's; no operator uses conv3d (no op_name "
                           "or class of the tree), topk (TopKBenchmark sets its own shapes)\n")
    text = (tree.parent / "merged.yaml").read_text()
    merged, core = yaml.safe_load(text), yaml.safe_load(CORE)
    assert set(core) < set(merged)
    assert merged["BlasBenchmark"] == {"shapes": [[2, 384, 384, 384]], "shape_desc": "B, M, N, K"}
    assert merged["index"]["shapes"] == [[[32, 32], [[8], [2, 8]]]]
    assert merged["vdot"]["shapes"] == [[64]]
    assert merged["Benchmark"]["shapes"] == [[64, 64]]
    assert merged["mm"]["shapes"] == [[1, 16, 6144, 4096]]
    assert "    - [1, 16, 6144, 4096]  # Llama-3-8B, a test\n" in text
    assert text.splitlines()[:9] == [
        "# Merged by ops/merge_shapes.py; change mine.yaml and merge again.",
        "# set: mine", f"# set sha256: {hashlib.sha256(path.read_bytes()).hexdigest()}", "# repo: main",
        "# upstream: benchmark/core_shapes.yaml",
        f"# upstream sha256: {hashlib.sha256((tree / 'benchmark/core_shapes.yaml').read_bytes()).hexdigest()}",
        "# commit: unknown", "# keys of the set: Benchmark conv3d mm topk",
        "# keys that no operator uses: conv3d (no op_name or class of the tree), topk (TopKBenchmark sets its own shapes)"]
    assert merge(tree, path).returncode == 0
    assert (tree.parent / "merged.yaml").read_text() == text


def test_key_that_only_nearer_keys_cover_is_named(tree):
    done = merge(tree, write_set(tree.parent, MvBenchmark=[8, 8], mv=[8, 8]))
    assert "no operator uses MvBenchmark (every operator of it has a nearer key)" in done.stdout


@pytest.mark.parametrize("change, fault", [
    ({"schema": 2}, "mine.yaml: schema: 2: this version reads 1"),
    ({"set": "yours"}, "mine.yaml: set: yours: is not the file's name; write set: mine"),
    ({"extra": 1}, "mine.yaml: extra: unknown word; known are about, keys, schema, set"),
    ({"keys": {}}, "mine.yaml: keys: no keys"),
    ({"keys": {"mm": {"shapes": []}}}, "mine.yaml: mm: shapes: none"),
    ({"keys": {"mm": {"shapes": [{"shape": [1, 2, 3, 4]}]}}}, "mine.yaml: mm: from: missing"),
    ({"keys": {"mm": {"shapes": [{"shape": [1, 2, 3, 4], "from": " "}]}}}, "mm: [1, 2, 3, 4]: from is empty; say which model"),
    ({"keys": {"mm": {"shapes": [{"shape": 4, "from": "x"}]}}}, "mm: shape: 4: is no list of values"),
    ({"keys": {"mm": {"shapes": [{"shape": [1, 2, 3, 4], "from": "x"}] * 2}}}, "mm: [1, 2, 3, 4]: is there twice"),
    ({"keys": {"mm": {"shape": [1]}}}, "mine.yaml: mm: shape: unknown word"),
])
def test_bad_set_is_refused(tree, change, fault):
    path = write_set(tree.parent, mm=[1, 2, 3, 4])
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **change}))
    done = merge(tree, path)
    assert done.returncode == 2
    assert fault in done.stderr


def test_key_given_twice_is_refused(tree):
    path = write_set(tree.parent, mm=[1, 2, 3, 4])
    path.write_text(path.read_text() + "set: mine\n")
    assert "key 'set' is there twice" in merge(tree, path).stderr


def test_unknown_set_lists_those_that_there_are(tree):
    done = call("merge_shapes.py", "--set", "smok", "--tree", tree, "--out", tree.parent / "merged.yaml")
    assert done.returncode == 2
    assert "SET: smok: no such set; there are: core, dsv4-flash-decode, " in done.stderr


def test_out_and_tree_are_checked(tree, tmp_path):
    done = call("merge_shapes.py", "--set", "smoke", "--tree", tree)
    assert (done.returncode, done.stderr.startswith("merge_shapes.py: error: --out: missing")) == (2, True)
    done = call("merge_shapes.py", "--set", "smoke", "--tree", tmp_path, "--out", tmp_path / "x")
    assert (done.returncode, f"--tree: {tmp_path}: is no checkout" in done.stderr) == (2, True)


# ---- --check

def check(tree, table):
    (tree.parent / "shapes.yaml").write_text(table if isinstance(table, str) else yaml.safe_dump(table))
    return call("merge_shapes.py", "--check", tree.parent / "shapes.yaml", "--tree", tree)


def test_check_passes_upstreams_file_and_a_merged_one(tree):
    done = check(tree, CORE)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tree.parent}/shapes.yaml: 12 keys, fit for the 20 uses of main that read it\n"
    merge(tree, write_set(tree.parent, mm=[1, 16, 6144, 4096]))
    assert check(tree, (tree.parent / "merged.yaml").read_text()).returncode == 0


def test_check_refuses_a_file_without_class_keys(tree):
    table = {key: value for key, value in yaml.safe_load(CORE).items() if "Benchmark" not in key}
    done = check(tree, {**table, "mm": {"shapes": [[1, 16, 6144, 4096]]}})
    assert done.returncode == 2
    assert done.stderr == (
        f"merge_shapes.py: error: {tree.parent}/shapes.yaml: lacks the class keys AddrBenchmark, AttentionBenchmark, Benchmark, "
        "BlasBenchmark, Conv2DBenchmark, GenericBenchmark2DOnly, GroupmmBenchmark\n"
        "  breaks AddrBenchmark (addr): the default shape has 1 value, at least 2 are needed (shape[0])\n"
        "  breaks BaddbmmBenchmark (baddbmm): the default shape has 1 value, 4 are unpacked (b, m, n, k)\n"
        "  breaks BlasBenchmark (bmm_backward): the default shape has 1 value, 4 are unpacked (b, m, n, k)\n"
        "  breaks GroupmmBenchmark (grouped_mm): the default shape has 1 value, 3 are unpacked (groups, n, k)\n"
        "  breaks LinearBenchmark (linear): the default shape has 1 value, 4 are unpacked (batch, m, n, k)\n"
        "  breaks AttentionBenchmark (sdpa): the default shape has 1 value, 4 are unpacked (batch, heads, sequence, head size: "
        "torch.randn(shape) takes any, the operator four)\n"
        "  breaks Conv2DBenchmark (conv2d): the default shape has 1 value, 10 are unpacked (batch, channels, h, w, out, kh, kw, "
        "stride, padding, groups)\n"
        "  breaks GenericBenchmark2DOnly (outer): the default shape has 1 value, 2 are unpacked (m, n)\n"
        "  breaks MvBenchmark (mv): the default shape has 1 value, 2 are unpacked (m, n)\n"
        "  put your shapes into a set (ops/README.md) and merge it over upstream's: "
        "ops/merge_shapes.py --set FILE --out MERGED\n")


def test_check_names_the_one_missing_key_and_its_families(tree):
    table = yaml.safe_load(CORE)
    del table["BlasBenchmark"]
    done = check(tree, table)
    assert done.returncode == 2
    assert ("lacks the class keys BlasBenchmark\n"
            "  breaks BaddbmmBenchmark (baddbmm): Benchmark [1073741824] has 1 value") in done.stderr
    assert "Conv2DBenchmark" not in done.stderr


def test_check_refuses_a_wrong_length_under_a_class_key(tree):
    table = yaml.safe_load(CORE)
    table["BlasBenchmark"]["shapes"] = [[384, 384, 384]]
    done = check(tree, table)
    assert done.returncode == 2
    assert "breaks BlasBenchmark (bmm_backward, mm): BlasBenchmark [384, 384, 384] has 3 values, 4 are unpacked" in done.stderr
    assert "lacks" not in done.stderr


@pytest.mark.parametrize("text, fault", [
    ("", "is no shape file: no keys"), ("mm: [1, 2]", "mm: has no list of lists under `shapes`"),
    ("mm: {shapes: [1, 2]}", "mm: has no list of lists under `shapes`"), ("a: [", "is no YAML"),
])
def test_check_refuses_what_is_no_shape_file(tree, text, fault):
    done = check(tree, text)
    assert done.returncode == 2
    assert fault in done.stderr


# ---- the scan

def test_scan_writes_one_repos_rows_and_keeps_the_others(tree, tmp_path):
    out = tmp_path / "uses.csv"
    header = "schema,repo,op_name,classes,key,reads,default,counts,least,flat,note,source,where\n"
    out.write_text(header + "1,vllm,mm,BlasBenchmark;Benchmark,BlasBenchmark,yes,no,4,4,no,,ast,benchmark/test_mm.py:1\n"
                   "1,main,gone,Benchmark,Benchmark,yes,no,,0,yes,,ast,benchmark/test_gone.py:1\n")
    done = call("scan_shapes.py", "--repo", "main", "--tree", tree, "--out", out)
    assert done.stdout == f"{out}: main: 21 uses; 1 set their own shapes, 20 read the file; of these 1 are not checked\n"
    rows = out.read_text().splitlines()
    assert rows[-1] == "1,vllm,mm,BlasBenchmark;Benchmark,BlasBenchmark,yes,no,4,4,no,,ast,benchmark/test_mm.py:1"
    assert not [row for row in rows if ",gone," in row]
    line = 1 + (tree / "benchmark/test_blas.py").read_text().splitlines().index(
        'def test_mm(): base.BlasBenchmark(op_name="mm", input_fn=None)')
    assert f'1,main,mm,BlasBenchmark;Benchmark,BlasBenchmark,yes,no,4,4,no,"b, m, n, k",ast,benchmark/test_blas.py:{line}' in rows
    assert "1,main,sdpa,AttentionBenchmark;GenericBenchmark;Benchmark,AttentionBenchmark,yes,no,4,4,yes," in out.read_text()
    fit = '1,main,fit,FitBenchmark;GenericBenchmark;Benchmark,Benchmark,fit,yes,3,3,no,"tokens, heads, fp4",ast,'
    topk = "1,main,topk,TopKBenchmark;GenericBenchmark2DOnly;GenericBenchmark;Benchmark,GenericBenchmark2DOnly,no,no,3,3,no,"
    assert fit in out.read_text() and topk in out.read_text()
    assert "1,main,by_length,GenericBenchmark;Benchmark,Benchmark,yes,no,,0,no,depends on len(shape),unknown," in out.read_text()


# ---- the sets themselves

def test_smoke_set_merges_over_the_sample_tree(tmp_path):
    out = tmp_path / "smoke.yaml"
    done = call("merge_shapes.py", "--set", "smoke", "--tree", ROOT / "samples/flaggems", "--out", out)
    assert done.returncode == 0, done.stderr
    merged = yaml.safe_load(out.read_text())
    core = yaml.safe_load((ROOT / "samples/flaggems/benchmark/core_shapes.yaml").read_text())
    assert set(core) < set(merged)
    assert merged["BlasBenchmark"]["shapes"] == [[1, 16, 896, 896]]
    assert merged["abs"]["shapes"] == core["abs"]["shapes"]
    assert call("merge_shapes.py", "--check", out, "--tree", ROOT / "samples/flaggems").returncode == 0
