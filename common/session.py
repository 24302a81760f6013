"""How far pytest got in a run directory, and which rows it printed: session.jsonl, as plugins/_run_records.py writes it.

    {"schema": 1, "event": "started"}                              all plugins and conftest.py files are loaded
    {"schema": 1, "event": "collected", "nodes": ["benchmark/test_mm.py::test_mm"]}
    {"schema": 1, "event": "table", "op": "mm", "dtype": "torch.float16", "rows": ["0.005000", "FAILED"]}
    {"schema": 1, "event": "finished", "exit": 0}                  the last thing of a session that ended by itself

    session = read_session(directory)      # None: there is no such file
    session.nodes, session.exit            # None where pytest did not get so far
    find_session_fault(directory, log)     # "pytest did not end by itself", "" if all is well
    count_lost_rows(session, log.rows)     # (rows that run.log does not have as they were printed, rows printed)

A run.log whose banner says `record: session.jsonl` has one beside it as soon as pytest's plugins are loaded.
Requirements: the standard library.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

NAME = "session.jsonl"


@dataclass
class Session:
    """What a session.jsonl says. `tables`: (op_name, dtype without `torch.`, texts of the rows' latencies)."""
    started: bool = False
    nodes: list = None
    tables: list = field(default_factory=list)
    exit: int = None


def read_session(directory):
    """The Session of a run directory, None if it has no such file. A line that is cut or damaged is left out."""
    try:
        text = (Path(directory) / NAME).read_bytes().decode("utf-8", errors="replace")
    except OSError:
        return None
    session = Session()
    for line in text.split("\n"):
        try:
            _add_event(session, json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return session


def never_started(log, session):
    """True if pytest ended before its session began: a plugin or a conftest.py that does not load, a wrong option."""
    return bool(log.header.get("record")) and not (session and session.started)


def find_session_fault(directory, log):
    """Why run.log (a RunLog) of the run `directory` may lack or falsify a figure that pytest printed, "" if nothing says so."""
    session = read_session(directory)
    if never_started(log, session):
        return "pytest did not start"
    if session is None:
        return ""
    if session.exit is None:
        return "pytest did not end by itself"
    lost, printed = count_lost_rows(session, log.rows)
    return f"{lost} of {printed} printed rows lack in run.log, or have another figure there" if lost else ""


def count_lost_rows(session, rows):
    """(how many printed rows are not among `rows` of run.log with their latency, how many were printed)."""
    printed = Counter((op, dtype, text) for op, dtype, texts in session.tables for text in texts)
    logged = Counter((row.op_name, row.dtype, _print_latency(row)) for row in rows)
    return (printed - logged).total(), printed.total()


def _add_event(session, line):
    event = line["event"]
    if event == "started":
        session.started = True
    elif event == "collected":
        session.nodes = [str(node) for node in line["nodes"]]
    elif event == "table":
        session.tables.append((line["op"], line["dtype"].replace("torch.", ""), [str(text) for text in line["rows"]]))
    elif event == "finished":
        session.exit = int(line["exit"])


def _print_latency(row):
    if row.status != "SUCCESS":
        return row.status
    return "N/A" if row.latency_ms is None else f"{row.latency_ms:.6f}"
