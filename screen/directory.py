"""A screen's directory: which one a call means, what it records of itself.

    runs/screen-20261130T062900Z/
      screen.json     {"schema": 1, "run_id": ..., "created": ..., "repos": ..., "knobs": ..., "switches": ..., ...}
      screen.lock     held while a driver works here: {"pid": ..., "host": ..., "started": ...}
      plan.csv        see plan.py
      shapes/         the shape files that its operators got
      <repo>/<op>/    .complete, attempts/
    runs/latest-screen   link to the newest
    runs/.cache/         compile and tuner caches, one per device; they outlive a screen

Requirements: the standard library.
"""

import datetime
import os
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from common.errors import INTEGRITY, UserError
from common.inputs import list_knobs
from common.state import (MARKER, SCHEMA, claim_directory, link_latest, read_json, sha256_file, utc_now, utc_stamp,
                          write_json_atomic, write_text_atomic)
from common.switches import list_switches, show_switch
from screen.facts import describe_machine
from screen.options import check_place, is_on
from screen.plan import LEFT_OUT, PLANNED, read_plan
from screen.sharding import name_part

# Two calls with the same of these, and of run_pytest.sh's knobs, mean the same screen.
SELECTION = ("OPS", "MATCH", "SHARD_INDEX", "DEVICES", "SHAPES", "REPLAY_ROOT", "REPLAY_FROM", "REPLAY_MISSING",
             "HOST_TARGET")
# These only say how it is driven.
DRIVING = ("TIMEOUT", "RETRIES", "SHARD", "WARM", "COMPILE_AHEAD", "BUDGET", "ENGINE")
LATEST = "latest-screen"
# A nightly job that starts a minute early must not find yesterday's results and stop.
CONTINUE_HOURS = 12
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
SUMMARY = ("summary.csv", "summary.md", "report.html")


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
    host: str = ""          # of a cluster, where that is another one than the driver's

    @property
    def caches(self):
        """Compile and tuner caches of all screens, one of each per device."""
        return self.runs / ".cache"

    @property
    def place(self):
        """What tells the devices here from those of the same name elsewhere that may share RUNS."""
        return name_part(self.environ.get("SHARD_INDEX")) + (f"-at-{self.host}" if self.host else "")

    @property
    def models(self):
        """Names of the kinds of cards, sorted; [""] for the host device."""
        return sorted({device.model for device in self.devices})

    def op_folder(self, row):
        """<run>/<repo>/<op> of a planned row."""
        return self.run / row.repo / row.op


# ---- which directory

def choose_run(screen):
    """(directory, "continued" | "new" | "named", why): which screen a call means. Makes nothing.

    With RUN that directory. Else the newest one with the same selection, if it was worked on less than CONTINUE_HOURS ago;
    a complete one counts from its start (a second `make screen` goes on where the first stopped, a nightly one starts
    anew). Else a new directory. A part of a screen (SHARD_INDEX) has one of its own, RUN-2-of-8.
    """
    part = name_part(screen.environ.get("SHARD_INDEX"))
    if screen.environ.get("RUN"):
        return _check_run(Path(screen.environ["RUN"].rstrip("/") + part).absolute(), screen)
    new = screen.runs / f"screen-{utc_stamp()}{part}"
    earlier = list_screens(screen.runs)
    if not earlier:
        return new, "new", "there is no earlier screen"
    if is_on(screen.environ, "FRESH"):
        return new, "new", "FRESH=1"
    found = next((path for path, facts in earlier if not _list_other_selection(facts, screen)), None)
    if found is None:
        path, facts = earlier[0]
        return new, "new", (f"{path.name} has another selection ({', '.join(_list_other_selection(facts, screen))}); "
                            f"RUN={shorten(path)} goes on there")
    hours, since = _find_age(found)
    if not 0 <= hours < CONTINUE_HOURS:     # below 0: one of the two clocks was wrong
        return new, "new", f"{found.name} {since} {hours:.0f} hours ago; RUN={shorten(found)} goes on there"
    return found, "continued", f"same selection, {since} {hours:.1f} hours ago; FRESH=1 starts a new one"


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


def list_screens(runs):
    """[(directory, its facts)] of the screens in `runs`, newest first. Damaged ones are left out."""
    found = {}
    for path in {path.parent.resolve() for path in runs.glob("*/screen.json")}:
        try:
            found[path] = read_facts(path)
        except UserError:
            continue
    return sorted(((path, facts) for path, facts in found.items() if facts.get("run_id")),
                  key=lambda item: (item[1]["created"], item[0].name), reverse=True)


def _list_other_selection(facts, screen):
    """What of `facts` makes it another screen than the one that is asked for."""
    changed = [knob for knob in (*SELECTION, *list_knobs()) if facts["knobs"].get(knob, "") != screen.environ.get(knob, "")]
    if {repo: str(tree) for repo, tree in screen.trees.items()} != {repo: each["tree"] for repo, each in facts["repos"].items()}:
        changed.append("other trees")
    if facts.get("models", screen.models) != screen.models:
        changed.append(f"on {' and '.join(facts['models'])}")
    return changed


def find_last_activity(run):
    """When (seconds since 1970) an attempt of `run` was begun or an outcome written last."""
    paths = [run / "screen.json", *run.glob(f"*/*/{MARKER}"), *run.glob("*/*/attempts")]
    return max((os.stat(path).st_mtime for path in paths if path.exists()), default=0.0)


def _find_age(run):
    """(hours, what they count from)."""
    if all((run / row.repo / row.op / MARKER).exists() for row in _read_plan_or_none(run) if row.status in (PLANNED, LEFT_OUT)):
        start = datetime.datetime.strptime(read_facts(run)["created"], TIME_FORMAT).replace(tzinfo=datetime.timezone.utc)
        return (time.time() - start.timestamp()) / 3600, "complete and started"
    return (time.time() - find_last_activity(run)) / 3600, "last worked on"


def _read_plan_or_none(run):
    try:
        return read_plan(run / "plan.csv")
    except UserError:
        return []


def _check_run(path, screen):
    check_place("RUN", path)
    if not path.exists():
        return path, "named", "new, named by RUN"
    others = {entry.name for entry in path.iterdir()} - {"screen.lock"}
    if others and not (path / "screen.json").exists():
        raise UserError(f"RUN: {path}: is not empty and no screen (no screen.json); name another directory")
    if others and is_on(screen.environ, "FRESH"):
        raise UserError(f"FRESH: {screen.environ['FRESH']}: RUN={shorten(path)} is there already; name a new directory, or unset "
                        f"FRESH to go on with this one")
    if others:
        _refuse_other_trees(path, screen.tree_facts)
    return path.resolve(), "named", "named by RUN"


def _refuse_other_trees(path, tree_facts):
    for repo, old in read_facts(path)["repos"].items():
        new = tree_facts.get(repo)
        if new is None or new["tree"] != old["tree"]:
            now = ", ".join(f"{name} {_name_tree(facts)}" for name, facts in tree_facts.items() if name == repo or new is None)
            raise UserError(f"RUN: {shorten(path)}: is a screen of {repo} {_name_tree(old)}, asked for is {now}; results of two "
                            f"trees do not go together: name another directory, or a new one by FRESH=1 without RUN")


def _name_tree(facts):
    return f"{facts['tree']} (commit {facts.get('commit') or 'unknown'})"


# ---- what it records

def read_facts(run):
    """screen.json of the directory `run`. UserError INTEGRITY if it is there and damaged; {} with all parts if it is not."""
    path = run / "screen.json"
    facts = read_json(path)
    if facts is None and not path.exists():
        return {"knobs": {}, "repos": {}}
    if not _is_whole(facts):
        raise UserError(f"{path}: is damaged; put back a copy, or start another screen (FRESH=1 without RUN): the results here "
                        f"stay, `make summarize` reads them", INTEGRITY)
    return {"knobs": {}, "repos": {}, **facts}


def _is_whole(facts):
    try:
        datetime.datetime.strptime(facts["created"], TIME_FORMAT)
        return (isinstance(facts["run_id"], str) and bool(facts["run_id"])
                and all(isinstance(each["tree"], str) for each in facts.get("repos", {}).values())
                and all(isinstance(facts.get(name, {}), dict) for name in ("knobs", "versions", "switches"))
                and all(isinstance(facts.get(name, []), list) for name in ("models", "devices")))
    except (LookupError, TypeError, ValueError, AttributeError):
        return False


def record_screen(screen, stale_by):
    """Write screen.json; a continued screen keeps its run id and date. Returns (run id, what changed, in words).

    `stale_by` as resume.list_stale_by gives it: the summary does not show results of other inputs as this screen's.
    """
    old = read_facts(screen.run)
    knobs = {name: screen.environ.get(name, "") for name in (*SELECTION, *list_knobs(), *DRIVING)}
    facts = {"schema": SCHEMA, "run_id": old.get("run_id") or uuid.uuid4().hex, "created": old.get("created") or utc_now(),
             "repos": screen.tree_facts, "knobs": knobs, "devices": [device.name for device in screen.devices],
             "models": screen.models, "vendor": screen.devices[0].vendor, "versions": screen.versions, "stale_by": stale_by,
             "switches": list_switches(screen.environ),
             **describe_machine()}
    write_json_atomic(screen.run / "screen.json", facts)
    return facts["run_id"], list(_list_changes(old, facts)) if old.get("run_id") else []


def _list_changes(old, new):
    """Yields what differs between two screen.json, in words."""
    for name, value in new["knobs"].items():
        if old["knobs"].get(name, "") != value:
            yield f"{name} ({old['knobs'].get(name) or 'unset'} -> {value or 'unset'})"
    before, after = old.get("switches", new["switches"]), new["switches"]
    for name in sorted((before.keys() | after.keys()) - new["knobs"].keys()):
        if before.get(name) != after.get(name):
            yield f"{name} ({show_switch(before.get(name))} -> {show_switch(after.get(name))})"
    for repo, facts in new["repos"].items():
        before = old["repos"].get(repo)
        if before is None:
            yield f"{repo} ({facts['tree']} is new)"
        elif before.get("commit") != facts["commit"]:
            yield f"commit of {repo} ({before.get('commit') or 'unknown'} -> {facts['commit'] or 'unknown'})"
        elif before.get("changes") != facts["changes"]:
            yield f"sources of {repo} that are not committed"
    for name in sorted({*old.get("versions", {}), *new["versions"]}):
        before, after = old.get("versions", {}).get(name), new["versions"].get(name)
        if before != after:
            is_version = all(isinstance(each, (str, type(None))) for each in (before, after))
            yield f"{name} ({before or 'none'} -> {after or 'none'})" if is_version else f"build of {name}"
    if old.get("driver", new["driver"]) != new["driver"]:
        yield f"driver ({old['driver'] or 'unknown'} -> {new['driver'] or 'unknown'})"
    for name in ("devices", "models"):
        if old.get(name, new[name]) != new[name]:
            yield f"{name} ({', '.join(map(str, old[name]))} -> {', '.join(new[name])})"


def keep_shapes(shapes, run):
    """{repo: file}: copies of `shapes` in the directory `run`, so that nobody changes them while they are used."""
    kept = {}
    for repo, path in shapes.items():
        path = Path(path)
        kept[repo] = str(run / "shapes" / f"{path.stem}-{sha256_file(path)[:12]}{path.suffix}")
        if not Path(kept[repo]).exists():
            (run / "shapes").mkdir(exist_ok=True)
            write_text_atomic(kept[repo], path.read_text(encoding="utf-8"))
    return kept


def mark_latest(screen):
    """Let runs/latest-screen point at the screen, wherever that is."""
    screen.runs.mkdir(parents=True, exist_ok=True)
    link_latest(screen.runs / LATEST, screen.run)


def remove_litter(run):
    """Take away what killed drivers left of files that they were writing, and of what ran beside the operators."""
    for name in (".warm", ".ahead"):
        shutil.rmtree(run / name, ignore_errors=True)
    for pattern in ("*.tmp", "shapes/*.tmp", "*/*/*.tmp"):
        for path in run.glob(pattern):
            path.unlink(missing_ok=True)


def remove_summary(run):
    """Take the summary of an earlier start away: it says nothing of this one."""
    for name in SUMMARY:
        (run / name).unlink(missing_ok=True)
