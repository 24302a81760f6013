"""common/outcome.py: one attempt in, one status out; every rule and its order."""

import itertools
import json

import pytest

from common.outcome import (GOOD_STATUSES, STATUSES, Outcome, classify_attempt, is_poisonous, mark_cascade,
                            normalize_error, unsupported_dtypes)
from common.runlog import Row, RunLog, parse_runlog
from common.session import Session

ILLEGAL = "RuntimeError: CUDA error: an illegal memory access was encountered"
ADVICE = "\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."


def rows(*statuses, reason=""):
    return [Row("mm", "float16", "kernel", "core", f"[{n}]", status, "" if status == "SUCCESS" else reason,
                latency_ms=0.005 if status == "SUCCESS" else None) for n, status in enumerate(statuses)]


def log(*statuses, reason="", errors=(), **header):
    return RunLog({"op": "mm", **header}, {"finished": "x"}, rows(*statuses, reason=reason), [], list(errors))


def test_line(outcome="passed", error="", reason="", when="call"):
    return {"schema": 1, "node": "benchmark/test_mm.py::test_mm", "outcome": outcome, "when": when,
            "seconds": 0.5, "error": error, "reason": reason}


test_line.__test__ = False


NODE = "benchmark/test_mm.py::test_mm"
# A session in which nothing went wrong, whatever the tests did; the latencies are those of rows().
WHOLE = Session(started=True, nodes=[], exit=0)


def classify(pytest_exit=0, tests=(), run=None, ended="exit", returncode=None, session=WHOLE):
    returncode = pytest_exit if returncode is None else returncode
    return classify_attempt(ended=ended, returncode=returncode, pytest_exit=pytest_exit,
                            log=run if run is not None else RunLog(), tests=list(tests), session=session)


# ---- ok, skipped, no-data (field fault 12)

def test_measured_and_passed_is_ok():
    assert classify(0, [test_line()], log("SUCCESS", "SUCCESS")) == Outcome("ok", "", "")


def test_all_skipped_is_skipped_with_its_reasons():
    tests = [test_line("skipped", reason="needs vllm"), test_line("skipped", reason="needs SM90"),
             test_line("skipped", reason="needs vllm")]
    assert classify(0, tests) == Outcome("skipped", "needs vllm; needs SM90", "")


@pytest.mark.parametrize("pytest_exit", [4, 5])
def test_a_module_that_skips_itself_is_skipped_whatever_pytest_calls_it(pytest_exit):
    # pytest 9: exit 5 for the file, 4 and "found no collectors" for a node of it.
    run = log(errors=["ERROR: found no collectors for /tree/benchmark/test_mm.py::test_mm"])
    assert classify(pytest_exit, [test_line("skipped", reason="needs SM90", when="collect")], run) \
        == Outcome("skipped", "needs SM90", "")


def test_a_skip_inside_a_run_that_began_no_dtype_is_skipped():
    run = log("NOT_MEASURED", "NOT_MEASURED", reason="after skip of torch.float16")
    assert classify(0, [test_line("skipped", reason="no shapes fit")], run) == Outcome("skipped", "no shapes fit", "")


def test_one_skip_beside_a_measured_pass_is_ok():
    assert classify(0, [test_line("skipped", reason="x"), test_line()], log("SUCCESS")).status == "ok"


@pytest.mark.parametrize("tests", [[], [test_line()], [test_line(), test_line("skipped", reason="x")]])
def test_a_pass_without_a_row_is_failed_for_no_data(tests):
    assert classify(0, tests) == Outcome("failed", "no-data: pytest passed without a measured row",
                                         "no-data: pytest passed without a measured row")


@pytest.mark.parametrize("outcomes, expected", [
    (["passed"], Outcome("ok")), (["passed", "skipped"], Outcome("ok")), (["skipped"], Outcome("skipped", "x")),
    (["passed", "failed"], Outcome("failed", "E: y", "E: y")),
    ([], Outcome("failed", "no-data: pytest passed without a test that passed",
                 "no-data: pytest passed without a test that passed"))])
def test_a_run_of_correctness_tests_is_judged_by_its_tests(outcomes, expected):
    tests = [test_line(outcome, "E: y" if outcome == "failed" else "", "x") for outcome in outcomes]
    assert classify(int("failed" in outcomes), tests, log(suite="tests")) == expected


# ---- the session's own record

def session(*latencies, nodes=(NODE,), exit=0, started=True):
    return Session(started, list(nodes), [("mm", "float16", list(latencies))], exit)


@pytest.mark.parametrize("printed, run, status, reason", [
    (["0.005000", "0.005000"], log("SUCCESS", "SUCCESS"), "ok", ""),
    (["0.005000"], log("SUCCESS", "SUCCESS"), "ok", ""),     # a program of the operator's own may print tables too
    (["0.005000"] * 3, log("SUCCESS", "SUCCESS"), "partial", "1 of 3 printed rows lack in run.log, or have another figure there"),
    (["0.005000", "0.000500"], log("SUCCESS", "SUCCESS"), "partial",
     "1 of 2 printed rows lack in run.log, or have another figure there"),
    (["0.005000", "FAILED"], log("SUCCESS"), "partial", "1 of 2 printed rows lack in run.log, or have another figure there"),
    (["0.005000", "0.005000"], log(), "failed", "2 of 2 printed rows lack in run.log, or have another figure there")])
def test_rows_that_were_printed_must_be_in_the_log(printed, run, status, reason):
    outcome = classify(0, [test_line()], run, session=session(*printed))
    assert (outcome.status, outcome.reason) == (status, reason)


@pytest.mark.parametrize("pytest_exit, tests, left, reason", [
    (0, [test_line()], session("0.005000", exit=None), "ended with exit status 0 before pytest did"),
    (5, [], session(exit=None), "ended with exit status 5 before pytest did"),
    (1, [test_line("failed", "E: x")], session(exit=None), "ended with exit status 1 before pytest did"),
    (1, [], Session(started=True), "ended with exit status 1 before pytest did"),
    (0, [test_line()], session(nodes=[NODE, "b", "c"]), "pytest was stopped from inside after 1 of 3 tests"),
    (5, [], session(), "pytest was stopped from inside after 0 of 1 test"),
    (0, [test_line("skipped", reason="x")], session(nodes=[NODE, "b"]), "pytest was stopped from inside after 1 of 2 tests")])
def test_a_session_that_did_not_end_is_crashed_whatever_its_exit_status(pytest_exit, tests, left, reason):
    outcome = classify(pytest_exit, tests, log("SUCCESS", record="session.jsonl"), session=left)
    assert (outcome.status, outcome.reason) == ("crashed", reason + "; 1 row measured")


def test_an_exit_json_that_run_pytest_did_not_write_is_not_believed():
    assert classify(0, [test_line()], log("SUCCESS"), returncode=137).reason == "killed by SIGKILL; 1 row measured"
    run = log("SUCCESS")
    run.footer["pytest_exit"] = "137"
    outcome = classify_attempt(ended="exit", returncode=None, pytest_exit=0, log=run, tests=[test_line()], session=WHOLE)
    assert (outcome.status, outcome.reason) == ("crashed", "killed by SIGKILL; 1 row measured")


def test_a_run_without_a_record_says_that_it_was_not_checked():
    unchecked = "not checked for lost rows: there is no session.jsonl"
    assert classify(0, [test_line()], log("SUCCESS"), session=None) == Outcome("ok", unchecked)
    assert classify(0, [test_line()], log(suite="tests"), session=None) == Outcome("ok", unchecked)


@pytest.mark.parametrize("left", [None, Session()])
@pytest.mark.parametrize("pytest_exit", [0, 1, 3, 4])
def test_a_session_that_never_began_says_the_last_words(left, pytest_exit):
    run = log(record="session.jsonl", errors=["E   KeyError: 'first'"])
    run.last_words = "ImportError: Error importing plugin \"_x\": No module named 'torch'"
    outcome = classify(pytest_exit, [], run, session=left)
    assert (outcome.status, outcome.reason) == (
        "failed", "pytest did not start: ImportError: Error importing plugin \"_x\": No module named 'torch'")


# ---- rows that lack (field fault 1)

def test_a_failed_row_beside_measured_ones_is_partial():
    run = log("SUCCESS", "SUCCESS", "FAILED", reason="RuntimeError: out of memory on 80 GiB")
    tests = [test_line("failed", "RuntimeError: out of memory on 80 GiB")]
    assert classify(1, tests, run) == Outcome(
        "partial", "RuntimeError: out of memory on 80 GiB; 2 of 3 rows measured", "RuntimeError: out of memory on # GiB")


def test_no_measured_row_is_failed():
    run = log("FAILED", "NOT_MEASURED", reason="ValueError: x")
    assert classify(1, [test_line("failed", "ValueError: x")], run) == Outcome("failed", "ValueError: x", "ValueError: x")


def test_a_failed_node_beside_a_measured_one_is_partial():
    tests = [test_line(), test_line("failed", "AssertionError: wrong"), test_line("error", "OSError: y", when="teardown")]
    assert classify(1, tests, log("SUCCESS")) == Outcome(
        "partial", "AssertionError: wrong; 1 more failure; 1 of 1 row measured", "AssertionError: wrong")


@pytest.mark.parametrize("status, reason, text", [
    ("FAILED", "ValueError: x", "ValueError: x; 1 of 2 rows measured"),
    ("INVALID", "Gems latency 0 ms is no time", "Gems latency 0 ms is no time; 1 of 2 rows measured"),
    ("TRUNCATED", "the row is cut", "the row is cut; 1 of 2 rows measured"),
    ("NOT_MEASURED", "", "mm float16: a row is NOT_MEASURED; 1 of 2 rows measured")])
def test_a_pass_with_a_row_missing_is_never_ok(status, reason, text):
    outcome = classify(0, [test_line()], log("SUCCESS", status, reason=reason))
    assert (outcome.status, outcome.reason) == ("partial", text)
    assert classify(0, [test_line()], log(status, reason=reason)).status == "failed"


def test_a_cut_log_is_never_ok():
    run = RunLog({"op": "mm"}, {}, rows("SUCCESS"), ["the log has no end banner"])
    assert classify(0, [test_line()], run).reason == "run.log is cut: rows may be missing; 1 of 1 row measured"
    assert classify(0, [test_line()], run).status == "partial"


def test_failed_tests_are_seen_without_tests_jsonl():
    run = log("SUCCESS", "FAILED", reason="ValueError: x")
    assert classify(1, [], run).reason == "ValueError: x; 1 of 2 rows measured"
    assert classify(1, [], log(errors=["E   KeyError: 'k'"])) == Outcome("failed", "KeyError: 'k'", "KeyError: 'k'")
    assert classify(1, []).reason == "no error text in run.log"


def test_an_operator_that_launched_nothing_is_failed_for_all_its_rows():
    error = "Failed: host device: no Triton kernel was launched"
    assert classify(1, [test_line("failed", error)], log("SUCCESS", "SUCCESS")) == Outcome("failed", error, error)
    assert classify(1, [test_line(), test_line("failed", error)], log("SUCCESS", "SUCCESS")).status == "partial"


# ---- no end of its own

def test_timeout_and_interruption_come_first():
    failed = [test_line("failed", "ValueError: x")]
    assert classify(None, failed, log("SUCCESS"), ended="timeout", returncode=-15) == Outcome(
        "timeout", "stopped at its time limit; 1 row measured", "timeout")
    assert classify(None, failed, log("SUCCESS"), ended="interrupted", returncode=130) == Outcome(
        "interrupted", "stopped before it ended", "")


@pytest.mark.parametrize("returncode, pytest_exit, reason", [
    (-11, None, "killed by SIGSEGV; 1 row measured"), (139, None, "killed by SIGSEGV; 1 row measured"),
    (137, None, "killed by SIGKILL; 1 row measured"), (255, None, "killed by signal 127; 1 row measured"),
    (1, None, "ended with exit status 1 before pytest did; 1 row measured"),
    (3, None, "ended with exit status 3 before pytest did; 1 row measured"),
    (0, None, "ended with exit status 0 before pytest did; 1 row measured"),
    (None, None, "it never ended by itself (no exit.json, no exit status); 1 row measured"),
    (134, 134, "killed by SIGABRT; 1 row measured"), (0, -9, "killed by SIGKILL; 1 row measured"),
    (7, 7, "ended with exit status 7 before pytest did; 1 row measured")])
def test_what_pytest_did_not_end_is_crashed(returncode, pytest_exit, reason):
    outcome = classify_attempt(ended="exit", returncode=returncode, pytest_exit=pytest_exit, log=log("SUCCESS"), tests=[])
    assert outcome == Outcome("crashed", reason, "crashed: " + reason.split(";")[0])


# ---- nothing ran

@pytest.mark.parametrize("error, reason", [
    ("ERROR: not found: /tree/benchmark/test_a.py::test_no", "not found: /tree/benchmark/test_a.py::test_no"),
    ("ERROR: file or directory not found: x.py", "file or directory not found: x.py")])
def test_a_node_that_is_not_there_is_not_found(error, reason):
    assert classify(4, [], log(errors=[error])) == Outcome("not_found", reason, "not found")


def test_nothing_collected_is_not_found():
    assert classify(5, []) == Outcome("not_found", "no test was collected", "not found")


@pytest.mark.parametrize("pytest_exit", [2, 4])
def test_a_module_that_cannot_be_imported_is_failed(pytest_exit):
    tests = [test_line("error", "ModuleNotFoundError: No module named 'vllm'", when="collect")]
    run = log(errors=["E   ModuleNotFoundError: No module named 'vllm'", "ERROR: found no collectors for x.py::test_a"])
    assert classify(pytest_exit, tests, run) == Outcome("failed", "ModuleNotFoundError: No module named 'vllm'",
                                                        "ModuleNotFoundError: No module named 'vllm'")


def test_a_conftest_or_a_command_line_that_pytest_refuses_is_failed_and_not_missing():
    run = log(errors=["ImportError while loading conftest '/tree/benchmark/conftest.py'.",
                      "E   ModuleNotFoundError: No module named 'flag_gems'"])
    assert classify(4, [], run) == Outcome(
        "failed", "pytest did not start: ModuleNotFoundError: No module named 'flag_gems'",
        "pytest did not start: ModuleNotFoundError: No module named 'flag_gems'")
    run = log(errors=["ERROR: usage: python -m pytest [options]", "python -m pytest: error: unrecognized arguments: --x"])
    assert classify(4, [], run).status == "failed"


def test_pytests_own_ends():
    assert classify(2, [test_line()], log("SUCCESS")).status == "interrupted"
    assert classify(3, [], log(errors=["INTERNALERROR> KeyError: 'x'"])) == Outcome(
        "failed", "pytest: internal error: KeyError: 'x'", "pytest: internal error: KeyError: 'x'")


# ---- totality

def test_every_combination_has_a_status_of_the_closed_set():
    runs = [RunLog(), log("SUCCESS"), log("FAILED"), log("SUCCESS", "TRUNCATED"),
            parse_runlog("==== gemscreen begin ====\nop: x\n")]
    tests = [[], [{}], [test_line()], [test_line("failed")], [test_line("skipped")], [test_line("error", when="collect")],
             [{"outcome": "failed", "error": None, "reason": None}], [test_line("failed", "\n \n")]]
    seen = set()
    for ended, code, pytest_exit, run, lines in itertools.product(
            ("exit", "timeout", "interrupted"), (None, -9, 0, 1, 137), (None, -11, 0, 1, 2, 3, 4, 5, 6), runs, tests):
        outcome = classify_attempt(ended=ended, returncode=code, pytest_exit=pytest_exit, log=run, tests=lines)
        assert outcome.status in STATUSES
        assert "\n" not in outcome.reason and (outcome.reason or outcome.status == "ok")
        if outcome.status == "ok":
            assert pytest_exit == 0 and run.rows and all(row.status == "SUCCESS" for row in run.rows)
        seen.add(outcome.status)
    assert seen == set(STATUSES) - {"dismissed", "left_out"}    # the plan's words, never an attempt's
    assert set(GOOD_STATUSES) < set(STATUSES)


def test_an_unknown_end_is_a_programming_error():
    with pytest.raises(ValueError, match="killed"):
        classify(0, ended="killed")


# ---- signatures

@pytest.mark.parametrize("text, signature", [
    ("RuntimeError: at 0x7f3aBC tried 81920 of 2.5 GiB\nsecond line", "RuntimeError: at # tried # of # GiB"),
    ("OSError: /tmp/run-12/a b.so: no such file", "OSError: PATH b.so: no such file"),
    ("KeyError: '/home/u/x.json'", "KeyError: 'PATH'"),
    ("ValueError: float16 is not int4pack", "ValueError: float16 is not int4pack"),
    ("E: took 12.5ms in 3 steps of deadbeef01", "E: took #ms in # steps of #"),
    ("\n\n  x   y  \n", "x y"), ("", ""), ("decade of facade", "decade of facade")])
def test_signatures_forget_what_changes_between_attempts(text, signature):
    assert normalize_error(text) == signature


def test_two_attempts_that_fail_alike_have_one_signature():
    first = classify(1, [test_line("failed", "RuntimeError: 12 MiB at 0xab in /tmp/a/1.py")])
    second = classify(1, [test_line("failed", "RuntimeError: 96 MiB at 0xcd in /tmp/a/2.py")])
    assert first.signature == second.signature == "RuntimeError: # MiB at # in PATH"


# ---- the poisoned context (field fault 16)

def test_the_first_illegal_access_is_the_root_and_its_repetitions_are_cascade():
    tests = [test_line("failed", ILLEGAL)] * 4 + [test_line(), test_line("failed", "ValueError: x")]
    outcome = classify(1, tests, log("SUCCESS", "FAILED", reason=ILLEGAL))
    assert outcome == Outcome("partial", ILLEGAL + "; 3 later failures in its cascade; 1 more failure; 1 of 2 rows measured",
                              ILLEGAL)


def test_cascade_rows_were_not_measured():
    marked = mark_cascade(rows("FAILED", "FAILED", reason="ValueError: x")
                          + rows("FAILED", "FAILED", "SUCCESS", "FAILED", reason=ILLEGAL + ADVICE))
    assert [(row.status, row.reason) for row in marked] == [
        ("FAILED", "ValueError: x"), ("FAILED", "ValueError: x"), ("FAILED", ILLEGAL + ADVICE),
        ("NOT_MEASURED", "cascade: " + ILLEGAL + ADVICE), ("SUCCESS", ""),
        ("NOT_MEASURED", "cascade: " + ILLEGAL + ADVICE)]


def test_the_rows_given_are_left_as_they_are():
    given = rows("FAILED", "FAILED", reason=ILLEGAL)
    mark_cascade(given)
    assert [row.status for row in given] == ["FAILED", "FAILED"]


@pytest.mark.parametrize("text, poisonous", [
    (ILLEGAL + ADVICE, True), ("RuntimeError: CUDA error: device-side assert triggered" + ADVICE, True),
    ("RuntimeError: CUDA error: misaligned address", True),
    ("RuntimeError: CUDA error: invalid argument" + ADVICE, False), ("torch.OutOfMemoryError: CUDA out of memory", False),
    ("", False)])
def test_the_advice_on_assertions_poisons_nothing(text, poisonous):
    assert is_poisonous(text) is poisonous


# ---- dtypes that an operator does not support

def test_unsupported_dtypes_come_from_upstreams_text():
    error = "ValueError: Given dtype(s) 'torch.int16, torch.int32'can't be supported by this op 'mm'"
    tests = [json.loads(json.dumps(test_line("failed", error, reason=error[12:]))),
             test_line("failed", "ValueError: Given dtype(s) 'torch.bool' can't be supported by this op 'mm'"), test_line()]
    assert unsupported_dtypes(tests) == ("int16", "int32", "bool")
    assert unsupported_dtypes([test_line("failed", "ValueError: x"), {"error": None}]) == ()
