"""A screen's directory: which one a call means, what it records of itself.

    runs/screen-20261130T062900Z/
      screen.json     {"schema": 1, "run_id": ..., "created": ..., "repos": ..., "knobs": ..., "devices": ..., "versions": ...}
      screen.lock     held while a driver works here: {"pid": ..., "host": ..., "started": ...}
      plan.csv        see plan.py
      <repo>/<op>/    .complete, attempts/
    runs/latest-screen   link to the newest
    runs/.cache/         compile and tuner caches, one per device; they outlive a screen

Requirements: the standard library.
"""

import datetime
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from common.errors import UserError
from common.inputs import check_choice, list_knobs
from common.outcome import STATUSES
from common.state import (SCHEMA, claim_directory, link_latest, read_json, read_marker, sha256_json, utc_now, utc_stamp,
                          write_json_atomic)
from screen.plan import PLANNED

# Two calls with the same of these, and of run_pytest.sh's knobs, mean the same screen.
SELECTION = ("OPS", "MATCH", "DEVICES", "SHAPES", "REPLAY_ROOT", "REPLAY_FROM", "REPLAY_MISSING",
             "HOST_TARGET")
# These only say how it is driven.
DRIVING = ("TIMEOUT", "RETRIES", "SHARD")
LATEST = "latest-screen"
RECORD = "autotune.json"
# Above: a nightly job that starts a minute early must not find yesterday's results and stop.
CONTINUE_HOURS = 12
MEASURED = ("ok", "partial", "skipped")     # an outcome that its log has to show


@dataclass(frozen=True)
class Screen:
    """What the parts of a driver need to know of the screen that they work on."""
    run: Path               # the screen's own directory
    run_id: str
    runs: Path              # where screens go
    environ: dict
    python: str             # of the children
    run_pytest: str
    trees: dict             # {repo: tree}
    shapes: dict            # {repo: shape file}, {} for upstream's own
    tree_facts: dict        # {repo: as inputs.describe_tree says}
    versions: dict          # in the Python of the children
    devices: list
    timeout: float          # seconds for one attempt
    retries: int
    grace: float            # seconds from TERM to KILL
    pause: float            # seconds before infrastructure is tried again
    settle: float           # seconds that a device's memory may take to become free after a kill

    @property
    def caches(self):
        """Compile and tuner caches of all screens, one of each per device."""
        return self.runs / ".cache"

    def op_folder(self, row):
        """<run>/<repo>/<op> of a planned row."""
        return self.run / row.repo / row.op


def choose_run(environ, runs, trees):
    """(directory, "continued" | "new" | "named", why): which screen a call means. Makes nothing.

    With RUN that directory. Else runs/latest-screen if it has the same selection and is less than CONTINUE_HOURS old
    (a second `make screen` goes on where the first stopped, a nightly one starts anew), else a new directory.
    """
    if environ.get("RUN"):
        return _check_run(Path(environ["RUN"]))
    new = Path(runs) / f"screen-{utc_stamp()}"
    latest = Path(runs) / LATEST
    facts = read_json(latest / "screen.json")
    if facts is None:
        return new, "new", "there is no earlier screen"
    name = latest.resolve().name
    if environ.get("FRESH", "0") not in ("", "0"):
        return new, "new", "FRESH=1"
    changed = [knob for knob in (*SELECTION, *list_knobs()) if facts["knobs"].get(knob, "") != environ.get(knob, "")]
    if changed or {repo: str(tree) for repo, tree in trees.items()} != _trees_of(facts):
        return new, "new", (f"{name} has another selection ({', '.join(changed) or 'other trees'}); "
                            f"RUN={shorten(runs)}/{name} goes on there")
    hours = _age_hours(facts["created"])
    if not 0 <= hours < CONTINUE_HOURS:     # below 0: one of the two clocks was wrong
        return new, "new", f"{name} is {hours:.0f} hours old; RUN={shorten(runs)}/{name} goes on there"
    return latest.resolve(), "continued", f"same selection, {hours:.1f} hours old; FRESH=1 starts a new one"


def shorten(path):
    """`path` as a person would type it here: relative if it is below the working directory."""
    path = Path(path).absolute()
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def make_run(path, kind):
    """The directory of a screen, made if need be. A new one that another call just took gets a -2, -3, ..."""
    if kind == "new":
        return claim_directory(path)
    path.mkdir(parents=True, exist_ok=True)
    return path


def record_screen(screen):
    """Write screen.json; a continued screen keeps its run id and date. Returns (run id, names of changed knobs)."""
    old = read_json(screen.run / "screen.json") or {}
    knobs = {name: screen.environ.get(name, "") for name in (*SELECTION, *list_knobs(), *DRIVING)}
    run_id = old.get("run_id") or uuid.uuid4().hex
    write_json_atomic(screen.run / "screen.json", {
        "schema": SCHEMA, "run_id": run_id, "created": old.get("created") or utc_now(), "repos": screen.tree_facts,
        "knobs": knobs, "devices": [device.name for device in screen.devices], "vendor": screen.devices[0].vendor,
        "versions": screen.versions})
    return run_id, [name for name in knobs if old and old["knobs"].get(name, "") != knobs[name]]


def mark_latest(screen):
    """Let runs/latest-screen point at the screen, wherever that is."""
    screen.runs.mkdir(parents=True, exist_ok=True)
    link_latest(screen.runs / LATEST, screen.run)


def judge_marker(folder, inputs, timeout):
    """(marker, why it is stale): the `.complete` of `folder` if there is one, and None if it still holds.

    `inputs` as inputs.py lists them; `timeout` in seconds: a larger one gives what was too slow another chance.
    """
    marker = read_marker(folder)
    if marker is None:
        return None, None
    if marker.get("inputs_sha256") != sha256_json(inputs):
        before = marker.get("inputs") or {}
        changed = [name for name, digest in inputs.items() if before.get(name) != digest]
        return marker, f"changed: {', '.join(changed) or 'the marker itself'}"
    if marker["status"] not in STATUSES or not isinstance(marker.get("attempt"), int):
        return marker, "its marker is damaged"
    if marker["status"] in MEASURED and not (folder / "attempts" / str(marker["attempt"]) / "run.log").is_file():
        return marker, "the run.log of its attempt is gone"
    if marker["status"] == "timeout" and marker.get("timeout", 0) < timeout:
        return marker, f"its time limit was {marker.get('timeout', 0):.0f} s"
    return marker, None


def find_replay(environ, row):
    """What `row` replays: the attempt that counted for it in REPLAY_ROOT ("" if it has no record there), else REPLAY_FROM."""
    if not environ.get("REPLAY_ROOT"):
        return environ.get("REPLAY_FROM", "")
    folder = Path(environ["REPLAY_ROOT"]) / row.repo / row.op
    marker = read_marker(folder)
    attempt = folder / "attempts" / str(marker["attempt"]) if marker else None
    return str(attempt.resolve()) if attempt and (attempt / RECORD).is_file() else ""


def skip_without_record(environ, rows, say):
    """`rows`; with REPLAY_MISSING=skip those without a record in REPLAY_ROOT are skipped. They are named either way."""
    root, skips = environ.get("REPLAY_ROOT"), environ.get("REPLAY_MISSING") == "skip"
    lacking = {row.key: row for row in rows if root and row.status == PLANNED and not find_replay(environ, row)}
    if lacking:
        say(f"no record in {root}, {'skipped' if skips else 'tuned live'}: {', '.join(row.name for row in lacking.values())}")
    if not skips:
        return rows
    reason = f"no {RECORD} in {root} (REPLAY_MISSING=skip)"
    return [replace(row, status="skipped", device="", reason=reason) if row.key in lacking else row for row in rows]


def check_replay(environ):
    """UserError if REPLAY_ROOT is no screen, REPLAY_FROM is not there, both are set, or REPLAY_MISSING is no choice."""
    check_choice("REPLAY_MISSING", environ.get("REPLAY_MISSING") or "run", ("run", "skip"))
    root, record = environ.get("REPLAY_ROOT"), environ.get("REPLAY_FROM")
    if root and not (Path(root) / "screen.json").is_file():
        raise UserError(f"REPLAY_ROOT: {root}: is no screen (no screen.json); name one, as runs/latest-screen")
    if record and not Path(record).exists():
        raise UserError(f"REPLAY_FROM: {record}: is not there; name a run directory with a record")
    if root and record:
        raise UserError(f"REPLAY_FROM: {record}: REPLAY_ROOT={root} is set too; set one of them")


def _check_run(path):
    if not path.exists():
        return path, "named", "new, named by RUN"
    if not path.is_dir():
        raise UserError(f"RUN: {path}: is no directory; name another")
    others = {entry.name for entry in path.iterdir()} - {"screen.lock"}
    if others and not (path / "screen.json").is_file():
        raise UserError(f"RUN: {path}: is not empty and no screen (no screen.json); name another directory")
    return path.resolve(), "named", "named by RUN"


def _trees_of(facts):
    return {repo: each["tree"] for repo, each in facts["repos"].items()}


def _age_hours(created):
    start = datetime.datetime.strptime(created, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.timezone.utc)
    return (datetime.datetime.now(datetime.timezone.utc) - start).total_seconds() / 3600
