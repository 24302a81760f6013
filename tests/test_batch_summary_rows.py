"""batch_summary.py: which rows count and in which order, and runs that were made by hand."""

import json

import pytest

from summary_screen import GOOD, HEAD, HEAD_ALL, Screen, columns, read_summary, row, run_log, summarize, title


@pytest.fixture
def screen(tmp_path):
    return Screen(tmp_path / "screen-a")


# ---- what counts

def test_the_attempt_of_the_marker_counts_and_the_last_one_without_a_marker(screen):
    for op, status in (("abs", "ok"), ("mm", None)):
        for attempt in (1, 2, 10):
            path = screen.log_path(op, attempt)
            path.parent.mkdir(parents=True)
            path.write_text(run_log(op, title(op) + HEAD + row("SUCCESS", f"{attempt}.0", "1.0", f"{attempt}.000")))
        screen.add(op, status, attempt=2)
    summarize(screen.path, "--quiet", expect=1)
    assert columns(read_summary(screen.path), "op", "status", "attempt", "speedup") == [
        ("abs", "ok", "2", "2.0"), ("mm", "interrupted", "10", "10.0")]


def test_different_modes_are_never_averaged(screen):
    tables = (title("abs") + HEAD + row("SUCCESS", "0.4", "0.1", "4.000") + title("abs", mode="operator") + HEAD
              + row("SUCCESS", "0.1", "0.1", "1.000") + title("abs") + HEAD + row("SUCCESS", "0.1", "0.1", "1.000"))
    done = summarize(screen.add("abs", "ok", tables).path)
    assert done.stdout.splitlines()[1:3] == [
        "main  abs  ok      float16  kernel core do_bench cold       2            2.000        2  1.000  4.000",
        "main  abs  ok      float16  operator core do_bench cold     1            1.000        1  1.000  1.000"]


def test_a_geometric_mean_rests_on_the_rows_that_have_a_ratio(screen):
    tables = (title("abs") + HEAD + row("SUCCESS", "0.8", "0.1", "8.000") + row("SUCCESS", "0.1", "0.1", "1.000")
              + row("SUCCESS", "0.1", "0.1", "1.000") + row("SUCCESS", "N/A", "0.1", "N/A")
              + row("SUCCESS", "0.1", "nan", "nan") + row("FAILED", "N/A", "N/A", "N/A"))
    done = summarize(screen.add("abs", "partial", tables, reason="x").path, expect=1)
    assert done.stdout.splitlines()[1] == (
        "main  abs  partial  float16  kernel core do_bench cold     6         2            2.000        3  1.000  8.000")


@pytest.mark.parametrize("log", [{"cache": "host"}, {"host_target": "cuda:90"}])
def test_no_ratio_is_ever_reported_from_the_host_device(screen, log):
    tables = title("abs") + HEAD_ALL + row("SUCCESS", "0.2", "0.1", "2.000", "1.5", "10.0", "20.0") + row(
        "SUCCESS", "0.2", "0.1", "N/A")
    done = summarize(screen.add("abs", "ok", log=run_log("abs", tables, **log)).path)
    assert columns(read_summary(screen.path), "cache", "latency_ms", "speedup", "tflops", "gbps_base", "gbps", "row_status") == [
        ("host", "0.1", "", "", "", "", "SUCCESS")] * 2
    assert done.stdout.splitlines()[1].split() == ["main", "abs", "ok", "float16", "kernel", "core", "do_bench", "host", "2"]


def test_rows_after_an_illegal_access_are_its_cascade(screen):
    error = "RuntimeError: CUDA error: an illegal memory access was encountered"
    tables = "".join(title("abs", dtype) + HEAD + row("FAILED", "N/A", "N/A", "N/A")
                     + f"FAILED: Operator=abs dtype=torch.{dtype} row=1 err=<<<{error}>>>\n"
                     for dtype in ("float16", "float32", "int8"))
    tables += title("abs", "bool") + HEAD + row("SUCCESS", "0.2", "0.1", "2.000")
    summarize(screen.add("abs", "partial", tables, reason=error).path, "--quiet", expect=1)
    assert columns(read_summary(screen.path), "dtype", "row_status", "reason") == [
        ("float16", "FAILED", error), ("float32", "NOT_MEASURED", "cascade: " + error),
        ("int8", "NOT_MEASURED", "cascade: " + error), ("bool", "SUCCESS", error)]


def test_the_order_is_repo_op_and_table_whatever_the_plan_says(screen):
    both = "".join(title("b", dtype) + HEAD + row("SUCCESS", "0.2", "0.1", "2.000") for dtype in ("int8", "bool"))
    screen.add("b", "ok", both, repo="vllm").add("c", "ok", GOOD).add("b", "ok", both).add("a", plan="dismissed", reason="x")
    summarize(screen.path, "--quiet")
    assert columns(read_summary(screen.path), "repo", "op", "dtype") == [
        ("main", "a", ""), ("main", "b", "int8"), ("main", "b", "bool"), ("main", "c", "float16"),
        ("vllm", "b", "int8"), ("vllm", "b", "bool")]


# ---- runs made by hand

def write_hand_run(directory, log, pytest_exit=None, tests=()):
    directory.mkdir(parents=True)
    (directory / "run.log").write_text(log)
    if pytest_exit is not None:
        (directory / "exit.json").write_text(json.dumps({"schema": 1, "pytest_exit": pytest_exit}))
    (directory / "tests.jsonl").write_text("".join(json.dumps(test) + "\n" for test in tests) + '{"cut')


def test_every_run_log_below_a_directory_is_a_run(tmp_path):
    write_hand_run(tmp_path / "h/main/abs", run_log("abs", GOOD), 0)
    (tmp_path / "h/main/abs/session.jsonl").write_text('{"event": "started"}\n{"event": "finished", "exit": 0}\n')
    write_hand_run(tmp_path / "h/main/abs-2", run_log("abs", GOOD.replace("2.000", "3.000"), cache="warm"), 0)
    write_hand_run(tmp_path / "h/main/abs-10", run_log("abs", GOOD.replace("2.000", "4.000")), 0)
    write_hand_run(tmp_path / "h/main/mm", run_log("mm", ""), 0, [{"outcome": "skipped", "reason": "needs SM90"}])
    failed = [{"outcome": "failed", "error": "KeyError: 1"}]
    write_hand_run(tmp_path / "h/main/sort", run_log("sort", "", pytest_exit=1), None, failed)
    write_hand_run(tmp_path / "h/main/topk", run_log("topk", GOOD, end=False))
    write_hand_run(tmp_path / "h/main/bare", GOOD, 0)
    done = summarize(tmp_path / "h", expect=1)
    unchecked = "not checked for lost rows: there is no session.jsonl"
    assert columns(read_summary(tmp_path / "h"), "repo", "op", "status", "attempt", "cache", "speedup", "reason") == [
        ("main", "abs", "ok", "1", "cold", "2.0", ""), ("main", "abs", "ok", "2", "warm", "3.0", unchecked),
        ("main", "abs", "ok", "3", "cold", "4.0", unchecked), ("main", "bare", "ok", "1", "", "2.0", unchecked),
        ("main", "mm", "skipped", "1", "cold", "", "needs SM90"), ("main", "sort", "failed", "1", "cold", "", "KeyError: 1"),
        ("main", "topk", "crashed", "1", "cold", "2.0",
         "it never ended by itself (no exit.json, no exit status); 1 row measured")]
    # Two runs of one op are two lines: they are never averaged.
    assert [line.split()[1:3] for line in done.stdout.splitlines()[1:4]] == [["abs", "ok"], ["abs", "#2"], ["abs", "#3"]]
    assert "\n7 runs: 4 ok, 1 failed, 1 crashed, 1 skipped\n" in done.stdout


def test_one_run_directory_is_a_run_too(tmp_path):
    write_hand_run(tmp_path / "main/abs", run_log("abs", GOOD), 0)
    assert "\n1 op: 1 ok\n" in summarize(tmp_path / "main/abs").stdout
    assert columns(read_summary(tmp_path / "main/abs"), "repo", "op", "status") == [("main", "abs", "ok")]


def test_a_tests_jsonl_with_wrong_types_says_what_it_can(tmp_path):
    write_hand_run(tmp_path / "h/main/abs", run_log("abs", "", pytest_exit=1), 1, [
        {"outcome": "failed", "error": ["x"], "reason": {"a": 1}, "when": 3}, {"outcome": ["failed"], "error": "KeyError: 1"},
        [1], 5])
    write_hand_run(tmp_path / "h/main/mm", run_log("mm", GOOD), [1])
    summarize(tmp_path / "h", expect=1)
    assert columns(read_summary(tmp_path / "h"), "op", "status") == [("abs", "failed"), ("mm", "ok")]


def test_tests_have_a_row_without_latencies(screen):
    """SUITE=tests: the correctness tests of an op, which measure nothing."""
    log = run_log("abs", "").replace("op: abs\n", "op: abs\nsuite: tests\n")
    done = summarize(screen.add("abs", "ok", log=log).path)
    assert columns(read_summary(screen.path), "op", "status", "mode", "level", "timer", "cache", "row_status", "reason") == [
        ("abs", "ok", "tests", "", "", "", "", "")]
    assert done.stdout.startswith("repo  op   status  measured how  rows\nmain  abs  ok      tests            0\n")


def test_runs_by_hand_say_what_their_logs_say(tmp_path):
    head = "commit: ed2508bcb5a03000e9774734201d840ba362cd11\n"
    for repo in ("main", "samples"):
        write_hand_run(tmp_path / "h" / repo / "abs", run_log("abs", GOOD, repo=repo).replace("op: abs\n", "op: abs\n" + head), 0)
    summarize(tmp_path / "h")
    said = "\n- devices 0\n- main at ed2508bcb5a0\n- sample tree of gemscreen ed2508bcb5a0\n"
    assert said in (tmp_path / "h/summary.md").read_text()
