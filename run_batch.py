#!/usr/bin/env python3
"""run_batch.py - a screen: every operator's benchmark, each in its own process, across the devices of this host.

USAGE    run_batch.py [--run DIR] [--ops a,b] [--match REGEX] [--devices 6,7] [--dtypes float16,...] [--level L]
                      [--mode M] [--shapes SET|FILE] [--timeout S] [--retries N] [--shard hash|balanced]
                      [--replay-root RUN] [--replay-missing run|skip] [--fresh] [--dry-run]
         Every option's default is the environment variable of the same name (OPS, DEVICES, REPLAY_ROOT, ...).
INPUT    ops/inventory_<repo>.csv minus what of ops/dismiss.csv holds here; the trees FLAGGEMS_DIR, FLAGGEMS_VLLM_DIR, or
         the sample tree.
         All knobs of run_pytest.sh (TIMER, USE_FLAGTUNE, WARMUP_MS, ...) go through to it from the environment.
OUTPUT   runs/screen-<UTC stamp>/: screen.json, plan.csv, <repo>/<op>/{.complete,attempts/N/}, summary.csv, summary.md.
         One line per operator; on a terminal a bar with the time left:
           [ 3/29] ok        samples/abs                 9.1 s  device host:0
WHICH    RUN=DIR: that screen, continued if it is there (operators that it has beyond OPS keep their results).
         Without RUN: runs/latest-screen if it has the same selection of operators, devices and knobs and is less than
         12 hours old, else a new one. So a second `make screen` goes on where the first one stopped, and a nightly one
         starts anew. --fresh (FRESH=1) always starts a new one; the first line says which it is and why.
RESUME   An operator with a .complete marker is not run again as long as its inputs are the same: nodes, benchmark
         files, knobs, shapes, upstream commit and changes, versions, run_pytest.sh, plugins. A stale one is, and said.
DEVICES  As written: 6,7 or UUIDs or MIG ids or host:0,host:1. A child sees exactly one. Without DEVICES those of the
         caller's own variable (CUDA_VISIBLE_DEVICES, ...), else all; where torch sees none, the host device.
OTHER    PYTHON       of the children (.venv/bin/python beside this script, else this one)
         RUNS         where screens go (runs)          OPS_DIR  the inventories (ops)      RUN_PYTEST  (run_pytest.sh)
         GRACE_S      seconds from TERM to KILL (15)   RETRY_PAUSE_S  before infrastructure is tried again (10)
         Compile and tuner caches: one of each per device in RUNS/.cache, or below TRITON_CACHE_DIR, FLAGGEMS_CACHE_DIR.
         SETTLE_S     seconds that a device's memory may take to become free after a kill (60); else it is left out
EXIT     0 all ok, skipped or dismissed; 1 an operator is none of these; 2 usage; 3 the environment was refused (a device
         that does not exist or is in use, a second screen in the directory, a full disk); 130 interrupted: go on with the same call.
REQUIRES Python 3.10, Linux; rich for the bar. No torch here: only the children import it.
LIMITS   One host. Timings need devices that nobody else uses: a lock per physical card keeps out what is ours (screens,
         campaigns, make ab, make aa), other programs are not looked for.
"""
import argparse
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from common import dismissals, inputs
from common.device_lock import hold_devices
from common.devices import apply_changes, child_environment, select_devices
from common.errors import BAD_RESULT, DONE, INTERRUPTED, UserError, run_main
from common.outcome import GOOD_STATUSES
from common.process import end_tagged
from common.shapes import find_shapes
from common.state import hold_lock
from common.trees import ROOT, find_trees
from screen import directory as screens, plan
from screen.progress import Progress, say
from screen.scheduler import Scheduler, Task

SAME_INTERRUPT = 0.5    # seconds; timeout(1) sends its signal to the process and then to its whole group
NUMBERS = {"TIMEOUT": 1800.0, "RETRIES": 2, "GRACE_S": 15.0, "RETRY_PAUSE_S": 10.0, "SETTLE_S": 60.0}


def main(argv):
    environ, dry_run = read_options(argv)
    interrupts = Interrupts()
    screen, ops, planned = prepare(environ)
    run, kind, why = screens.choose_run(environ, screen.runs, screen.trees)
    if dry_run:
        print_plan(planned, replace(screen, run=run), why)
        return DONE
    with hold_devices(screen.devices, environ, run) as held:
        return run_screen(replace(screen, environ=environ | held), ops, planned, (run, kind, why), interrupts)


def run_screen(screen, ops, planned, choice, interrupts):
    """The screen in the directory of `choice`, as choose_run returns it; the exit status."""
    run, kind, why = choice
    run = screens.make_run(run, kind)
    with hold_lock(run / "screen.lock", "the screen"):
        run_id, changed = screens.record_screen(replace(screen, run=run))
        screen = replace(screen, run=run, run_id=run_id)
        say_start(screen, why if kind == "named" else f"{kind}: {why}", changed)
        end_leftovers(screen)
        rows = screens.skip_without_record(screen.environ, assign_devices(planned, screen), say)
        plan.write_plan(run / "plan.csv", plan.keep_earlier_rows(rows, plan.read_plan(run / "plan.csv"), ops))
        screens.mark_latest(screen)
        tasks, done = judge_ops(rows, screen)
        outcomes = {**done, **run_tasks(screen, tasks, done, interrupts)}
        return finish(screen, rows, outcomes, interrupts)


def prepare(environ):
    """(screen without a directory yet, operators of the inventories, planned rows): all checks, and nothing made."""
    numbers = {name: read_number(environ, name, default) for name, default in NUMBERS.items()}
    inputs.check_knobs(environ)
    inputs.check_choice("SHARD", environ.setdefault("SHARD", "hash"), plan.SHARDS)
    trees = find_trees(environ)
    screens.check_replay(environ)
    ops_dir = Path(environ.get("OPS_DIR") or ROOT / "ops")
    ops = plan.read_inventories(trees, ops_dir)
    python, run_pytest = find_python(environ), find_run_pytest(environ)
    planned = plan.plan_ops(ops, trees, environ, ops_dir, {})     # a wrong OPS or MATCH is said before torch is asked
    runs = Path(environ.get("RUNS") or ROOT / "runs").absolute()
    shapes = find_all_shapes(environ.get("SHAPES"), trees, {op.repo for op in planned}, runs / "shapes")
    devices, versions = select_devices(environ, python), inputs.read_versions(python, environ)
    planned = plan.plan_ops(ops, trees, environ, ops_dir, find_dismissed(ops_dir, devices[0], versions, python, environ))
    screen = screens.Screen(
        run=None, run_id="", runs=runs, shapes=shapes, environ=environ, python=python,
        run_pytest=run_pytest, trees=trees, tree_facts={repo: inputs.describe_tree(tree) for repo, tree in trees.items()},
        versions=versions, devices=devices,
        timeout=numbers["TIMEOUT"], retries=numbers["RETRIES"], grace=numbers["GRACE_S"], pause=numbers["RETRY_PAUSE_S"],
        settle=numbers["SETTLE_S"])
    return screen, ops, planned


# ---- options

def read_options(argv):
    """(environment of this screen: the caller's with the options set into it, is it a dry run)."""
    parser = argparse.ArgumentParser(prog="run_batch.py", usage="run_batch.py [OPTION ...]", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    options = {
        "run": "DIR: the screen to start or to continue", "ops": "a,b or repo/a: only these operators",
        "match": "REGEX: only operators whose name it finds", "devices": "6,7: devices, in the caller's own names",
        "dtypes": f"of {','.join(inputs.DTYPES)}; default: each operator's own",
        "level": "core or comprehensive", "mode": "kernel, operator, wrapper or cudagraph",
        "shapes": "a set of ops/shapes, or a FILE in place of upstream's core_shapes.yaml",
        "timeout": "seconds for one attempt (1800)", "retries": "repetitions after a failure that may pass (2)",
        "shard": "hash: an operator always meets the same device; balanced: by the last screen's durations",
        "replay_root": "RUN: replay the tuner's choices recorded in that screen",
        "replay_missing": "run (tuned live) or skip: operators that have no record there"}
    for name, text in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar=name.upper().rpartition("_")[2], help=text)
    parser.add_argument("--fresh", action="store_const", const="1", help="start a new screen whatever there is")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and make nothing")
    given = vars(parser.parse_args(argv))
    dry_run = given.pop("dry_run")
    return {**os.environ, **{name.upper(): value for name, value in given.items() if value is not None}}, dry_run


def read_number(environ, name, default):
    """The non-negative number in variable `name`."""
    text = environ.get(name) or str(default)
    try:
        number = type(default)(text)
    except ValueError:
        number = -1
    if not 0 <= number < float("inf") or (name == "TIMEOUT" and number == 0):
        kind = "whole number" if isinstance(default, int) else "number of seconds"
        raise UserError(f"{name}: {text}: is no {kind}; give one, as {name}={default:.0f}")
    environ[name] = text
    return number


def find_python(environ):
    """The Python of the children: PYTHON, the environment beside this script, or this one."""
    own = ROOT / ".venv" / "bin" / "python"
    return environ.get("PYTHON") or (str(own) if own.exists() else sys.executable)


def find_run_pytest(environ):
    """run_pytest.sh, or the script that RUN_PYTEST names in its place."""
    path = Path(environ.get("RUN_PYTEST") or ROOT / "run_pytest.sh").absolute()
    if not os.access(path, os.X_OK) or not path.is_file():
        raise UserError(f"RUN_PYTEST: {path}: is no executable file; `chmod +x` it or name another")
    return str(path)


# ---- what to run

def find_all_shapes(value, trees, repos, folder):
    """{repo: shape file} of the `repos` that have something to run; {} without SHAPES."""
    return {repo: find_shapes(value, repo, trees[repo], folder) for repo in sorted(repos)} if value else {}


def find_dismissed(ops_dir, device, versions, python, environ):
    """{(repo, op): reason} of the rows of ops/dismiss.csv that hold for `device` and what is asked for."""
    facts = {"vendor": device.vendor, "versions": versions, "dtypes": inputs.split_list(environ.get("DTYPES"))}
    return dismissals.list_dismissed(ops_dir / "dismiss.csv", facts, lambda: dismissals.ask_arch(
        python, apply_changes(environ, child_environment(device, environ))))


def assign_devices(planned, screen):
    """The planned rows with a device each."""
    if screen.environ["SHARD"] == "hash":
        return plan.assign_by_hash(planned, screen.devices)
    seconds = plan.read_durations(screen.runs, exclude=screen.run)
    return plan.assign_balanced(planned, screen.devices, seconds, plan.read_plan(screen.run / "plan.csv"))


def judge_ops(rows, screen):
    """(tasks to run, {key: status} of what is complete). A stale marker is said."""
    common = inputs.list_screen_inputs(screen.environ, screen.run_pytest, screen.versions, screen.devices[0].vendor)
    shared = {repo: inputs.digest_shared(tree) for repo, tree in screen.trees.items()}
    tasks, done, stale = [], {}, Counter()
    for row in rows:
        if row.status != plan.PLANNED:
            done[row.key] = row.status
            continue
        replay = screens.find_replay(screen.environ, row)
        wanted = inputs.list_op_inputs(common, screen.trees[row.repo], screen.tree_facts[row.repo], shared[row.repo],
                                       row.nodes, screen.shapes.get(row.repo, ""), replay)
        marker, why_stale = screens.judge_marker(screen.op_folder(row), wanted, screen.timeout)
        if marker and not why_stale:
            done[row.key] = marker["status"]
        else:
            tasks.append(Task(row, wanted, replay))
            stale[why_stale] += marker is not None
    for why, count in stale.items():
        if count:
            say(f"stale: {count} complete operator{'s' if count > 1 else ''} again ({why})")
    return tasks, done


def end_leftovers(screen):
    """End what an earlier driver of this screen left running because it was killed."""
    for pid, command in end_tagged(screen.run_id, screen.grace).items():
        say(f"left by an earlier driver of this screen, ended: {pid} {command}")


def run_tasks(screen, tasks, done, interrupts):
    """{key: status} of those of `tasks` that got an outcome."""
    def save_moves(moved):
        rows = {each.key: each for each in moved}
        path = screen.run / "plan.csv"
        plan.write_plan(path, [rows.get(each.key, each) for each in plan.read_plan(path)])

    resumed = sum(status not in (plan.DISMISSED, plan.NOT_FOUND) for status in done.values())
    if resumed:
        say(f"resumed: {resumed} of {resumed + len(tasks)} operators are complete")
    report = Progress(resumed + len(tasks), resumed)
    scheduler = Scheduler(screen, tasks, report, lambda: interrupts.count, save_moves)
    try:
        with interrupts:
            scheduler.run()
    finally:
        report.close()
    return scheduler.outcomes


# ---- telling

def say_start(screen, why, changed):
    """The first lines: which screen, where, on what."""
    say(f"screen: {screens.shorten(screen.run)} ({why})")
    for repo, tree in screen.trees.items():
        say(f"tree: {repo} {tree}" + (" (no FlagGems checkout given: FLAGGEMS_DIR)" if repo == "samples" else ""))
    names = ", ".join(device.name for device in screen.devices)
    if screen.devices[0].is_host:
        say(f"devices: {names} (host device: compiled for a GPU, executed on the CPU; its times mean nothing)")
    else:
        say(f"devices: {names} ({screen.devices[0].vendor})")
    if changed:
        say(f"changed since this screen was started: {', '.join(changed)}")


def print_plan(planned, screen, why):
    """The plan as a table: what would run where, and what would not."""
    rows = screens.skip_without_record(screen.environ, assign_devices(planned, screen), say)
    tasks, done = judge_ops(rows, screen)
    to_run = {task.row.key for task in tasks}
    say(f"would use {screens.shorten(screen.run)} ({why})")
    table = [("repo/op", "device", "what", "nodes")]
    for row in rows:
        what = "run" if row.key in to_run else row.status if row.status != plan.PLANNED else f"complete ({done[row.key]})"
        table.append((row.name, row.device or "-", what, row.reason or " ".join(row.nodes)))
    widths = [max(len(line[column]) for line in table) for column in range(3)]
    for line in table:
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths)) + f"  {line[3]}")
    say(f"{len(to_run)} of {len(rows)} to run on {len(screen.devices)} devices")


def finish(screen, rows, outcomes, interrupts):
    """Write the summary, say the counts; return the exit status."""
    code = subprocess.run([sys.executable, ROOT / "batch_summary.py", screens.shorten(screen.run)], check=False).returncode
    counts = Counter(outcomes.get(row.key, "interrupted") for row in rows)
    said = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    say(f"screen: {screens.shorten(screen.run)}: {said}")
    if interrupts.count:
        say("interrupted: the same call goes on from here")
        return INTERRUPTED
    if code != DONE:    # batch_summary.py saw the logs themselves
        return code
    return DONE if set(counts) <= set(GOOD_STATUSES) else BAD_RESULT


class Interrupts:
    """Ctrl-C, SIGTERM and a lost terminal. Inside `with` they are counted, before and after they raise."""

    def __init__(self):
        self.count, self._counting, self._last = 0, False, float("-inf")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:     # nohup, and shells' background jobs
                signal.signal(number, self._receive)

    def __enter__(self):
        self._counting = True

    def __exit__(self, *_):
        self._counting = False

    def _receive(self, *_):
        now = time.monotonic()
        if now - self._last > SAME_INTERRUPT:
            self.count += 1
        self._last = now
        if not self._counting:
            raise KeyboardInterrupt


if __name__ == "__main__":
    run_main(main)
