#!/usr/bin/env python3
"""run_batch.py - a screen: every operator's benchmark, each in its own process, across the devices of this host.

USAGE    run_batch.py [--run DIR] [--ops a,b] [--match REGEX] [--devices 6,7] [--dtypes float16,...] [--level L]
                      [--mode M] [--shapes SET|FILE] [--timeout S] [--retries N] [--shard hash|balanced|queue] [--budget 2h]
                      [--shard-index i/n] [--engine local|ray] [--address HOST:PORT] [--replay-root RUN]
                      [--replay-missing run|skip] [--fresh] [--retry-failed] [--dry-run]
         Every option's default is the environment variable of the same name (OPS, DEVICES, REPLAY_ROOT, ...).
INPUT    ops/inventory_<repo>.csv minus what of ops/dismiss.csv holds here; the trees FLAGGEMS_DIR, FLAGGEMS_VLLM_DIR, or
         the sample tree.
         All knobs of run_pytest.sh (TIMER, USE_FLAGTUNE, WARMUP_MS, ...) go through to it from the environment.
OUTPUT   runs/screen-<UTC stamp>/: screen.json, plan.csv, shapes/, <repo>/<op>/{.complete,attempts/N/}, summary.csv, ...
         One line per operator; on a terminal a bar with the time left:
           [ 3/29] ok        samples/abs                 9.1 s  device host:0
WHICH    RUN=DIR: that screen, continued if it is there (operators that it has beyond OPS keep their results). One of
         another tree is refused, and so is FRESH=1 for one that is there.
         Without RUN: the newest in RUNS with the same selection of operators, devices, card model and knobs if it was worked
         on less than 12 hours ago (a complete one: if it was started then), else a new one. So a second `make screen` goes
         on where the first one stopped, and a nightly one starts anew. --fresh (FRESH=1) always starts a new one; the first
         line says which it is and why.
RESUME   An operator with a .complete marker is not run again as long as its inputs are the same: nodes, benchmark
         files, knobs, shapes, upstream commit and changes, versions, card model, run_pytest.sh, plugins. A stale one is, and
         said; the summary shows no result of another tree, version or card model as this screen's. --retry-failed
         (RETRY_FAILED=1) runs what is failed, partial, crashed or timed out again as well.
DEVICES  As written: 6,7 or UUIDs or MIG ids or host:0,host:1. A child sees exactly one. Without DEVICES those of the
         caller's own variable (CUDA_VISIBLE_DEVICES, ...), else all; where torch sees none, the host device.
         SHARD says which operator meets which: hash (by its name, the same every night), balanced (by what earlier screens in
         RUNS recorded; it keeps its device as long as that costs less than 5 %) or queue (an idle one takes over).
PARTS    SHARD_INDEX=2/8: only the second of eight parts of the plan, cut by a hash of the names, in RUN-2-of-8: for hosts that
         share nothing but the disk. batch_summary.py RUN-*-of-8 --out RUN makes them one (docs/many-hosts.md).
ENGINE   local, or ray (--engine ray --address HOST:PORT): the devices of an existing Ray cluster (docs/many-hosts.md).
BUDGET   2h, 90m, 45s from the first operator on: what was never measured first, then what changed, what became slower, what
         was measured longest ago; none that by its recorded time would end later is begun, and none is ended for it. What
         is left out is said and no failure; the same call goes on with it (screen/budget.py).
OTHER    PYTHON       of the children (.venv/bin/python beside this script, else this one)
         RUNS         where screens go (runs)          OPS_DIR  the inventories (ops)
         RUN_PYTEST   (run_pytest.sh; one that knows --check)
         GRACE_S      seconds from TERM to KILL (15)   RETRY_PAUSE_S  before infrastructure is tried again (10)
         Compile and tuner caches: one of each per device in RUNS/.cache, or below TRITON_CACHE_DIR, FLAGGEMS_CACHE_DIR.
         WARM         1 (default): each operator's pytest is a fork of a parent that has imported everything, where that is
                      safe, which is said otherwise (warm/server.py). 0: always a plain process
         COMPILE_AHEAD  cores that compile the next operators' kernels while one is measured (0; screen/ahead.py)
         SETTLE_S     seconds that a device's memory may take to become free after a kill (60); else it is left out
EXIT     0 all ok, skipped, dismissed or left out by BUDGET; 1 an operator is none of these; 2 usage; 3 the environment was
         refused (a device that does not exist or is in use, a second screen in the directory, a full disk); 130 interrupted:
         go on with the same call.
REQUIRES Python 3.10, Linux; rich for the bar and colours. No torch here: only the children import it.
LIMITS   One host, but for ENGINE=ray and SHARD_INDEX. Timings need devices that nobody else uses: a lock per physical card keeps
         out what is ours (screens, campaigns, make ab, make aa), other programs are not looked for.
"""
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from common import dismissals, inputs
from common.errors import BAD_RESULT, DONE, INTERRUPTED, run_main
from common.interrupts import Interrupts
from common.outcome import GOOD_STATUSES
from common.shapes import find_shapes
from common.state import hold_lock, read_marker
from common.trees import ROOT, find_trees
from screen import budget, directory as screens, history, options, order, plan, replay, resume, sharding
from screen.engine import LocalHost
from screen.progress import Progress, say
from screen.scheduler import Scheduler


def main(argv):
    environ, dry_run = options.read_options(argv, __doc__)
    inputs.make_paths_absolute(environ)
    environ["ENGINE"] = environ.get("ENGINE") or "local"
    inputs.check_choice("ENGINE", environ["ENGINE"], ("local", "ray"))
    hosts = find_hosts(environ)
    try:
        return screen_on(hosts, environ, dry_run)
    finally:
        hosts.close()


def find_hosts(environ):
    """The hosts that ENGINE names. Ray is only imported where it is asked for."""
    if environ["ENGINE"] == "ray":
        from screen.ray_hosts import RayHosts
        return RayHosts(environ)
    return LocalHost()


def screen_on(hosts, environ, dry_run):
    """The screen that `environ` asks for, on `hosts` (engine.py); the exit status."""
    interrupts = Interrupts()
    scratch = tempfile.TemporaryDirectory(prefix="gemscreen-")
    with scratch:
        screen, ops, planned = prepare(hosts, environ, Path(scratch.name))
        run, kind, why = screens.choose_run(screen)
        if dry_run:
            print_plan(planned, replace(screen, run=run), why)
            return DONE
        with hosts.hold(screen.devices, environ, run) as held:
            run = screens.make_run(run, kind)
            with hold_lock(run / "screen.lock", "the screen"):
                screen = replace(screen, run=run, environ=environ | held, shapes=screens.keep_shapes(screen.shapes, run))
                scratch.cleanup()       # not at the end: a killed driver would leave it
                return run_screen(hosts, screen, ops, planned, interrupts, why if kind == "named" else f"{kind}: {why}")


def prepare(hosts, environ, scratch):
    """(screen without a directory yet, operators of the inventories, planned rows): all checks, and nothing made but the merged
    shape files in `scratch`."""
    numbers = {name: options.read_number(environ, name, default) for name, default in options.NUMBERS.items()}
    inputs.check_knobs(environ)
    for name, default, valid in options.CHOICES:
        environ[name] = environ.get(name) or default
        inputs.check_choice(name, environ[name], valid)
    budget.read_budget(environ.get("BUDGET"))
    sharding.read_part(environ.get("SHARD_INDEX"))
    trees = find_trees(environ)
    replay.check_replay(environ)
    ops_dir = Path(environ.get("OPS_DIR") or ROOT / "ops")
    ops = plan.read_inventories(trees, ops_dir)
    python, run_pytest, runs = options.find_python(environ), options.find_run_pytest(environ), options.find_runs(environ)
    planned = plan.plan_ops(ops, trees, environ, ops_dir, {})     # a wrong OPS or MATCH is said before torch is asked
    shapes = find_all_shapes(environ.get("SHAPES"), trees, {op.repo for op in planned}, scratch)
    with inputs.ask_versions(python, environ) as read_versions:     # beside torch, which takes seconds
        tree_facts = {repo: inputs.describe_tree(tree) for repo, tree in trees.items()}
        devices, versions = hosts.find_devices(environ, python), read_versions()
    planned = plan.plan_ops(ops, trees, environ, ops_dir, find_dismissed(hosts, ops_dir, devices[0], versions, python, environ))
    screen = screens.Screen(
        run=None, run_id="", runs=runs, shapes=shapes, environ=environ, python=python,
        run_pytest=run_pytest, trees=trees, tree_facts=tree_facts, versions=versions, devices=devices,
        timeout=numbers["TIMEOUT"], retries=numbers["RETRIES"], grace=numbers["GRACE_S"], pause=numbers["RETRY_PAUSE_S"],
        settle=numbers["SETTLE_S"])
    hosts.check(screen, sorted(trees)[0])
    return screen, ops, planned


def find_all_shapes(value, trees, repos, folder):
    """{repo: shape file} of the `repos` that have something to run; {} without SHAPES."""
    return {repo: find_shapes(value, repo, trees[repo], folder) for repo in sorted(repos)} if value else {}


def find_dismissed(hosts, ops_dir, device, versions, python, environ):
    """{(repo, op): reason} of the rows of ops/dismiss.csv that hold for `device` and what is asked for."""
    facts = {"vendor": device.vendor, "versions": versions, "dtypes": inputs.split_list(environ.get("DTYPES"))}
    return dismissals.list_dismissed(ops_dir / "dismiss.csv", facts,
                                     lambda: device.arch or hosts.ask_arch(device, environ, python))


# ---- running

def run_screen(hosts, screen, ops, planned, interrupts, why):
    """The screen in its locked directory, to its summary; the exit status."""
    repo_inputs = resume.list_inputs(screen)
    run_id, changed = screens.record_screen(screen, resume.list_stale_by(repo_inputs))
    screen = replace(screen, run_id=run_id)
    say_start(screen, why, changed)
    resume.end_leftovers(screen, say)
    screens.remove_litter(screen.run)
    earlier = resume.read_earlier_plan(screen.run, ops, say)
    past = history.read_past(screen, {row.key for row in planned})
    rows, names = order.assign_devices(replay.skip_without_record(screen.environ, planned, say), screen, earlier, past)
    plan.write_plan(screen.run / "plan.csv", plan.keep_earlier_rows(rows, earlier, ops))
    screens.mark_latest(screen)
    tasks, done = resume.judge_ops(rows, screen, repo_inputs, say)
    tasks = order.order_tasks(tasks, screen, past, names)
    if tasks:
        screens.remove_summary(screen.run)
    try:
        outcomes = {**done, **run_tasks(hosts, screen, tasks, done, interrupts)}
    except BaseException:       # whatever stopped it: what is there is summed up, if it can be
        summarize(screen, "--quiet", stderr=subprocess.DEVNULL)
        raise
    return finish(screen, rows, outcomes, interrupts)


def run_tasks(hosts, screen, tasks, done, interrupts):
    """{key: status} of those of `tasks` that got an outcome."""
    def save_moves(moved):
        if not moved:
            return
        rows = {each.key: each for each in moved}
        path = screen.run / "plan.csv"
        plan.write_plan(path, [rows.get(each.key, each) for each in plan.read_plan(path)])

    resumed = sum(status not in (plan.DISMISSED, plan.NOT_FOUND) for status in done.values())
    if resumed:
        say(f"resumed: {resumed} of {resumed + len(tasks)} operators are complete")
    report = Progress(resumed + len(tasks), resumed)
    limit = budget.read_budget(screen.environ.get("BUDGET"))
    scheduler = Scheduler(screen, hosts.open(screen, report.note), tasks, report, lambda: interrupts.count, save_moves, limit)
    try:
        with interrupts:
            scheduler.run()
    finally:
        report.close()
    left = [] if interrupts.count else scheduler.list_left()
    save_moves([replace(task.row, status=plan.LEFT_OUT, reason=f"BUDGET={screen.environ.get('BUDGET')}: expected to take "
                        f"{scheduler.expect(task):.0f} s") for task in left])
    return {**scheduler.outcomes, **{task.row.key: plan.LEFT_OUT for task in left}}


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
        say(f"changed since this screen was started last: {', '.join(changed)}")


def print_plan(planned, screen, why):
    """The plan as a table: what would run where, and what would not."""
    earlier = plan.read_plan(screen.run / "plan.csv")
    past = history.read_past(screen, {row.key for row in planned})
    rows, _ = order.assign_devices(replay.skip_without_record(screen.environ, planned, say), screen, earlier, past)
    tasks, done = resume.judge_ops(rows, screen, resume.list_inputs(screen), say)
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


def summarize(screen, *options, stderr=None):
    """Write the summary; batch_summary.py's exit status."""
    command = [sys.executable, ROOT / "batch_summary.py", screens.shorten(screen.run), *options]
    return subprocess.run(command, stderr=stderr, check=False).returncode


def finish(screen, rows, outcomes, interrupts):
    """Write the summary, say the counts; return the exit status."""
    code = summarize(screen)
    counts = Counter(outcomes.get(row.key, "interrupted") for row in rows)
    said = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    fallen = [row.name for row in rows if (read_marker(screen.op_folder(row)) or {}).get("fallback")]
    if fallen:
        say(f"with other dtypes than asked for (column fallback): {', '.join(fallen)}")
    say(f"screen: {screens.shorten(screen.run)}: {said}")
    if counts[plan.LEFT_OUT]:
        say(f"{counts[plan.LEFT_OUT]} of {len(rows)} operators left out: BUDGET={screen.environ['BUDGET']}; the same call goes "
            "on with them")
    if interrupts.count:
        say("interrupted: the same call goes on from here")
        return INTERRUPTED
    if any(counts[status] for status in resume.RETRIED):
        say(f"the same call with RETRY_FAILED=1 runs what is {', '.join(s for s in resume.RETRIED if counts[s])} once more")
    if code != DONE:    # batch_summary.py saw the logs themselves
        return code
    return DONE if set(counts) <= set(GOOD_STATUSES) else BAD_RESULT


if __name__ == "__main__":
    run_main(main)
