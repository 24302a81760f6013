"""The sample tree on the host device: its operators against torch, and upstream's interface and faults.

One pytest process runs all accuracy tests and some benchmarks; three short ones show the options and the faults.
"""
import csv
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "samples" / "flaggems"
FLOATS = ["float16", "float32", "bfloat16"]


def run_samples(folder, *arguments):
    """Run pytest on the samples as run_pytest.sh does, in `folder`; returns (exit status, stdout, {test: xml element}).

    Options as one word, --level=core: pytest before 9 finds the tree's conftest.py only so.
    """
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", "-p", "_host_device_plugin", "--tb=short",
               "--rootdir", TREE, "-c", TREE / "pytest.ini", "--junitxml=junit.xml", *arguments]
    env = {**os.environ, "HOST_TARGET": "cuda:90", "PYTHONPATH": str(ROOT / "plugins"), "RUN_DIR": str(folder),
           "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(list(map(str, command)), cwd=folder, env=env, capture_output=True, text=True, timeout=400)
    assert (folder / "junit.xml").exists(), done.stdout + done.stderr
    cases = xml.etree.ElementTree.parse(folder / "junit.xml").getroot().iter("testcase")
    return done.returncode, done.stdout, {f"{case.get('classname')}.{case.get('name')}": case for case in cases}


def bench(name):
    return TREE / "benchmark" / f"test_{name}.py"


def read_tables(stdout):
    """{(operator, dtype): [row]} of the printed tables."""
    tables = {}
    for block in stdout.split("\nOperator: ")[1:]:
        title, _, _, *rows = block.split("\n")
        name, _, rest = title.partition("  Performance Test (dtype=torch.")
        tables[name, rest.partition(",")[0]] = [row for row in rows if row.startswith(("SUCCESS", "FAILED"))]
    return tables


def read_inventory():
    with open(ROOT / "ops" / "inventory_samples.csv", newline="") as stream:
        return list(csv.DictReader(line for line in stream if not line.startswith("#")))


# ---- all accuracy tests, some benchmarks

@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    names = ["abs", "mul", "mm", "softmax", "rms_norm", "rand", "topk", "masked_select", "to_copy", "scale_transpose", "conv2d"]
    status, stdout, cases = run_samples(folder, "--level=core", *map(bench, names), TREE / "tests")
    return folder, status, stdout, cases


def test_every_operator_matches_torch(whole):
    _, status, stdout, cases = whole
    wrong = [name for name, case in cases.items() if case.find("failure") is not None or case.find("error") is not None]
    assert not wrong, stdout
    assert status == 0
    passed = {name.partition("[")[0] for name, case in cases.items() if len(case) == 0}
    for row in read_inventory():
        accuracy = {node.replace(".py::", ".").replace("/", ".") for node in row["test_nodes"].split(";")}
        assert accuracy <= passed or row["op"] == "conv2d", row["op"]


def test_the_skipped_operator_says_why(whole):
    case = whole[3]["benchmark.test_conv2d.test_conv2d"]
    assert case.find("skipped").get("message") == "sample of a skipped operator: never measured"


def test_a_table_per_dtype_with_all_shapes(whole):
    tables = read_tables(whole[2])
    shapes = {"abs": ["[torch.Size([4096])]", "[torch.Size([64, 64])]", "[torch.Size([16, 64, 64])]"],
              "mul_": ["[torch.Size([4096]), torch.Size([4096])]", "[torch.Size([64, 64]), torch.Size([64, 64])]",
                       "[torch.Size([4, 16, 64]), torch.Size([4, 16, 64])]"],
              "mm": ["[torch.Size([32, 32]), torch.Size([32, 32])]", "[torch.Size([64, 80]), torch.Size([80, 48])]"],
              "softmax_backward": ["[torch.Size([1024])]", "[torch.Size([32, 64]), 1]", "[torch.Size([2, 16, 32]), 1]"],
              "topk": ["{'input': torch.Size([4, 64]), 'k': 5, 'dim': -1}", "{'input': torch.Size([2, 128]), 'k': 5, 'dim': -1}"],
              "scale_transpose": ["[torch.Size([64, 64]), 0.5]", "[torch.Size([16, 1024]), 0.5]"]}
    for op, expected in shapes.items():
        for dtype in FLOATS:
            rows = tables[op, dtype]
            assert [row[:7] for row in rows] == ["SUCCESS"] * len(expected)
            assert [row.endswith(" " * 10 + size) for row, size in zip(rows, expected)] == [True] * len(expected), rows
    sizes = [row.partition("({")[0].strip() for row in tables["rand", "float16"]]
    assert len(sizes) == 3
    assert ("_to_copy", "float16") in tables and ("mul", "bfloat16") in tables


def test_the_header_is_upstreams(whole):
    lines = whole[2].split("\n")
    at = lines.index("Operator: rms_norm  Performance Test (dtype=torch.float16, mode=kernel,level=core)")
    assert lines[at + 1] == "Status       Torch Latency (ms)    Gems Latency (ms)         Gems Speedup          Size Detail"
    assert lines[at + 2] == "-" * 95
    number = r"(?=.{20}) +\d+\.\d"
    assert re.fullmatch(rf"SUCCESS   {number}{{6}}{number}{{6}}{number}{{3}} {{10}}"
                        r"\(?\[torch\.Size\(\[8, 128\]\), \[128\], torch\.Size\(\[128\]\), 1e-05\]", lines[at + 3]), lines[at + 3]
    assert re.match(r"SUCCESS   .{8}\d{4}\.", lines[at + 3]) is None and len(lines[at + 3].partition("[")[0]) == 80


def test_real_kernels_were_launched(whole):
    launches = json.loads((whole[0] / "launches.json").read_text())
    assert launches["target"] == "cuda:90"
    names = {variant["name"] for variant in launches["variants"] if variant["launches"] > 0}
    assert "scale_transpose_kernel" in names and "abs_func_kernel_rank_1" in names
    transposed = [v for v in launches["variants"] if v["name"] == "scale_transpose_kernel"]
    assert all(variant["convert_layout"] >= 1 for variant in transposed)


# ---- upstream's faults

@pytest.fixture(scope="module")
def foreign_shapes(tmp_path_factory):
    """A shape file without class keys, in which the third shape of topk cannot be measured (k=5 of 3)."""
    folder = tmp_path_factory.mktemp("foreign")
    shapes = folder / "shapes.yaml"
    shapes.write_text("topk:\n  shapes: [[2, 16], [4, 16], [4, 3]]\nabs:\n  shapes: [[8]]\n")
    return run_samples(folder, "--level=core", f"--shape_file={shapes}", "--dtypes=float16", "--dtypes=float32",
                       bench("topk"), bench("mm"), bench("abs"), bench("add"))


def message(case):
    return case.find("failure").get("message")


def test_rows_of_a_dtype_are_lost_when_a_shape_raises(foreign_shapes):
    status, stdout, cases = foreign_shapes
    assert status == 1
    assert "k out of range" in message(cases["benchmark.test_topk.test_topk"])
    assert not [key for key in read_tables(stdout) if key[0] == "topk"]


def test_a_shape_file_without_class_keys_breaks_the_blas_family(foreign_shapes):
    _, stdout, cases = foreign_shapes
    assert message(cases["benchmark.test_mm.test_mm"]) == "Failed: not enough values to unpack (expected 4, got 1)"
    assert "\033[31mFAILED\033[0m: Operator=mm dtype={dtype} err=<<<{e}>>>" in stdout


def test_the_others_take_their_own_key_or_the_default_shapes(foreign_shapes):
    tables = read_tables(foreign_shapes[1])
    assert [row.split("   ")[-1].strip() for row in tables["abs", "float32"]] == ["[torch.Size([8])]"]
    assert tables["add", "float16"][0].endswith("[torch.Size([4096]), torch.Size([4096])]")
    assert ("add", "bfloat16") not in tables


def test_an_unsupported_dtype_is_upstreams_value_error(tmp_path):
    status, _, cases = run_samples(tmp_path, "--dtypes=bfloat16", "--dtypes=float16", "--level=core",
                                   bench("bitwise_and"), bench("sort"), "--record=json", "--output=results.json")
    assert status == 1
    assert message(cases["benchmark.test_bitwise_and.test_bitwise_and"]) == (
        "ValueError: Given dtype(s) 'torch.bfloat16, torch.float16'can't be supported by this op 'bitwise_and_tensor'")
    assert message(cases["benchmark.test_sort.test_sort"]) == (
        "ValueError: Given dtype(s) 'torch.bfloat16'can't be supported by this op 'sort'")
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["sort"]["result"] == "failed"
    assert results["sort"]["test_case"] == "benchmark/test_sort.py::test_sort"


def test_operators_of_one_process_affect_each_other(tmp_path):
    """`sum` adds gbps to the list of metrics that all classes share, and `layer_norm` cannot compute it."""
    status, stdout, cases = run_samples(tmp_path, bench("sum"), bench("layer_norm"), "--dtypes=float32")
    assert status == 1
    assert len(cases["benchmark.test_sum.test_sum"]) == 0
    header = next(line for line in stdout.split("\n") if line.startswith("Status"))
    assert header == ("Status       Torch Latency (ms)    Gems Latency (ms)         Gems Speedup          Torch GBPS "
                      "           Gems GBPS           Size Detail")
    assert message(cases["benchmark.test_layer_norm.test_layer_norm"]) == (
        "Failed: Each Benchmark that reports gbps must implement get_gbps.")


def test_more_options(tmp_path):
    """Comprehensive level, wrapper mode, chosen metrics, the JSON record that merges into an existing file."""
    (tmp_path / "benchmark_result.json").write_text('{"old": {"result": "passed"}}')
    status, stdout, _ = run_samples(tmp_path, bench("layer_norm"), "--mode=wrapper", "--dtypes=float32", "--metrics=latency",
                                    "--record=json", "--warmup=1", "--iter=1")
    assert status == 0, stdout
    assert "Operator: layer_norm  Performance Test (dtype=torch.float32, mode=wrapper,level=comprehensive)" in stdout
    rows = read_tables(stdout)["layer_norm", "float32"]
    assert [row[80:row.index("]")] for row in rows] == [
        "[torch.Size([8, 128", "[torch.Size([4, 16, 96", "[torch.Size([4, 8, 64", "[torch.Size([1, 4, 4, 4"]
    assert all(row.split()[1] == "N/A" and float(row.split()[2]) > 0 and row.split()[3] == "N/A" for row in rows)
    results = json.loads((tmp_path / "benchmark_result.json").read_text())
    assert results["old"] == {"result": "passed"}
    assert results["layer_norm"]["result"] == "passed" and results["layer_norm"]["reason"] is None
    assert results["layer_norm"]["details"][0]["result"][0]["shape_detail"] == [[8, 128], [128], [128], [128]]
