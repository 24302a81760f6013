"""_pretty_report_plugin: no measured row is lost, no text is lost, every test's outcome is told."""
import json

import pytest

from common.runlog import parse_runlog
from stub_tree import add_benchmark, make_tree, run_plugin, run_script

PLUGIN = "_pretty_report_plugin"
TITLE = "Operator: one  Performance Test (dtype=torch.{}, mode=kernel,level=core)"
LEGEND = "Legend: #1 = torch.Size([4, 4])\nLegend: #2 = {'alpha': 0.5}"
HEADER = ("Status       Torch Latency (ms)    Gems Latency (ms)         Gems Speedup          Size Detail\n"
          "-----------------------------------------------------------------------------------------------")  # fmt: skip
GOOD = "SUCCESS               0.006000            0.005000               1.200          ([torch.Size([{0}, {0}]), #1], #2)"
BAD = "FAILED                     N/A                 N/A                 N/A          {}"


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path / "tree")


def run(tree, body, *args, **env):
    """pytest on a benchmark with `body`; returns the CompletedProcess. Tables are at the core level, as in a screen."""
    node = add_benchmark(tree, "one", body)
    return run_plugin(tree, [PLUGIN], node, "--level=core", *args, GEMS_VENDOR="nvidia", **env)


def table(dtype, *rows, legend=LEGEND):
    return "\n".join([TITLE.format(dtype), *([legend] if legend else []), HEADER, *rows]) + "\n"


def read_tests(path):
    return [json.loads(line) for line in (path / "tests.jsonl").read_text().splitlines()]


# Rescue ---------------------------------------------------------------------------------------------------------


def test_failing_candidate_costs_one_row(tree):
    """Two dtypes, three shapes; the last shape of the second dtype raises."""
    ended = run(tree, """
        def gems(x, y, alpha):
            if x.dtype is torch.float32 and x.shape[0] == 32:
                raise RuntimeError("CUDA error: out\\n  of memory")
            return 0.005
        def test_one():
            make("one", gems).run()
        """)
    assert ended.returncode == 1
    assert table("float16", GOOD.format(8), GOOD.format(16), GOOD.format(32)) in ended.stdout
    failed = BAD.format("([torch.Size([32, 32]), #1], #2)")
    line = "FAILED: Operator=one dtype=torch.float32 row=3 err=<<<RuntimeError: CUDA error: out of memory>>>\n"
    assert table("float32", GOOD.format(8), GOOD.format(16), failed) + "\n" + line in ended.stdout
    assert "NOT MEASURED" not in ended.stdout
    rows = parse_runlog(ended.stdout).rows
    assert [(row.dtype, row.status, row.reason) for row in rows] == [
        ("float16", "SUCCESS", ""), ("float16", "SUCCESS", ""), ("float16", "SUCCESS", ""),
        ("float32", "SUCCESS", ""), ("float32", "SUCCESS", ""),
        ("float32", "FAILED", "RuntimeError: CUDA error: out of memory"),
    ]  # fmt: skip
    assert rows[5].shape == "([torch.Size([32, 32]), torch.Size([4, 4])], {'alpha': 0.5})"


def test_failing_input_costs_one_row(tree):
    ended = run(tree, """
        class Inputs(Shapes):
            def get_input_iter(self, dtype):
                for item in super().get_input_iter(dtype):
                    if dtype is torch.float32 and item[0].shape[0] == 32:
                        raise ValueError("normal_ not implemented")
                    yield item
        def test_one():
            make("one", cls=Inputs, dtypes=consts.FLOAT_DTYPES).run()
        """)
    assert ended.returncode == 1
    # Upstream's own line, with red codes and literal braces, stays; ours says which dtype and why.
    assert "\033[31mFAILED\033[0m: Operator=one dtype={dtype} err=<<<{e}>>>" in ended.stdout
    tail = ("\nFAILED: Operator=one dtype=torch.float32 row=3 err=<<<ValueError: normal_ not implemented>>>\n"
            "NOT MEASURED: Operator=one dtype=torch.bfloat16 reason=<<<after failure of torch.float32>>>\n")  # fmt: skip
    assert table("float32", GOOD.format(8), GOOD.format(16), BAD.format("N/A")) + tail in ended.stdout
    rows = parse_runlog(ended.stdout).rows
    assert [(row.dtype, row.status) for row in rows] == [
        *[("float16", "SUCCESS")] * 3, *[("float32", "SUCCESS")] * 2, ("float32", "FAILED"),
        ("bfloat16", "NOT_MEASURED"),
    ]  # fmt: skip
    assert rows[5].reason == "ValueError: normal_ not implemented"


def test_first_row_failing_still_gives_a_table(tree):
    ended = run(tree, """
        def test_one():
            make("one", gems=lambda *a, **k: 1 // 0).run()
        """)
    failed = BAD.format("([torch.Size([8, 8]), torch.Size([4, 4])], {'alpha': 0.5})")
    tail = ("\nFAILED: Operator=one dtype=torch.float16 row=1 err=<<<ZeroDivisionError: integer division or modulo by zero"
            ">>>\nNOT MEASURED: Operator=one dtype=torch.float32 reason=<<<after failure of torch.float16>>>\n")  # fmt: skip
    assert table("float16", failed, legend=None) + tail in ended.stdout


def test_unsupported_dtype_keeps_its_text_and_makes_no_row(tree):
    ended = run(tree, "def test_one(): make('one').run()", "--dtypes=float16", "--dtypes=int32", "--tb=short", RUN_DIR=tree)
    text = "Given dtype(s) 'torch.int32'can't be supported by this op 'one'"
    assert f"\nE   ValueError: {text}\n" in ended.stdout
    assert "Operator: " not in ended.stdout and "MEASURED" not in ended.stdout
    (line,) = read_tests(tree)
    assert (line["error"], line["reason"]) == (f"ValueError: {text}", text)


def test_skip_in_the_second_dtype_keeps_what_was_measured(tree):
    ended = run(tree, """
        class Skips(Shapes):
            def get_input_iter(self, dtype):
                for item in super().get_input_iter(dtype):
                    if dtype is torch.float32 and item[0].shape[0] == 16:
                        pytest.skip("no fp32 units")
                    yield item
        def test_one():
            make("one", cls=Skips, dtypes=consts.FLOAT_DTYPES).run()
        """)
    assert ended.returncode == 0
    rows = parse_runlog(ended.stdout).rows
    assert [(row.dtype, row.status, row.reason) for row in rows] == [
        *[("float16", "SUCCESS", "")] * 3, ("float32", "SUCCESS", ""),
        ("float32", "NOT_MEASURED", "skipped: no fp32 units"), ("bfloat16", "NOT_MEASURED", "after skip of torch.float32"),
    ]  # fmt: skip


def test_run_of_a_subclass_is_rescued_like_the_base_classs(tree):
    """Some of upstream's classes have a run() of their own, which may call the base class's, and make metrics twice."""
    ended = run(tree, """
        from .consts import BenchmarkMetrics, BenchmarkResult
        class Own(Shapes):
            def run(self):
                self.init_user_config()
                for dtype in self.to_bench_dtypes:
                    rows = []
                    for inputs in self.get_input_iter(dtype):
                        BenchmarkMetrics()
                        rows.append(BenchmarkMetrics(shape_detail=[inputs[0].size()], latency=0.5))
                        if len(rows) == 2:
                            pytest.fail("no")
                    print(BenchmarkResult("one", str(dtype), "kernel", "core", rows))
        class Calls(Shapes):
            def run(self):
                print("before")
                super().run()
        def test_own():
            make("one", cls=Own).run()
        def test_calls():
            make("one", gems=lambda *a, **k: 1 // 0, cls=Calls).run()
        """)
    failed = "FAILED: Operator=one dtype=torch.float16 row={} err=<<<{}>>>\n"
    assert ended.stdout.count("\nFAILED: ") == 2
    assert ended.stdout.count(failed.format(2, "Failed: no")) == 1
    assert ended.stdout.count(failed.format(1, "ZeroDivisionError: integer division or modulo by zero")) == 1
    rows = parse_runlog(ended.stdout).rows
    assert [(row.status, row.latency_ms, row.shape) for row in rows[:2]] == [
        ("SUCCESS", 0.5, "[torch.Size([8, 8])]"), ("FAILED", None, "[torch.Size([16, 16])]")]  # fmt: skip


def test_failure_after_the_table_prints_no_row_twice(tree):
    ended = run(tree, """
        def test_one(monkeypatch):
            monkeypatch.setattr(base, "update_result", lambda *a: 1 // 0)
            make("one").run()
        """)
    assert ended.stdout.count(TITLE.format("float16")) == 1
    assert [(row.dtype, row.status) for row in parse_runlog(ended.stdout).rows] == [
        *[("float16", "SUCCESS")] * 3, ("float32", "NOT_MEASURED")]  # fmt: skip
    assert "NOTE: Operator=one dtype=torch.float16 after its table: ZeroDivisionError" in ended.stdout


def test_operator_without_a_shape_is_a_failed_row(tree):
    ended = run(tree, """
        class Empty(Shapes):
            SHAPES = []
        def test_one():
            make("one", cls=Empty).run()
        """)
    assert [(row.dtype, row.status) for row in parse_runlog(ended.stdout).rows] == [
        ("float16", "FAILED"), ("float32", "NOT_MEASURED")]  # fmt: skip


def test_several_benchmarks_of_one_test_do_not_mix(tree):
    ended = run(tree, """
        def test_one():
            make("one").run()
            bench = make("two", gems=lambda x, *r, **k: 0.005 if x.shape[0] < 32 else 1 // 0)
            with pytest.raises(pytest.fail.Exception):
                bench.run()
            make("three").run()
            assert "get_input_iter" not in vars(bench)
        """)
    assert ended.returncode == 0, ended.stdout
    rows = parse_runlog(ended.stdout).rows
    assert [(row.op_name, row.status) for row in rows] == [
        *[("one", "SUCCESS")] * 6, *[("two", "SUCCESS")] * 2, ("two", "FAILED"), ("two", "NOT_MEASURED"),
        *[("three", "SUCCESS")] * 6,
    ]  # fmt: skip


def test_cascade_after_an_illegal_access_keeps_each_tests_text(tree):
    text = "CUDA error: an illegal memory access was encountered"
    ended = run(tree, f"""
        @pytest.mark.parametrize("case", range(5))
        def test_one(case):
            def gems(*a, **k):
                if case < 4:
                    raise RuntimeError("{text}")
                return 0.005
            make("one", gems, dtypes=[torch.float16]).run()
        """, RUN_DIR=tree)  # fmt: skip
    assert [(line["node"][-3:], line["outcome"], line["error"]) for line in read_tests(tree)] == [
        *[(f"[{case}]", "failed", f"RuntimeError: {text}") for case in range(4)], ("[4]", "passed", "")]  # fmt: skip
    assert ended.stdout.count(f"FAILED: Operator=one dtype=torch.float16 row=1 err=<<<RuntimeError: {text}>>>") == 4


# tests.jsonl ----------------------------------------------------------------------------------------------------


def test_every_outcome_has_one_line(tree):
    run(tree, """
        @pytest.fixture
        def broken(): raise OSError("no disk")
        @pytest.fixture
        def leaves():
            yield
            raise OSError("busy")
        def test_pass(): pass
        def test_fail(): assert 1 == 2
        def test_skip(): pytest.skip("why not")
        @pytest.mark.skipif(True, reason="never here")
        def test_skipif(): pass
        def test_setup(broken): pass
        def test_teardown(leaves): pass
        """, RUN_DIR=tree)
    lines = {line["node"].split("::")[1]: line for line in read_tests(tree)}
    assert {line["schema"] for line in lines.values()} == {1}
    assert {node: (line["outcome"], line["when"]) for node, line in lines.items()} == {
        "test_pass": ("passed", "call"), "test_fail": ("failed", "call"), "test_skip": ("skipped", "call"),
        "test_skipif": ("skipped", "setup"), "test_setup": ("error", "setup"), "test_teardown": ("error", "teardown"),
    }  # fmt: skip
    assert {node: (line["error"], line["reason"].split("\n")[0]) for node, line in lines.items()} == {
        "test_pass": ("", ""), "test_fail": ("AssertionError: assert 1 == 2", "assert 1 == 2"),
        "test_skip": ("", "why not"), "test_skipif": ("", "never here"),
        "test_setup": ("OSError: no disk", "no disk"), "test_teardown": ("OSError: busy", "busy"),
    }  # fmt: skip
    assert read_tests(tree)[0]["node"] == "benchmark/test_one.py::test_pass"


def test_module_that_cannot_be_imported_or_skips_itself_has_a_line(tree):
    add_benchmark(tree, "two", "import no_such_module")
    add_benchmark(tree, "three", "pytest.skip('wrong vendor', allow_module_level=True)")
    run(tree, "", "benchmark/test_two.py", "benchmark/test_three.py", RUN_DIR=tree)
    assert [(line["node"], line["outcome"], line["when"], line["error"]) for line in read_tests(tree)] == [
        ("benchmark/test_two.py", "error", "collect", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("benchmark/test_three.py", "skipped", "collect", ""),
    ]  # fmt: skip
    assert read_tests(tree)[1]["reason"] == "wrong vendor"


def test_line_is_written_when_its_test_ends(tree):
    """A later test that kills the process costs only its own line."""
    run(tree, "def test_one(): pass\ndef test_two():\n    import os; os._exit(9)", RUN_DIR=tree)
    assert [line["outcome"] for line in read_tests(tree)] == ["passed"]


def test_plugin_alone_writes_no_file(tree):
    before = sorted(tree.iterdir())
    ended = run(tree, "def test_one(): make('one').run()")
    assert ended.returncode == 0 and table("float16", GOOD.format(8), GOOD.format(16), GOOD.format(32)) in ended.stdout
    assert [path for path in sorted(tree.iterdir()) if path not in before and path.name != "__pycache__"] == []


def test_plugin_leaves_other_tests_alone(tree):
    (tree / "test_plain.py").write_text("class Benchmark:\n    def run(self): return 3\n"
                                        "def test_a(): assert Benchmark().run() == 3")
    ended = run_plugin(tree, [PLUGIN], "test_plain.py")
    assert ended.returncode == 0 and "1 passed" in ended.stdout


# The table ------------------------------------------------------------------------------------------------------

RATIOS = """
    class Full(Shapes):
        DEFAULT_METRICS = ["latency_base", "latency", "speedup", "tflops", "gbps"]
        def get_gbps(self, args, latency): return 100.0
        def get_tflops(self, op, *args, **kwargs): return 1e9
    def test_one():
        make("one", cls=Full, dtypes=[torch.float16]).run()
    """


def test_host_device_reports_no_ratio(tree):
    card = parse_runlog(run(tree, RATIOS).stdout).rows
    host = run(tree, RATIOS, HOST_TARGET="cuda:90")
    assert [(row.speedup, row.gbps) for row in card] == [(1.2, 100.0)] * 3 and all(row.tflops for row in card)
    rows = parse_runlog(host.stdout).rows
    assert [(row.latency_base_ms, row.latency_ms) for row in rows] == [(0.006, 0.005)] * 3
    assert {(row.speedup, row.tflops, row.gbps_base, row.gbps) for row in rows} == {(None, None, None, None)}
    assert "GBPS" not in host.stdout and "TFLOPS" not in host.stdout


def test_replaced_table_text_still_works(tree):
    """Two of upstream's files replace BenchmarkResult.__str__ by one that calls it."""
    ended = run(tree, """
        def test_one(monkeypatch):
            original = base.BenchmarkResult.__str__
            monkeypatch.setattr(base.BenchmarkResult, "__str__", lambda r: original(r).replace("Torch", "vLLM"))
            make("one", dtypes=[torch.float16]).run()
        """)
    assert table("float16", GOOD.format(8), GOOD.format(16), GOOD.format(32)).replace("Torch", "vLLM") in ended.stdout


def test_colour_only_where_it_is_wanted(tree):
    body = "def test_one(): make('one', dtypes=[torch.float16]).run()"
    assert "\033" not in run(tree, body).stdout
    coloured = run(tree, body, FORCE_COLOR="1").stdout
    assert "\033[32mSUCCESS\033[0m  " in coloured and "\033[2mLegend: #1" in coloured
    assert parse_runlog(coloured).rows == parse_runlog(run(tree, body).stdout).rows
    assert "\033" not in run(tree, body, FORCE_COLOR="1", NO_COLOR="1").stdout


def test_folded_tables_are_read_back_whole(tree):
    """The whole way: upstream's table, folded, through run_pytest.sh and run.log, to the rows of the reader."""
    node = add_benchmark(tree, "one", """
        class Odd(Shapes):
            def get_input_iter(self, dtype):
                for n in (1, 2, 3):
                    yield torch.Tensor((n, 7), dtype), [torch.Tensor((5, 5), dtype), "SUCCESS"], 1e-05, torch.float8_e4m3fn, \\
                        {"out": [None, {"k": (1, "a, b")}], "eps": 0.125}
        def test_one():
            make("isnan", cls=Odd).run()
        """)
    run_script(tree, "isnan", node)
    log = parse_runlog(tree / "run/run.log")
    assert "\nLegend: #1 = [torch.Size([5, 5]), 'SUCCESS']\n" in (tree / "run/run.log").read_text()
    inside = "[torch.Size([5, 5]), 'SUCCESS'], 1e-05, torch.float8_e4m3fn], {'out': [None, {'k': [1, 'a, b']}], 'eps': 0.125})"
    assert [(row.op_name, row.dtype, row.status, row.speedup, row.shape) for row in log.rows] == [
        ("isnan", dtype, "SUCCESS", 1.2, f"([torch.Size([{n}, 7]), {inside}")
        for dtype in ("float16", "float32") for n in (1, 2, 3)]  # fmt: skip
