"""plan.csv as a file: its columns, and its rows read with every fault named. What they mean: plan.py.

Requirements: the standard library.
"""

import csv

from common.errors import INTEGRITY, UserError
from common.state import SCHEMA

COLUMNS = ("schema", "repo", "op", "status", "device", "nodes", "reason")


def read_rows(path):
    """The rows of a plan.csv as dicts, one per planned op. UserError (integrity) naming file and line."""
    mend = "start the same screen again, it writes its plan anew and resumes"
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            columns, rows = reader.fieldnames or (), list(reader)
    except FileNotFoundError:
        raise UserError(f"{path}: missing, so that nobody knows which ops lack; {mend}", INTEGRITY) from None
    except (UnicodeDecodeError, csv.Error, IsADirectoryError) as error:
        raise UserError(f"{path}: {error}; {mend}", INTEGRITY) from None
    lacking = [column for column in COLUMNS if column != "nodes" and column not in columns]
    if lacking:
        raise UserError(f"{path}: column {lacking[0]!r} is missing; {mend}", INTEGRITY)
    seen = {}
    for number, row in enumerate(rows, 2):
        if row["schema"] != str(SCHEMA) or not all(is_name(row[name]) for name in ("repo", "op")) or row["reason"] is None:
            raise UserError(f"{path}: line {number}: {','.join(map(str, row.values()))!r}: "
                            f"no row of schema {SCHEMA}; {mend}", INTEGRITY)
        key = row["repo"], row["op"]
        if key in seen:
            raise UserError(f"{path}: line {number}: {'/'.join(key)} is planned in line {seen[key]} already; {mend}",
                            INTEGRITY)
        seen[key] = number
    if not rows:
        raise UserError(f"{path}: no op is planned; {mend}", INTEGRITY)
    return rows


def is_name(text):
    """True if `text` can name a directory: what the rubbish in a damaged plan is not."""
    return bool(text) and text not in (".", "..") and "/" not in text and text.isprintable()
