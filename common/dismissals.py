"""dismissals.py - ops/dismiss.csv: operators that are not run, each with the run that showed why and where that holds.

FORMAT   schema,repo,op,scope,reason,evidence,date,commit
         1,main,linalg_lu,vendor=nvidia;arch=9.0,tunes for more than an hour,"timeout after 1800 s (SIGTERM)",2026-11-30,ed2508b
         scope     key=value;key=value: vendor is needed; arch, dtype and versions narrow it
                     vendor    as flag_gems names it (nvidia, mthreads, ...), or host
                     arch      compute capability or the vendor's name of the architecture: 9.0
                     dtype     float16,bfloat16: only screens that ask for none but these leave the operator out
                     versions  torch 2.11,triton 3.6.0: each holds for that version and those below it (2.11.0, 2.11.1)
                   a scope with a comma needs quotes: "vendor=nvidia;dtype=float16,bfloat16"
         reason    in words;  evidence  the error line of the run that showed it
         date      of that run, YYYY-MM-DD;  commit  of the tree it ran on
         A fact that this machine does not tell (no arch) matches no entry: rather run it than leave it out by mistake.
NEEDS    The standard library; ask_facts asks torch in a child.
"""

import datetime
import re
from dataclasses import dataclass
from pathlib import Path

from common import inventory
from common.ask_torch import ask_count, find_arch
from common.devices import HOST
from common.errors import UserError

COLUMNS = ("schema", "repo", "op", "scope", "reason", "evidence", "date", "commit")
SCOPE_KEYS = ("vendor", "arch", "dtype", "versions")
COMMIT = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True, eq=False)
class Dismissal:
    """One row; `scope` as a dict, `scope_text` as written, `line` in the file."""

    repo: str
    op: str
    scope: dict
    scope_text: str
    reason: str
    evidence: str
    date: str
    commit: str
    line: int

    @property
    def key(self):
        return self.repo, self.op

    @property
    def dtypes(self):
        """The dtypes that it is limited to, () for all."""
        return tuple(part.strip() for part in self.scope.get("dtype", "").split(",") if part.strip())


def parse_scope(text):
    """{key: value} of `vendor=nvidia;arch=9.0`. ValueError says what is wrong."""
    scope = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        key, equals, value = (word.strip() for word in part.partition("="))
        if key not in SCOPE_KEYS or not equals or not value:
            raise ValueError(f"{part}: give key=value with a key of {', '.join(SCOPE_KEYS)}")
        if key in scope:
            raise ValueError(f"{key}: is there twice")
        scope[key] = value
    if "vendor" not in scope:
        raise ValueError("no vendor; say on whose cards it holds, as vendor=nvidia;arch=9.0")
    for part in scope.get("versions", "").split(","):
        if part and len(part.split()) != 2:
            raise ValueError(f"{part.strip()}: give a package and a version, as versions=torch 2.11,triton 3.6.0")
    return scope


def read_dismissals(path):
    """All rows of the list, checked. UserError naming file, line, value and mend; a missing file is an empty list."""
    if not Path(path).is_file():
        return []
    found, seen = [], {}
    for line, row in inventory.read_table(path, COLUMNS, f"the columns are {','.join(COLUMNS)}"):
        where = f"{path}: line {line}: {row['repo']}/{row['op']}"
        for name in ("repo", "op", "reason", "evidence"):
            if not row[name].strip():
                raise UserError(f"{where}: {name} is empty; an operator is only left out for what a run has shown")
        scope = _check(where, "scope", row, parse_scope)
        _check(where, "date", row, datetime.date.fromisoformat)
        if not COMMIT.fullmatch(row["commit"]):
            raise UserError(f"{where}: commit: {row['commit'] or 'empty'}: give the tree's commit, 7 to 40 hex digits")
        key = row["repo"], row["op"], tuple(sorted(scope.items()))
        if key in seen:
            raise UserError(f"{where}: is dismissed for the same scope in line {seen[key]}; remove one")
        seen[key] = line
        found.append(Dismissal(row["repo"], row["op"], scope, row["scope"], row["reason"], row["evidence"], row["date"],
                               row["commit"], line))
    return found


def _check(where, name, row, parse):
    """The parsed value of a field, or UserError."""
    try:
        return parse(row[name])
    except ValueError as error:
        raise UserError(f"{where}: {name}: {row[name] or 'empty'}: {error}") from None


def applies(dismissal, facts):
    """True if it holds for a machine with `facts` {"vendor", "arch", "versions": {package: version}, "dtypes": asked for}."""
    scope = dismissal.scope
    if scope["vendor"] != facts.get("vendor") or ("arch" in scope and scope["arch"] != facts.get("arch")):
        return False
    asked = facts.get("dtypes") or ()
    if dismissal.dtypes and not (asked and set(asked) <= set(dismissal.dtypes)):
        return False
    for part in filter(None, scope.get("versions", "").split(",")):
        package, version = part.split()
        if not f"{facts.get('versions', {}).get(package, '')}.".startswith(f"{version}."):
            return False
    return True


def list_dismissed(path, facts, ask_arch):
    """{(repo, op): reason} of the rows that hold for a machine with `facts`; ask_arch() is only called if a row needs it."""
    entries = [entry for entry in read_dismissals(path) if entry.scope["vendor"] == facts["vendor"]]
    if any("arch" in entry.scope for entry in entries):
        facts = {**facts, "arch": ask_arch()}
    return {entry.key: entry.reason for entry in entries if applies(entry, facts)}


def ask_facts(python, environ, versions, dtypes=()):
    """The facts of this machine; `versions` as common/inputs.read_versions gives them. Takes 5 s or so: torch is asked."""
    if environ.get("HOST_TARGET"):
        vendor, arch = HOST, None
    else:
        probe = ask_count(python, environ)
        vendor, arch = probe["vendor"] or HOST, find_arch(probe)
    return {"vendor": vendor, "arch": arch, "versions": versions, "dtypes": tuple(dtypes)}
