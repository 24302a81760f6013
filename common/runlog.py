"""Read a run.log: the banners of run_pytest.sh and upstream's benchmark tables, as rows.

Input, as run_pytest.sh writes it (columns narrowed here; the real ones are 20 wide):

    ==== gemscreen begin ====
    repo: main
    op: mm
    ====
    Operator: mm  Performance Test (dtype=torch.float16, mode=kernel,level=core)
    Legend: #1 = torch.Size([64, 64])
    Status   Torch Latency (ms)  Gems Latency (ms)  Gems Speedup   TFLOPS   Size Detail
    ------------------------------------------------------------------------------------
    SUCCESS            0.012300           0.024600         0.500    1.234   [torch.Size([64, 8]), #1]
    FAILED                  N/A                N/A           N/A   N/A
    TIMER: Operator=mm dtype=torch.float16 row=1 timer=graph cache=cold gap_us=0.85 nodes=1 host_us=61.2 reason=<<<>>>
    FAILED: Operator=mm dtype=torch.float16 row=2 err=<<<RuntimeError: out of memory>>>
    NOT MEASURED: Operator=mm dtype=torch.float32 reason=<<<after failure of torch.float16>>>
    ==== gemscreen end ====
    pytest_exit: 1
    ====

Output: RunLog(header={"repo": "main", "op": "mm"}, footer={"pytest_exit": "1"}, rows=[Row, ...]).

A column is known by its header text. The size detail is the rest of the record: it may span lines
and hold any word, SUCCESS too. N/A is None, never 0. Whatever is cut (killed writer, full disk) is
a row TRUNCATED without figures, so that a cut log never shows a figure that the whole one lacks.
Requirements: the standard library. Limits: one log is held in memory; text that other programs
print into the middle of a row makes that row TRUNCATED.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import UserError
from common.tablerow import FIXED, Row, fill_figures, is_closed, name_columns, split_cells

BANNER, BEGIN, END, CLOSE = "==== gemscreen ", "==== gemscreen begin ====", "==== gemscreen end ====", "===="
STARTS = ("SUCCESS  ", "FAILED  ")     # pytest's own "FAILED test_x.py::..." has one blank

MAX_DETAIL_LINES = 20
MAX_ERRORS = 20

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# Every repetition is bounded: a log may hold a line of any length, and the time to read it must stay linear in it.
_TITLE = re.compile(r"Operator: (.{1,200}?)  Performance Test \(dtype=(.{0,100}), ?mode=(\w+), ?level=(\w+)\)")
_LEGEND = re.compile(r"Legend: (#\d+) = (.*)")
_SYMBOL = re.compile(r"#\d+")
_FAILED_ROW = re.compile(r"FAILED: Operator=(\S{1,200}) dtype=(\S{1,100}) row=(\d{1,6}) err=<<<(.*)>>>")
_FAILED_UPSTREAM = re.compile(r"FAILED: Operator=(\S{1,200}) dtype=(\S{1,100}) err=<<<(.*?)(?:>>>|$)")
_TIMER = re.compile(r"TIMER: Operator=(\S{1,200}) dtype=(\S{1,100}) row=(\d{1,6}) timer=(\w+) cache=(\w+)(.*?) reason=<<<(.*)>>>")
_TIMER_FIGURES = {name: re.compile(rf" {name}=(\d{{1,12}}(?:\.\d{{1,12}})?(?:e[+-]?\d{{1,3}})?)(?: |$)")
                  for name in ("host_us", "gap_us", "nodes")}
_NOT_MEASURED = re.compile(r"NOT MEASURED: Operator=(\S{1,200}) dtype=(\S{1,100}) reason=<<<(.*)>>>")
_BANNER_LINE = re.compile(r"(\w+): ?(.*)")
_LAST_WORDS = re.compile(r"(?:E  +)?((?:[A-Za-z_][\w.]{0,200})?(?:Error|Exception|Interrupt|Exit)(?::.*|$))"
                         r"|.{0,100}?: error: (.*)")
_EXCEPTION = re.compile(r"(?:E  |INTERNALERROR>) +[\w.]{0,200}(?:Error|Exception|Interrupt|Exit)\b")


@dataclass
class RunLog:
    """What a run.log says. footer is empty if the log was cut; notes are the reader's remarks;
    errors are pytest's own error lines (not found, usage, import), the first 20; last_words is the last of them or of
    Python's own."""
    header: dict = field(default_factory=dict)
    footer: dict = field(default_factory=dict)
    rows: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    errors: list = field(default_factory=list)
    last_words: str = ""

    @property
    def is_cut(self):
        """True if the run began with a banner and the end banner lacks, or a row was cut."""
        return bool(self.header and not self.footer) or any(row.status == "TRUNCATED" for row in self.rows)


@dataclass
class _Table:
    """The table that is being read: what its title and header said, and its rows so far."""
    op_name: str
    dtype: str
    mode: str
    level: str
    columns: tuple = ()
    legend: dict = field(default_factory=dict)
    rows: list = field(default_factory=list)


def parse_runlog(source):
    """RunLog of `source`: a path object is read, a str is the text itself.

    Never raises for what the text holds. UserError naming the file if it cannot be read.
    """
    text = _read_text(source) if isinstance(source, os.PathLike) else source
    return _Reader(text).read()


def _read_text(path):
    try:
        return Path(path).read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}: the run log cannot be read; "
                        f"make it readable, or run its operator again") from None


class _Reader:
    """One pass over the lines of one log. `position` is the next line to look at."""

    def __init__(self, text):
        text = _ANSI.sub("", text) if "\x1b" in text else text
        self.lines, self.unended = [], set()    # unended: the indices of lines without a newline
        for line in text.split("\n"):
            cut = line.find(BANNER)
            if cut > 0:     # a killed program's last words share a line with the banner that follows
                self.unended.add(len(self.lines))
                self.lines.append(line[:cut])
                line = line[cut:]
            self.lines.append(line.rstrip("\r"))
        if self.lines[-1]:
            self.unended.add(len(self.lines) - 1)
        self.position = 0
        self.table = None
        self.last_tables = {}
        self.log = RunLog()

    def read(self):
        while self.position < len(self.lines):
            line = self.lines[self.position]
            self.position += 1
            if line:
                self._read_line(line)
        if self.lines[-1]:
            self.log.notes.append("the log ends in the middle of a line")
        if self.log.header and not self.log.footer:
            self.log.notes.append("the log has no end banner")
        return self.log

    def _read_line(self, line):
        first = line[0]
        if first in "SF" and self._read_record(line):
            return
        if "Operator" in line:
            self._read_operator_line(line)
        elif first == "S" and line.startswith("Status ") and "Latency" in line:
            self._read_columns(line)
        elif first == "L" and self.table and not self.table.columns and (match := _LEGEND.match(line)):
            self.table.legend[match[1]] = match[2]
        elif first == "=":
            self._read_banner(line)
        else:
            self._read_error(line)

    def _read_error(self, line):
        if match := _LAST_WORDS.match(line):
            self.log.last_words = match[1] or match[2]
        if line.startswith("ERROR: ") or ": error: " in line or _EXCEPTION.match(line) \
                or line.startswith("ImportError while loading conftest"):
            if len(self.log.errors) < MAX_ERRORS:
                self.log.errors.append(line)

    # ---- banners

    def _read_banner(self, line):
        self.table = None   # pytest's own === lines come after the last table
        if line == BEGIN:
            if self.log.header:
                self.log.notes.append("a second begin banner: more than one run in this log")
            self.log.header = self.log.header or self._read_pairs()
        elif line == END:
            self.log.footer = self._read_pairs()

    def _read_pairs(self):
        """The `key: value` lines up to the closing line; a line that was not ended does not count."""
        pairs = {}
        while self.position < len(self.lines) and self.position not in self.unended:
            match = _BANNER_LINE.fullmatch(self.lines[self.position])
            if not match:
                break
            pairs[match[1]] = match[2]
            self.position += 1
        return pairs

    # ---- lines that name an operator

    def _read_operator_line(self, line):
        is_whole = self.position - 1 not in self.unended
        if match := _TITLE.search(line):
            self.table = _Table(match[1], _strip_torch(match[2]), match[3], match[4])
            self.last_tables[self.table.op_name, self.table.dtype] = self.table
        elif "Operator: " in line and "Performance" in line:
            self.table = None
            self.log.notes.append(f"a table is left out, its title is damaged: {line.strip()[:80]}")
        elif is_whole and (match := _FAILED_ROW.search(line)):
            self._add_failure(match[1], _strip_torch(match[2]), int(match[3]), match[4])
        elif is_whole and (match := _TIMER.match(line)):
            self._label_row(match)
        elif is_whole and (match := _NOT_MEASURED.search(line)):
            self._add_row(match[1], _strip_torch(match[2]), "", "NOT_MEASURED", match[3])
        elif match := _FAILED_UPSTREAM.search(line):
            # Upstream's own line prints a literal {dtype} and {e}: it can name the operator only.
            self.log.notes.append(f"upstream could not make an input of {match[1]} "
                                  f"(dtype={match[2]} err={match[3]})")

    def _add_failure(self, op_name, dtype, number, reason):
        """Give row `number` (from 1) of that operator's last table its reason."""
        table = self.last_tables.get((op_name, dtype))
        if table and 1 <= number <= len(table.rows) and table.rows[number - 1].status == "FAILED":
            table.rows[number - 1].reason = reason
        else:
            self._add_row(op_name, dtype, "N/A", "FAILED", reason)

    def _label_row(self, match):
        """Give a row of that operator's last table how it was timed; a remark is a reason only where there is none."""
        table, number = self.last_tables.get((match[1], _strip_torch(match[2]))), int(match[3])
        if not table or not 1 <= number <= len(table.rows):
            self.log.notes.append(f"a TIMER line names a row that is not there: {match[0][:80]}")
            return
        row = table.rows[number - 1]
        row.timer, row.cache = match[4], match[5]
        for name, pattern in _TIMER_FIGURES.items():
            found = pattern.search(match[6])
            setattr(row, name, float(found[1]) if found else None)
        if row.status == "INVALID":
            row.reason = "; ".join(filter(None, (row.reason, match[7])))
        else:
            row.reason = row.reason or match[7]

    def _add_row(self, op_name, dtype, shape, status, reason):
        """A row that stands in no table; mode and level are those of the run."""
        last = self.log.rows[-1] if self.log.rows else None
        mode = last.mode if last else self.log.header.get("mode", "")
        level = last.level if last else self.log.header.get("level", "")
        self.log.rows.append(Row(op_name, dtype, mode, level, shape, status, reason))

    # ---- tables

    def _read_columns(self, line):
        """Give the table its columns, in the header's order; None for a column nobody knows."""
        if not self.table or self.table.columns:
            self.table = None
            self.log.notes.append("a table without a title is left out")
            return
        self.table.columns, unknown = name_columns(line)
        self.log.notes += [f"unknown column {title!r} is left out" for title in unknown]

    def _read_record(self, line):
        """Read the row that starts at `line`. False if the line starts none."""
        is_unended = self.position - 1 in self.unended
        if not line.startswith(STARTS) and not (is_unended and len(line) > 1
                                                and any(start.startswith(line) for start in STARTS)):
            return False
        cells, end = split_cells(line)
        if not self.table or not self.table.columns:
            if len(cells) >= len(FIXED):
                self.log.notes.append(f"a row outside of a table is left out: {line[:80]}")
            return False
        detail = line[end:].strip()
        closed = is_closed(detail)
        while not closed and not is_unended and self._next_continues(detail):
            is_unended = self.position in self.unended
            detail += "\n" + self.lines[self.position]
            self.position += 1
            closed = is_closed(detail)
        if is_unended or not closed or not detail or len(cells) < len(FIXED):
            self._add_cut_row(detail)
        else:
            self._add_table_row(line.split(" ", 1)[0], cells, detail)
        return True

    def _next_continues(self, detail):
        """True if the next line can belong to the unclosed `detail`."""
        if self.position >= len(self.lines) or detail.count("\n") >= MAX_DETAIL_LINES:
            return False
        line = self.lines[self.position]
        if not line.strip() or line.startswith((CLOSE, "FAILED: ", "NOT MEASURED: ")) or _TITLE.match(line):
            return False
        return not line.startswith(STARTS) or len(split_cells(line)[0]) < len(FIXED)

    def _add_cut_row(self, detail):
        table = self.table
        row = Row(table.op_name, table.dtype, table.mode, table.level, detail, "TRUNCATED", "the row is cut")
        table.rows.append(row)
        self.log.rows.append(row)

    def _add_table_row(self, status, cells, detail):
        table = self.table
        if table.legend:
            detail = _SYMBOL.sub(lambda match: table.legend.get(match[0], match[0]), detail)
        row = Row(table.op_name, table.dtype, table.mode, table.level, detail, status)
        fill_figures(row, table.columns, cells)
        table.rows.append(row)
        self.log.rows.append(row)


def _strip_torch(dtype):
    return dtype.replace("torch.", "")
