"""Write a run's figures for people: terminal table, Markdown, one HTML page. Pure: each returns its text.

The HTML page is report.html beside this file with its @WORDS@ replaced. It loads nothing from
anywhere (its own policy forbids it), works without scripts, and links each op to its run.log.
Requirements: rich, for the terminal table only.
"""

import html
import os
import re
from pathlib import Path
from urllib.parse import quote

from common.outcome import GOOD_STATUSES
from screen.figures import count_statuses

TEMPLATE = Path(__file__).with_name("report.html")
COLUMNS = ("repo", "op", "status", "dtype", "measured how", "rows", "bad rows", "geomean speedup", "of rows", "min", "max")
NUMBERS = ("rows", "bad rows", "geomean speedup", "of rows", "min", "max")
NOTE = ("Speedup is Torch latency / Gems latency, above 1 where Gems is faster; its geometric mean stands beside the "
        "number of rows it rests on. Bad rows failed, were cut, invalid or never measured. What was measured in "
        "different ways (mode, level, timer, cache) is never averaged. On the host device times are no times: no ratio.")
STYLES = {"ok": "green", "skipped": "dim", "dismissed": "dim", "partial": "yellow", "interrupted": "yellow",
          "not_found": "yellow", "failed": "red", "timeout": "red", "crashed": "red"}
GAP = "  "


def list_cells(group):
    """The texts of a Group in COLUMNS' order; empty where there is no figure."""
    result, ratios = group.result, group.ratios
    again = f" #{result.run_number}" if result.run_number > 1 else ""
    figures = (f"{group.geomean:.3f}", str(len(ratios)), f"{min(ratios):.3f}", f"{max(ratios):.3f}") if ratios else ("",) * 4
    return (result.repo, result.op + again, result.status, group.dtype, group.method,
            str(group.rows), str(group.bad) if group.bad else "") + figures


def format_counts(results):
    """`24 ops: 23 ok, 1 skipped`; runs by hand may hold an op more than once, then it is `24 runs`."""
    what = "op" if len({result.key for result in results}) == len(results) else "run"
    return f"{len(results)} {what}{'' if len(results) == 1 else 's'}: " + ", ".join(f"{count} {status}" for status, count in count_statuses(results).items())


def list_facts(run):
    """What screen.json says of the run, as short texts: when, on which devices, from which trees."""
    facts = [f"created {run.info['created']}"] if run.info.get("created") else []
    devices = run.info.get("devices")
    if isinstance(devices, list) and devices:
        facts.append("devices " + ", ".join(map(str, devices)))
    repos = run.info.get("repos")
    for repo, tree in (repos.items() if isinstance(repos, dict) else ()):
        commit = tree.get("commit") if isinstance(tree, dict) else None
        facts.append(f"{repo} at {commit or 'no commit'}")
    return facts


def list_bad_results(results):
    """The results that are not good, in order."""
    return [result for result in results if result.status not in GOOD_STATUSES]


# ---- terminal

def print_table(run, groups, stream):
    """Print the table, the counts and one line per op that is not good to `stream`.

    Lines are never wrapped, so that grep and awk work. Not rich's own Table: laying out 5,000 rows
    takes that 3 s.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False, soft_wrap=True)
    rows = [list_cells(group) for group in groups]
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows)]
    console.print(Text(_align(COLUMNS, widths), "bold"))
    at = sum(widths[:2]) + 2 * len(GAP)     # where the status begins
    for row, group in zip(rows, groups):
        line = Text(_align(row, widths))
        line.stylize(STYLES[group.result.status], at, at + widths[2])
        console.print(line)
    console.print(Text("\n" + format_counts(run.results), "bold"))
    for result in list_bad_results(run.results):
        console.print(Text.assemble((f"{result.status:<12}", STYLES[result.status]),
                                    f"{result.repo}/{result.op}: {result.reason}"))


def _align(cells, widths):
    return GAP.join(cell.rjust(width) if column in NUMBERS else cell.ljust(width)
                    for column, cell, width in zip(COLUMNS, cells, widths)).rstrip()


# ---- Markdown

def format_markdown(run, groups):
    """summary.md's text."""
    lines = [f"# {_escape_markdown(run.name)}", "", _escape_markdown("; ".join([format_counts(run.results)] + list_facts(run))),
             "", "| " + " | ".join(COLUMNS) + " |",
             "|" + "|".join("---:" if column in NUMBERS else "---" for column in COLUMNS) + "|"]
    lines += ["| " + " | ".join(map(_escape_markdown, list_cells(group))) + " |" for group in groups]
    if bad := list_bad_results(run.results):
        lines += ["", "## Not good", ""]
        lines += [_escape_markdown(f"- {result.status} {result.repo}/{result.op}: {result.reason}") for result in bad]
    return "\n".join(lines + ["", NOTE, ""])


def _escape_markdown(text):
    for character in "\\|_*`<[":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())


# ---- HTML

def format_html(run, groups, directory):
    """report.html's text. `directory` is where the page will lie: the links to run.log start there."""
    words = {
        "TITLE": html.escape(run.name),
        "FACTS": html.escape("; ".join([format_counts(run.results)] + list_facts(run))),
        "STATUSES": "".join(f'<button class="{status}" data-status="{status}" aria-pressed="false">{count} {status}</button>'
                            for status, count in count_statuses(run.results).items()),
        "HEAD": "".join(f'<th{_number_class(column)}><button>{column}</button></th>' for column in COLUMNS + ("reason",)),
        "BODY": "\n".join(_format_html_row(group, directory) for group in groups),
        "NOTE": html.escape(NOTE),
    }
    # One pass over the template: a word inside an op's text is never taken for ours.
    return re.sub(r"@([A-Z]+)@", lambda match: words[match[1]], TEMPLATE.read_text(encoding="utf-8"))


def _format_html_row(group, directory):
    result = group.result
    cells = list(map(html.escape, list_cells(group)))
    if result.log_path:
        link = quote(os.path.relpath(result.log_path.absolute(), Path(directory).absolute()))
        cells[1] = f'<a href="{html.escape(link)}">{cells[1]}</a>'
    cells[2] = f'<span class="{result.status}">{cells[2]}</span>'
    tds = "".join(f"<td{_number_class(column)}>{cell}</td>" for column, cell in zip(COLUMNS, cells))
    return f'<tr data-status="{result.status}">{tds}<td class="why">{html.escape(result.reason)}</td></tr>'


def _number_class(column):
    return ' class="n"' if column in NUMBERS else ""
