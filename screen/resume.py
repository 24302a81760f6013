"""What of a screen is done: which outcomes still hold, which operators run again, what a killed driver left.

Requirements: the standard library.
"""

import contextlib
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

from common import inputs
from common.errors import UserError
from common.outcome import STATUSES
from common.process import end_tagged, find_run_ids
from common.state import MARKER, hold_lock, read_json, read_marker, sha256_json
from screen import plan
from screen.options import is_on
from screen.replay import find_replay
from screen.scheduler import Task

MEASURED = ("ok", "partial", "skipped")     # an outcome that its log has to show
RETRIED = ("failed", "partial", "timeout", "crashed")       # by RETRY_FAILED=1
# Inputs that no column of summary.csv tells: a result of others is not shown as one of this screen.
UNSEEN = ("tree", "shared", "versions", "switches", "device")


def list_inputs(screen):
    """{repo: the inputs that all its operators share}, as digests."""
    shared = inputs.list_screen_inputs(screen.environ, screen.run_pytest, screen.versions, screen.devices[0].vendor,
                                       screen.models)
    return {repo: inputs.list_repo_inputs(shared, tree, screen.tree_facts[repo], screen.environ.get("SUITE"))
            for repo, tree in screen.trees.items()}


def list_stale_by(repo_inputs):
    """{repo: {name: digest}}: by these the summary tells a result of other inputs (results.py)."""
    return {repo: {name: found[name] for name in UNSEEN} for repo, found in repo_inputs.items()}


def judge_ops(rows, screen, repo_inputs, say):
    """(tasks to run, {key: status} of what is complete). A stale marker is said."""
    retries = is_on(screen.environ, "RETRY_FAILED")
    tasks, done, again = [], {}, Counter()
    for row in rows:
        if row.status != plan.PLANNED:
            done[row.key] = row.status
            continue
        replay = find_replay(screen.environ, row)
        shapes = screen.shapes.get(row.repo, "")
        wanted = inputs.list_op_inputs(repo_inputs[row.repo], screen.trees[row.repo], row.nodes, shapes, replay)
        status, why = judge_marker(screen.op_folder(row), wanted, screen.timeout)
        if status in RETRIED and retries:
            status, why = None, "RETRY_FAILED=1"
        if status:
            done[row.key] = status
        else:
            tasks.append(Task(row, wanted, replay))
            again[why] += 1
    for why, count in again.items():
        if why:
            say(f"{count} complete operator{'s' if count > 1 else ''} again ({why})")
    return tasks, done


def judge_marker(folder, wanted, timeout):
    """(status, "") of the `.complete` of `folder` if it holds, (None, why not) if not, (None, "") if there is none.

    `wanted`: inputs, as inputs.py lists them; `timeout` in seconds: a larger one gives what was too slow another chance.
    """
    marker = read_marker(folder)
    if marker is None:
        return None, "its marker is damaged" if (folder / MARKER).exists() else ""
    if marker.get("inputs_sha256") != sha256_json(wanted):
        before = marker.get("inputs", {})
        changed = [name for name, digest in wanted.items() if before.get(name) != digest]
        return None, f"changed: {', '.join(changed) or 'the marker itself'}"
    if marker["status"] not in STATUSES or "attempt" not in marker:
        return None, "its marker is damaged"
    if marker["status"] in MEASURED and not (folder / "attempts" / str(marker["attempt"]) / "run.log").is_file():
        return None, "the run.log of its attempt is gone"
    if marker["status"] == "timeout" and marker.get("timeout", 0) < timeout:
        return None, f"its time limit was {marker.get('timeout', 0):.0f} s"
    return marker["status"], ""


def read_earlier_plan(run, ops, say):
    """The rows of the plan in directory `run` so far, and one for each other operator that has results there: a plan that
    is lost or damaged loses no result."""
    path = run / "plan.csv"
    try:
        rows = [row if row.status in (plan.PLANNED, *STATUSES) else replace(row, status=plan.PLANNED)
                for row in plan.read_plan(path)]
    except UserError as error:
        os.replace(path, run / "plan.csv.damaged")
        say(f"{error} (it is plan.csv.damaged now)")
        rows = []
    nodes, planned = {(op.repo, op.op): op.nodes for op in ops}, {row.key for row in rows}
    found = {path.parts[-3:-1] for name in (MARKER, "attempts") for path in run.glob(f"*/*/{name}")}
    return rows + [plan.PlannedOp(*key, plan.PLANNED, nodes=tuple(nodes.get(key, ()))) for key in sorted(found - planned)]


def end_leftovers(screen, say):
    """End what killed drivers left running: of this screen, and of the other screens and campaigns in the same RUNS."""
    tagged = find_run_ids()
    others = {path.resolve() for name in ("screen", "campaign") for path in screen.runs.glob(f"*/{name}.json")}
    ended = {}
    if screen.run_id in tagged:
        ended = {pid: ("this screen", command) for pid, command in end_tagged(screen.run_id, screen.grace).items()}
    for path in sorted(others):
        run_id, run = _read_run_id(path), path.parent
        lock = run / "screen.lock" if path.name == "screen.json" else run.with_name(f"{run.name}.lock")
        if run_id != screen.run_id and run_id in tagged:
            with contextlib.suppress(UserError), hold_lock(lock, ""):      # refused: its driver lives
                ended |= {pid: (run.name, command) for pid, command in end_tagged(run_id, screen.grace).items()}
    for pid, (name, command) in ended.items():
        say(f"left by an earlier driver of {name}, ended: {pid} {command}")


def _read_run_id(path):
    facts = read_json(path)
    return facts.get("run_id") if isinstance(facts, dict) else None
