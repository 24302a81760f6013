"""Write a run's figures for people: terminal table, Markdown, one HTML page. Pure: each returns its text.

The HTML page is report.html beside this file with its @WORDS@ replaced. It loads nothing from
anywhere (its own policy forbids it), works without scripts, and links each op to its run.log.
Requirements: rich, for the terminal table's colours only.
"""

import html
import os
import re
from pathlib import Path
from urllib.parse import quote

from common.outcome import GOOD_STATUSES
from screen.facts import list_facts
from screen.figures import count_statuses

TEMPLATE = Path(__file__).with_name("report.html")
COLUMNS = ("repo", "op", "status", "dtype", "fallback", "measured how", "rows", "bad rows", "geomean speedup", "of rows",
           "min", "max")
NUMBERS = ("rows", "bad rows", "geomean speedup", "of rows", "min", "max")
NOTE = ("Speedup is Torch latency / Gems latency, above 1 where Gems is faster; its geometric mean stands beside the "
        "number of rows it rests on. Bad rows failed, were cut, invalid or never measured. What was measured in "
        "different ways (mode, level, timer, cache) is never averaged.")
HOST_NOTE = "no speedups: on the host device kernels are compiled for a GPU and executed on the CPU, so that times are no times"
FALLBACK_NOTE = ("fallback: not the dtypes that were asked for, but those of them that the operator supports (subset), or its "
                 "own (own)")
WORST_FIRST = ("failed", "crashed", "timeout", "partial", "not_found", "interrupted")
STYLES = {"ok": "green", "skipped": "dim", "dismissed": "dim", "left_out": "dim", "partial": "yellow", "interrupted": "yellow",
          "not_found": "yellow", "failed": "red", "timeout": "red", "crashed": "red"}
GAP = "  "


def list_cells(group):
    """The texts of a Group in COLUMNS' order; empty where there is no figure."""
    result, ratios = group.result, group.ratios
    again = f" #{result.run_number}" if result.run_number > 1 else ""
    figures = (f"{group.geomean:.3f}", str(len(ratios)), f"{min(ratios):.3f}", f"{max(ratios):.3f}") if ratios else ("",) * 4
    return (result.repo, result.op + again, result.status, group.dtype, result.fallback, group.method,
            str(group.rows), str(group.bad) if group.bad else "") + figures


def make_table(groups):
    """(columns, rows of texts): those of COLUMNS that are not empty throughout."""
    rows = [list_cells(group) for group in groups]
    kept = [number for number, column in enumerate(zip(*rows)) if any(column)]
    return [COLUMNS[number] for number in kept], [[row[number] for number in kept] for row in rows]


def format_counts(results):
    """`24 ops: 23 ok, 1 skipped`; runs by hand may hold an op more than once, then it is `24 runs`."""
    what = "op" if len({result.key for result in results}) == len(results) else "run"
    counts = ", ".join(f"{count} {status}" for status, count in count_statuses(results).items())
    return f"{len(results)} {what}{'' if len(results) == 1 else 's'}: {counts}"


def list_notes(run):
    """What a reader of this run's table has to know beside NOTE, as short texts."""
    return [note for note, holds in ((HOST_NOTE, any(result.is_host and not result.is_tests for result in run.results)),
                                     (FALLBACK_NOTE, any(result.fallback for result in run.results))) if holds]


def list_bad_results(results):
    """The results that are not good, the worst first."""
    bad = [result for result in results if result.status not in GOOD_STATUSES]
    return sorted(bad, key=find_rank)


def find_rank(result):
    """0 for the worst status; all good ones come last, together."""
    return WORST_FIRST.index(result.status) if result.status in WORST_FIRST else len(WORST_FIRST)


def format_reason(result):
    """`main/mm: RuntimeError: out of memory`, on one line."""
    return f"{result.repo}/{result.op}: {' '.join(result.reason.split()) or 'no reason is known'}"


# ---- terminal

def print_table(run, groups, stream):
    """Print the table to `stream`, then one line per op that is not good, the worst first, and last the counts.

    Lines are never wrapped, so that grep works. Not rich's own Table: laying out 5,000 rows takes that 3 s. Plain without rich.
    """
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        stream.writelines(f"{line}\n" for line, *_ in style_lines(run, groups))
        return
    console = Console(file=stream, highlight=False, soft_wrap=True)
    for line, *style in style_lines(run, groups):
        text = Text(line)
        if style:
            text.stylize(*style)
        console.print(text)


def style_lines(run, groups):
    """(line, style, from, to) of the table and what follows it; or (line,)."""
    columns, rows = make_table(groups)
    widths = [max(map(len, column)) for column in zip(columns, *rows)]
    yield _align(columns, columns, widths), "bold"
    at = columns.index("status")
    start = sum(widths[:at]) + at * len(GAP)
    for row, group in zip(rows, groups):
        yield _align(columns, row, widths), STYLES[group.result.status], start, start + widths[at]
    for note in list_notes(run):
        yield note, "dim"
    yield "",
    for result in list_bad_results(run.results):
        yield f"{result.status:<12}{format_reason(result)}", STYLES[result.status], 0, 12
    yield format_counts(run.results), "bold"


def _align(columns, cells, widths):
    return GAP.join(cell.rjust(width) if column in NUMBERS else cell.ljust(width)
                    for column, cell, width in zip(columns, cells, widths)).rstrip()


# ---- Markdown

def format_markdown(run, groups):
    """summary.md's text."""
    columns, rows = make_table(groups)
    lines = [f"# {_escape_markdown(run.name)}", "", _escape_markdown(format_counts(run.results)), ""]
    lines += [f"- {_escape_markdown(fact)}" for fact in list_facts(run.info)]
    if bad := list_bad_results(run.results):
        lines += ["", "## Not good", ""]
        lines += [_escape_markdown(f"- {result.status} {format_reason(result)}") for result in bad]
    lines += ["", "## Figures", "", "| " + " | ".join(columns) + " |",
              "|" + "|".join("---:" if column in NUMBERS else "---" for column in columns) + "|"]
    lines += ["| " + " | ".join(map(_escape_markdown, row)) + " |" for row in rows]
    for note in list_notes(run) + [NOTE]:
        lines += ["", _escape_markdown(note[0].upper() + note[1:].rstrip(".") + ".")]
    return "\n".join(lines + [""])


def _escape_markdown(text):
    for character in "\\|_*`<[":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())


# ---- HTML

def format_html(run, groups, directory):
    """report.html's text. `directory` is where the page will lie: the links to run.log start there.

    What is not good comes first, as everywhere; any column sorts otherwise.
    """
    groups = sorted(groups, key=lambda group: find_rank(group.result))
    columns, rows = make_table(groups)
    why = ["reason"] * any(group.result.reason for group in groups)
    words = {
        "TITLE": html.escape(run.name),
        "FACTS": "".join(f"<li>{html.escape(fact)}</li>" for fact in list_facts(run.info)),
        "COUNTS": html.escape(format_counts(run.results)),
        "NOTES": "".join(f"<p>{html.escape(note[0].upper() + note[1:])}.</p>" for note in list_notes(run)),
        "STATUSES": "".join(f'<button class="{status}" data-status="{status}" aria-pressed="false">{count} {status}</button>'
                            for status, count in count_statuses(run.results).items()),
        "HEAD": "".join(f'<th{_number_class(column)}><button>{column}</button></th>' for column in columns + why),
        "BODY": "\n".join(_format_html_row(columns, row, group.result, directory, bool(why)) for row, group in zip(rows, groups)),
        "NOTE": html.escape(NOTE),
    }
    # One pass over the template: a word inside an op's text is never taken for ours.
    return re.sub(r"@([A-Z]+)@", lambda match: words[match[1]], TEMPLATE.read_text(encoding="utf-8"))


def _format_html_row(columns, row, result, directory, has_why):
    cells = dict(zip(columns, map(html.escape, row)))
    if result.log_path:
        link = quote(os.path.relpath(result.log_path.absolute(), Path(directory).absolute()))
        cells["op"] = f'<a href="{html.escape(link)}">{cells["op"]}</a>'
    cells["status"] = f'<span class="{result.status}">{cells["status"]}</span>'
    tds = "".join(f"<td{_number_class(column)}>{cell}</td>" for column, cell in cells.items())
    tds += f'<td class="why">{html.escape(result.reason)}</td>' if has_why else ""
    return f'<tr data-status="{result.status}">{tds}</tr>'


def _number_class(column):
    return ' class="n"' if column in NUMBERS else ""
