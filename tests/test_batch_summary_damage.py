"""batch_summary.py: a plan that is damaged is refused, a log or marker that is costs its own operator only."""

import json
import sys

import pytest

from summary_screen import GOOD, HEAD, ROOT, Screen, columns, read_summary, row, summarize, title


@pytest.fixture
def screen(tmp_path):
    return Screen(tmp_path / "screen-a")


# ---- planned = reported

def test_a_result_that_no_plan_names_is_an_integrity_error(screen):
    screen.add("abs", "ok", GOOD).add("mm", "ok", GOOD)
    screen.plan.pop()
    screen.write_plan()
    done = summarize(screen.path, expect=4)
    assert done.stderr == (f"batch_summary.py: error: {screen.path}: 1 ops have results but are not in plan.csv: main/mm; "
                           "move their directories away, or plan them again\n")
    assert not (screen.path / "summary.csv").exists()


@pytest.mark.parametrize("plan, message", [
    (None, "missing, so that nobody knows which ops lack"),
    ("schema,repo,op,status,device,nodes,reason\n", "no op is planned"),
    ("schema,repo,op,device,nodes,reason\n1,main,abs,0,x,\n", "column 'status' is missing"),
    ("schema,repo,op,status,device,nodes,reason\n1,main,abs,planned,0,x,\n1,main,abs,planned,0,x,\n",
     "line 3: main/abs is planned in line 2 already"),
    ("schema,repo,op,status,device,nodes,reason\n2,main,abs,planned,0,x,\n",
     "line 2: '2,main,abs,planned,0,x,': no row of schema 1"),
    ("schema,repo,op,status,device,nodes,reason\n1,main,ab", "line 2: '1,main,ab,None,None,None,None': no row of schema 1"),
    ("schema,repo,op,status,device,nodes,reason\n1,main,abs,great,0,x,\n", "main/abs: status 'great' is unknown"),
    ("", "column 'schema' is missing"),
    ("schema,repo,op,status,device,nodes,reason\n1,main,..,planned,0,x,\n",
     "line 2: '1,main,..,planned,0,x,': no row of schema 1"),
    ("schema,repo,op,status,device,nodes,reason\n1,main,a/b,planned,0,x,\n",
     "line 2: '1,main,a/b,planned,0,x,': no row of schema 1"),
    ("schema,repo,op,status,device,nodes,reason\n1,main,\x01,planned,0,x,\n", "line 2: "),
    ("schema,repo,op,status,device,nodes,reason\n1,main,abs," + 200000 * "x", "field larger than field limit"),
    ("\x00\n", "")], ids=lambda value: "")
def test_a_damaged_plan_is_an_integrity_error(screen, plan, message):
    screen.add("abs", "ok", GOOD)
    (screen.path / "plan.csv").unlink()
    if plan is not None:
        (screen.path / "plan.csv").write_text(plan)
    done = summarize(screen.path, expect=4)
    assert done.stderr.startswith(f"batch_summary.py: error: {screen.path / 'plan.csv'}: {message}")
    assert "start the same screen again" in done.stderr and done.stderr.count("\n") == 1


def test_the_check_on_the_rows_themselves_can_fail():
    sys.path.insert(0, str(ROOT))
    from batch_summary import check_every_op_reported
    from common.errors import UserError
    from screen.results import OpResult, Run
    run = Run("r", {}, [OpResult("main", "abs", "ok"), OpResult("main", "mm", "ok")])
    check_every_op_reported(run, [(1, "main", "abs"), (1, "main", "mm")])
    with pytest.raises(UserError, match="planned and reported ops differ: main/mm") as caught:
        check_every_op_reported(run, [(1, "main", "abs")])
    assert caught.value.code == 4


# ---- logs that cannot be trusted cost their own op only

def test_an_unreadable_log_marks_its_op_and_no_other(screen):
    screen.add("abs", "ok", GOOD).add("mm", "ok", GOOD).add("sum", "ok", GOOD)
    screen.log_path("mm").unlink()
    screen.log_path("mm").mkdir()
    screen.log_path("sum").unlink()
    done = summarize(screen.path, "--quiet", expect=1)
    assert columns(read_summary(screen.path), "op", "status", "speedup", "reason") == [
        ("abs", "ok", "2.0", ""), ("mm", "failed", "", "run.log cannot be read (the op ended as ok)"),
        ("sum", "failed", "", "run.log cannot be read (the op ended as ok)")]
    assert done.stderr.splitlines() == [
        f"batch_summary.py: warning: main/mm: {screen.log_path('mm')}: Is a directory: the run log cannot be read; "
        "make it readable, or run its operator again",
        f"batch_summary.py: warning: main/sum: {screen.log_path('sum')}: No such file or directory: the run log cannot be "
        "read; make it readable, or run its operator again"]


def test_an_op_that_failed_before_it_had_a_log_keeps_its_reason(screen):
    screen.add("abs", "failed", reason="NODE: x: no file").add("mm", "crashed", "", reason="killed by SIGSEGV")
    screen.log_path("mm").unlink()
    screen.log_path("mm").mkdir()
    done = summarize(screen.path, "--quiet", expect=1)
    assert columns(read_summary(screen.path), "op", "status", "reason") == [
        ("abs", "failed", "NODE: x: no file"), ("mm", "crashed", "killed by SIGSEGV")]
    assert done.stderr.count("\n") == 1 and "main/mm: " in done.stderr
    assert "main/abs/attempts" not in (screen.path / "report.html").read_text()


def test_a_cut_log_is_partial_whatever_its_marker_says(screen):
    two = title("abs") + HEAD + row("SUCCESS", "0.2", "0.1", "2.000") + row("SUCCESS", "0.4", "0.1", "4.000")
    screen.add("abs", "ok", two).add("mm", "ok", GOOD)
    whole = screen.log_path("abs").read_text()
    screen.log_path("abs").write_text(whole[:whole.index("4.000")])
    done = summarize(screen.path, "--quiet", expect=1)
    assert columns(read_summary(screen.path), "op", "status", "row_status", "speedup", "reason") == [
        ("abs", "partial", "SUCCESS", "2.0", "run.log is cut or lacks rows (the op ended as ok)"),
        ("abs", "partial", "TRUNCATED", "", "the row is cut"), ("mm", "ok", "SUCCESS", "2.0", "")]
    assert done.stderr == (
        f"batch_summary.py: warning: main/abs: {screen.log_path('abs')}: the log ends in the middle of a line; the log has "
        "no end banner; the rows before it are kept, run the operator again for the rest\n")


def test_an_ok_without_a_measured_row_is_failed(screen):
    screen.add("abs", "ok", title("abs") + HEAD + row("SUCCESS", "0.2", "inf", "0.000"))
    summarize(screen.path, "--quiet", expect=1)
    assert columns(read_summary(screen.path), "status", "row_status", "latency_base_ms", "latency_ms", "speedup", "reason") == [
        ("failed", "INVALID", "0.2", "", "", "Gems latency inf ms is no time")]


def test_binary_rubbish_in_a_log_is_no_row(screen):
    screen.add("abs", "failed", "", reason="x").add("mm", "ok", GOOD)
    screen.log_path("abs").write_bytes(bytes(range(256)) * 10)
    summarize(screen.path, "--quiet", expect=1)
    assert columns(read_summary(screen.path), "op", "status", "row_status") == [
        ("abs", "failed", ""), ("mm", "ok", "SUCCESS")]


def test_a_damaged_marker_is_an_interrupted_op(screen):
    screen.add("abs", "ok", GOOD).add("mm", "ok", GOOD).add("sum", "ok", GOOD).add("cos", "ok", GOOD)
    (screen.path / "main/abs/.complete").write_text('{"schema": 1, "stat')
    (screen.path / "main/mm/.complete").write_text('{"schema": 1, "status": "splendid"}')
    (screen.path / "main/sum/.complete").unlink()
    (screen.path / "main/sum/.complete").mkdir()
    done = summarize(screen.path, "--quiet", expect=1)
    assert columns(read_summary(screen.path), "op", "status", "speedup", "reason") == [
        ("abs", "interrupted", "2.0", "not finished"), ("cos", "ok", "2.0", ""),
        ("mm", "interrupted", "2.0", "not finished"), ("sum", "interrupted", "2.0", "not finished")]
    assert [line.split(": cut or unknown")[0] for line in done.stderr.splitlines()] == [
        f"batch_summary.py: warning: {screen.path}/main/{op}/.complete" for op in ("abs", "mm", "sum")]


@pytest.mark.parametrize("part", [
    {"status": ["ok"]}, {"attempt": "../../x"}, {"attempt": 1.5}, {"attempt": True}, {"attempt": {"a": 1}}, {"reason": ["x"]},
    {"fallback": {"a": 1}}, {"reason": 5}])
def test_a_marker_with_wrong_types_is_an_interrupted_op_too(screen, part):
    screen.add("abs", "ok", GOOD, **{key: value for key, value in part.items() if key not in ("status", "attempt", "reason")})
    marker = json.loads((screen.path / "main/abs/.complete").read_text()) | part
    (screen.path / "main/abs/.complete").write_text(json.dumps(marker))
    done = summarize(screen.path, expect=1)
    found = columns(read_summary(screen.path), "op", "status", "speedup", "reason")
    assert found == [("abs", "interrupted", "2.0", "not finished")]
    assert done.stderr.count("\n") == 1 and "main/abs/.complete: cut or unknown" in done.stderr


@pytest.mark.parametrize("content", [
    "[]", "1", '"x"', "null", '{"repos": [1], "devices": {"0": 1}, "versions": 3, "models": [], "driver": 5, "created": []}',
    '{"repos": {"main": null, "samples": [1]}, "devices": [[1], null], "versions": {"torch": 1}}', "[" * 100000], ids=range(7))
def test_a_damaged_screen_json_costs_the_headings_only(screen, content):
    screen.add("abs", "ok", GOOD)
    (screen.path / "screen.json").write_text(content)
    summarize(screen.path)
    assert columns(read_summary(screen.path), "op", "speedup") == [("abs", "2.0")]


def test_what_is_no_unicode_is_replaced(screen):
    screen.add("abs", "failed", "", reason="x")
    (screen.path / "main/abs/.complete").write_text('{"schema": 1, "status": "failed", "attempt": 1, "reason": "a\\ud800b"}')
    assert "main/abs: a?b\n" in summarize(screen.path, expect=1, environment={"PYTHONIOENCODING": "ascii"}).stdout
    assert columns(read_summary(screen.path), "reason") == [("a?b",)]


def test_a_missing_screen_json_costs_the_headings_only(screen):
    screen.add("abs", "ok", GOOD)
    (screen.path / "screen.json").write_text("{")
    done = summarize(screen.path, "--quiet")
    assert done.stderr == (f"batch_summary.py: warning: {screen.path / 'screen.json'}: missing or cut; devices and commits "
                           "are left out\n")
    assert columns(read_summary(screen.path), "op", "speedup") == [("abs", "2.0")]
