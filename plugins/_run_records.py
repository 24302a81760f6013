"""What _pretty_report_plugin writes beside run.log: tests.jsonl and session.jsonl (its docstring has samples).

Use:     session = SessionRecorder(JsonLines(path)); config.pluginmanager.register(session); session.add_table(result)
Each line is written as its thing happens, so that a crash costs only what had not happened yet: common/session.py
reads from that how far pytest got, and whether run.log has all the rows that were printed.
"""

import json
import os
import re

import pytest

LINE_KEYS = ("outcome", "when", "seconds", "error", "reason")
MAX_REASON = 8000  # characters of a message that tests.jsonl keeps


def find_cause(error):
    """The exception that upstream hid in `pytest.fail(str(e))`, else `error` itself."""
    cause = error.__context__
    hidden = isinstance(error, pytest.fail.Exception) and cause is not None and str(cause) == str(error)
    return cause if hidden else error


def describe_error(error):
    """`Type: text` on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class JsonLines:
    """A file that lines are appended to. It is held open: a test that removes the run directory ends like any other."""

    def __init__(self, path):
        self.pid = os.getpid()
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, **line):
        """Append {"schema": 1, **line}. A copy of this process that a test forked writes nothing."""
        if os.getpid() == self.pid:
            text = json.dumps({"schema": 1, **line}, ensure_ascii=False)
            os.write(self.file, (text + "\n").encode("utf-8", "backslashreplace"))


class SessionRecorder:
    """Says how far pytest got, and which rows it printed. What a crash cuts off is missing, and that tells it."""

    def __init__(self, lines):
        self.lines = lines

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self):
        self.lines.write(event="started")

    def pytest_collection_finish(self, session):
        self.lines.write(event="collected", nodes=[item.nodeid for item in session.items])

    def add_table(self, result):
        """A table is being printed: of each row the latency as upstream formats it, or FAILED."""
        rows = ["FAILED" if row.error_msg is not None else "N/A" if row.latency is None else f"{row.latency:.6f}"
                for row in result.result]  # fmt: skip
        self.lines.write(event="table", op=result.op_name, dtype=str(result.dtype), rows=rows)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus):
        self.lines.write(event="finished", exit=int(exitstatus))


class TestRecorder:
    """Appends one line per test to `lines` as the test ends."""

    __test__ = False  # pytest would take it for a test class by its name

    def __init__(self, lines):
        self.lines = lines
        self.ended = {}  # node -> line of a test that is under way

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        outcome = yield
        if call.excinfo is not None:
            outcome.get_result().cause = find_cause(call.excinfo.value)

    def pytest_runtest_logreport(self, report):
        line = self.ended.setdefault(report.nodeid, {"outcome": "passed", "when": "call", "seconds": 0.0})
        line["seconds"] += report.duration
        if report.outcome == "passed" or line["outcome"] in ("failed", "error"):
            return
        outcome = "error" if report.failed and report.when != "call" else report.outcome
        line.update(outcome=outcome, when=report.when, **describe_report(report))

    def pytest_runtest_logfinish(self, nodeid):
        if nodeid in self.ended:
            self.write(nodeid, self.ended.pop(nodeid))

    def pytest_collectreport(self, report):
        if not report.passed:
            outcome = "error" if report.failed else "skipped"
            line = {"outcome": outcome, "when": "collect", "seconds": 0.0}
            self.write(report.nodeid, {**line, **describe_report(report)})

    def write(self, node, line):
        line = {"error": "", "reason": "", **line, "seconds": round(line["seconds"], 3)}
        self.lines.write(node=node, **{key: line[key] for key in LINE_KEYS})


def describe_report(report):
    """{"error": "Type: first line", "reason": the whole message} of a report that is not passed."""
    error, reason = split_report(report)
    # A lone surrogate as its escape: no reader of the file could write it down again.
    return {key: text[:MAX_REASON].encode("utf-8", "backslashreplace").decode() for key, text in
            (("error", error), ("reason", reason))}


def split_report(report):
    """(error, reason) as describe_report gives them, of any length."""
    cause = getattr(report, "cause", None)
    if isinstance(report.longrepr, tuple):  # (file, line, "Skipped: why")
        return "", report.longrepr[2].removeprefix("Skipped: ")
    if cause is not None:
        first = (str(cause).splitlines() or [""])[0]
        return f"{type(cause).__name__}: {first}".removesuffix(": "), str(cause)
    text = str(report.longrepr or "")
    errors = [line[1:].strip() for line in text.splitlines() if re.match(r"E\s", line)]
    return (errors or text.strip().splitlines() or [""])[0], text
