"""What a screen replays: the tuner's choices that another one recorded (REPLAY_ROOT), or one record (REPLAY_FROM).

Requirements: the standard library.
"""

from dataclasses import replace
from pathlib import Path

from common.errors import UserError
from common.inputs import check_choice
from common.state import read_marker
from screen.options import is_on
from screen.plan import PLANNED

RECORD = "autotune.json"


def find_replay(environ, row):
    """What `row` replays: the attempt that counted for it in REPLAY_ROOT ("" if it has no record there), else REPLAY_FROM."""
    if not environ.get("REPLAY_ROOT"):
        return environ.get("REPLAY_FROM", "")
    folder = Path(environ["REPLAY_ROOT"]) / row.repo / row.op
    marker = read_marker(folder)
    attempt = folder / "attempts" / str(marker["attempt"]) if marker else None
    return str(attempt.resolve()) if attempt and (attempt / RECORD).is_file() else ""


def skip_without_record(environ, rows, say):
    """`rows`; with REPLAY_MISSING=skip or REPLAY_STRICT=1 those without a record in REPLAY_ROOT are skipped. They are named
    either way."""
    root, is_strict = environ.get("REPLAY_ROOT"), is_on(environ, "REPLAY_STRICT")
    skips = is_strict or environ.get("REPLAY_MISSING") == "skip"
    lacking = {row.key: row for row in rows if root and row.status == PLANNED and not find_replay(environ, row)}
    if lacking:
        say(f"no record in {root}, {'skipped' if skips else 'tuned live'}: {', '.join(row.name for row in lacking.values())}")
    if not skips:
        return rows
    reason = f"no {RECORD} in {root} ({'REPLAY_STRICT=1' if is_strict else 'REPLAY_MISSING=skip'})"
    return [replace(row, status="skipped", device="", reason=reason) if row.key in lacking else row for row in rows]


def check_replay(environ):
    """UserError if REPLAY_ROOT is no screen, REPLAY_FROM is not there, both are set, REPLAY_MISSING is no choice or contradicts
    REPLAY_STRICT, or the latter has nothing to hold to."""
    check_choice("REPLAY_MISSING", environ.get("REPLAY_MISSING") or "run", ("run", "skip"))
    root, record = environ.get("REPLAY_ROOT"), environ.get("REPLAY_FROM")
    if is_on(environ, "REPLAY_STRICT") and not (root or record):
        raise UserError("REPLAY_STRICT: 1: nothing is replayed; say what: REPLAY_ROOT=runs/NAME, or unset it")
    if root and is_on(environ, "REPLAY_STRICT") and environ.get("REPLAY_MISSING") == "run":
        raise UserError("REPLAY_MISSING: run: REPLAY_STRICT=1 allows no operator to be tuned live; unset one of them")
    if root and not (Path(root) / "screen.json").is_file():
        raise UserError(f"REPLAY_ROOT: {root}: is no screen (no screen.json); name one, as runs/latest-screen")
    if record and not Path(record).exists():
        raise UserError(f"REPLAY_FROM: {record}: is not there; name a run directory with a record")
    if root and record:
        raise UserError(f"REPLAY_FROM: {record}: REPLAY_ROOT={root} is set too; set one of them")
