"""How one attempt at an operator ended: a pure, total function of what was seen.

Use:

    from common.outcome import classify_attempt
    outcome = classify_attempt(ended="exit", returncode=1, pytest_exit=1, log=parse_runlog(path), tests=tests)
    outcome.status, outcome.reason      # "partial", "RuntimeError: out of memory; 5 of 6 rows measured"
    outcome.signature                   # "RuntimeError: out of memory": equal for equal failures

The order of the rules is the order of the code. `ok` means: pytest's session ended by itself and passed, every
collected test ended, at least one row was measured, and run.log has every row that was printed, with its figure. What
is all skipped is `skipped`; what passed without a measured row is `failed` with the reason no-data. A run of
correctness tests (SUITE=tests) prints no rows and is judged by its tests. A run that has no record of its session
(common/session.py) can be `ok`, but its reason says that it was not checked so.
Requirements: the standard library.
"""

import re
import signal
from dataclasses import dataclass, replace

from common.session import count_lost_rows, never_started

STATUSES = ("ok", "partial", "failed", "timeout", "crashed", "skipped", "not_found", "dismissed", "left_out", "interrupted")
GOOD_STATUSES = ("ok", "skipped", "dismissed", "left_out")

PASSED, TESTS_FAILED, STOPPED, INTERNAL_ERROR, USAGE_ERROR, NOTHING_COLLECTED = range(6)     # pytest's exit statuses

UNCHECKED = "not checked for lost rows: there is no session.jsonl"
NO_LAUNCH = "no Triton kernel was launched"
REASON_LENGTH = 300

# Errors after which a device context answers every call with the same error. The advice that newer
# torch adds to every CUDA error ("... to enable device-side assertions") is no such sign.
_POISON = re.compile(
    r"illegal memory access|illegal address|illegal instruction|misaligned address|unspecified launch failure"
    r"|device-side assert triggered|hardware stack error|invalid program counter", re.I)
_UNSUPPORTED = re.compile(r"Given dtype\(s\) '([^']*)'\s*can't be supported by this op")
_NOT_FOUND = re.compile(r"ERROR: ((?:not found|file or directory not found|found no collectors for).*)")
_PATH = re.compile(r"(?<![\w.])/[^\s:'\",;)\]]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+|(?<!\w)(?=[a-f]*\d)[0-9a-f]{8,}(?!\w)")
_NUMBER = re.compile(r"(?<![A-Za-z_0-9])\d+(?:\.\d+)*")


@dataclass(frozen=True)
class Outcome:
    """status is one of STATUSES; reason is one line for people, empty for what is ok and checked; signature is equal
    for two attempts that failed alike, empty where there was no failure."""
    status: str
    reason: str = ""
    signature: str = ""


def classify_attempt(*, ended, returncode, pytest_exit, log, tests, session=None):
    """Outcome of one attempt.

    ended        "exit" (by itself), "timeout" or "interrupted" (by the driver)
    returncode   of run_pytest.sh: negative or above 128 names a signal; None if unknown
    pytest_exit  pytest's own exit status from exit.json, None if it never ended by itself
    log          RunLog of the attempt
    tests        the lines of tests.jsonl: dicts with outcome, when, error, reason; [] if there is none
    session      Session of the attempt, None if it has no session.jsonl
    """
    measured = sum(row.status == "SUCCESS" for row in log.rows)
    if ended == "interrupted":
        return Outcome("interrupted", "stopped before it ended")
    if ended == "timeout":
        return Outcome("timeout", f"stopped at its time limit; {_count(measured, 'row')} measured", "timeout")
    if ended != "exit":
        raise ValueError(f"ended: {ended!r}: none of exit, timeout, interrupted")
    what = _find_early_end(returncode, pytest_exit, log, tests, session)
    if what:
        return Outcome("crashed", f"{what}; {_count(measured, 'row')} measured", f"crashed: {what}")
    if never_started(log, session):
        return _fail("failed", f"pytest did not start: {_last_error(log)}")
    return _classify_tests(pytest_exit, log, tests, measured) or _classify_rows(log, tests, session, measured)


def mark_cascade(rows):
    """`rows` with each FAILED row NOT_MEASURED whose error only repeats an earlier poisonous one.

    After an illegal memory access every later call fails with the same error: the first such row is
    the root and stays FAILED, the rest were never measured.
    """
    root, marked = None, []
    for row in rows:
        if row.status == "FAILED" and is_poisonous(row.reason):
            signature = normalize_error(row.reason)
            if signature == root:
                row = replace(row, status="NOT_MEASURED", reason=f"cascade: {row.reason}")
            root = root or signature
        marked.append(row)
    return marked


def is_poisonous(text):
    """True if the error `text` leaves the device context unusable for the rest of the process."""
    return bool(_POISON.search(text))


def unsupported_dtypes(tests):
    """The dtypes, without `torch.`, that upstream said an operator does not support, in its order.

    Source: Benchmark.set_dtypes, ValueError "Given dtype(s) 'torch.int16, torch.int32'can't be
    supported by this op 'NAME'". A tuple, empty if no test of `tests` failed so.
    """
    found = {}
    for test in tests:
        for match in _UNSUPPORTED.finditer(f"{test.get('error') or ''}\n{test.get('reason') or ''}"):
            found.update(dict.fromkeys(name.strip().replace("torch.", "") for name in match[1].split(",")))
    return tuple(found)


def normalize_error(text):
    """First line of an error with numbers, addresses and paths replaced: equal for equal failures."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    line = _NUMBER.sub("#", _HEX.sub("#", _PATH.sub("PATH", line)))
    return " ".join(line.split())[:REASON_LENGTH]


# ---- the parts of classify_attempt

def _find_early_end(returncode, pytest_exit, log, tests, session):
    """What ended pytest before its session was done, "" if it was done or never began."""
    if pytest_exit not in range(6):
        return _describe_exit(returncode if pytest_exit is None else pytest_exit)
    footer = log.footer.get("pytest_exit", "")
    for status in (returncode, int(footer) if footer.isdigit() else None):
        if status is not None and status != pytest_exit:    # something else than run_pytest.sh wrote exit.json
            return _describe_exit(status)
    if session is None or not session.started:
        return ""
    if session.exit is None:
        return _describe_exit(pytest_exit)
    ended = {test.get("node") for test in tests if test.get("when") != "collect"}
    done = sum(node in ended for node in session.nodes or [])
    if pytest_exit in (PASSED, NOTHING_COLLECTED) and done < len(session.nodes or []):
        return f"pytest was stopped from inside after {done} of {_count(len(session.nodes), 'test')}"
    return ""


def _describe_exit(status):
    if status is None:
        return "it never ended by itself (no exit.json, no exit status)"
    number = -status if status < 0 else status - 128 if status > 128 else None
    if number is None:
        return f"ended with exit status {status} before pytest did"
    try:
        return f"killed by {signal.Signals(number).name}"
    except ValueError:
        return f"killed by signal {number}"


def _classify_tests(pytest_exit, log, tests, measured):
    """The Outcome of a session whose tests did not all pass, or None: then its rows decide."""
    failures = [test for test in tests if test.get("outcome") in ("failed", "error")]
    if tests and all(test.get("outcome") == "skipped" for test in tests) \
            and all(row.status == "NOT_MEASURED" for row in log.rows):
        return Outcome("skipped", _join_skip_reasons(tests))
    if failures or pytest_exit == TESTS_FAILED:
        return _classify_failure(failures, log, tests, measured)
    if pytest_exit in (USAGE_ERROR, NOTHING_COLLECTED):
        return _classify_nothing_run(pytest_exit, log)
    if pytest_exit == STOPPED:
        return Outcome("interrupted", "pytest was stopped from inside (its exit status 2)")
    if pytest_exit == INTERNAL_ERROR:
        return _fail("failed", f"pytest: internal error: {_first_error(log)}")
    return None


def _classify_rows(log, tests, session, measured):
    lost, printed = count_lost_rows(session, log.rows) if session else (0, 0)
    whole = Outcome("ok", "" if session else UNCHECKED)
    if log.header.get("suite") == "tests" and not log.rows and not printed:
        passed = any(test.get("outcome") == "passed" for test in tests)
        return whole if passed else _fail("failed", "no-data: pytest passed without a test that passed")
    missing = f"{lost} of {_count(printed, 'printed row')} lack in run.log, or have another figure there" if lost else ""
    if not measured:
        return _fail("failed", _first_row_reason(log) or missing or "no-data: pytest passed without a measured row")
    if measured < len(log.rows) or log.is_cut:
        reason = _first_row_reason(log) or "run.log is cut: rows may be missing"
        return _fail("partial", reason, f"; {measured} of {_count(len(log.rows), 'row')} measured")
    return _fail("partial", missing) if missing else whole


def _classify_failure(failures, log, tests, measured):
    errors = [(test.get("error") or test.get("reason") or "").strip() for test in failures]
    reason = next((error for error in errors if error), "") or _first_row_reason(log) or _first_error(log)
    notes = _describe_other_failures(errors)
    if measured and not _is_all_unlaunched(failures, tests):
        return _fail("partial", reason, f"{notes}; {measured} of {_count(len(log.rows), 'row')} measured")
    return _fail("failed", reason, notes)


def _classify_nothing_run(pytest_exit, log):
    for error in log.errors:
        if match := _NOT_FOUND.match(error):
            return Outcome("not_found", match[1][:REASON_LENGTH], "not found")
    if pytest_exit == NOTHING_COLLECTED:
        return Outcome("not_found", "no test was collected", "not found")
    return _fail("failed", f"pytest did not start: {_first_error(log)}")


def _is_all_unlaunched(failures, tests):
    """True if nothing passed and every failure is an operator that launched no kernel.

    Its table is full of figures, of something else than the operator: they do not make it partial.
    """
    return bool(failures) and all(NO_LAUNCH in f"{test.get('error')} {test.get('reason')}" for test in failures) \
        and not any(test.get("outcome") == "passed" for test in tests)


def _describe_other_failures(errors):
    """`; 3 later failures are its cascade; 1 more failure`: what follows the first error."""
    first = normalize_error(errors[0]) if errors else ""
    cascade = sum(normalize_error(error) == first for error in errors[1:]) if is_poisonous(first) else 0
    more = max(len(errors) - 1, 0) - cascade
    text = f"; {_count(cascade, 'later failure')} in its cascade" if cascade else ""
    return text + (f"; {_count(more, 'more failure')}" if more else "")


def _first_row_reason(log):
    for row in log.rows:
        if row.status != "SUCCESS":
            return row.reason or f"{row.op_name} {row.dtype}: a row is {row.status}"
    return ""


def _last_error(log):
    """What Python or pytest said last before it gave up."""
    return log.last_words or _first_error(log)


def _first_error(log):
    """pytest's first error line, preferring the exception to the sentence around it."""
    exceptions = [error for error in log.errors if error.startswith(("E ", "INTERNALERROR>"))]
    text = (exceptions or log.errors or [log.last_words or "no error text in run.log"])[0]
    return re.sub(r"^(E|INTERNALERROR>|ERROR:) +", "", text)


def _join_skip_reasons(tests):
    reasons = dict.fromkeys((test.get("reason") or "no reason given").strip() for test in tests)
    return "; ".join(reasons)[:REASON_LENGTH]


def _fail(status, reason, notes=""):
    line = next((line.strip() for line in reason.splitlines() if line.strip()), "")[:REASON_LENGTH]
    return Outcome(status, line + notes, normalize_error(reason))


def _count(number, what):
    return f"{number} {what}{'' if number == 1 else 's'}"
