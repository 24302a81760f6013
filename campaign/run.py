#!/usr/bin/env python3
"""run.py - run a campaign to its seal, or go on with one that was interrupted.

USAGE    campaign/run.py MANIFEST [--run DIR]       make campaign MANIFEST=campaign/manifests/host_rlc.yaml [RUN=runs/NAME]
         campaign/run.py --run DIR                  make campaign RUN=runs/NAME: goes on where it was killed
INPUT    The manifest is frozen first (prepare.py); DEVICES or the vendor's variable selects the device; PYTHON; WARM=0: each
         process imports everything by itself (worker.py).
OUTPUT   DIR (default runs/<name>-<UTC stamp>), sealed at its end: receipt.json, matrix.csv, rows.csv, report.md, FILES,
         SHA256SUMS, and the evidence of each step (layout.py). On stdout each check, each step as it ends, the headline.
ORDER    canaries: correctness, round a; a canary that does not show what it must stops the campaign
         all other correctness runs (`jobs` at once), then round a, task by task
         round b, for the tasks whose code above the floor differs between off and candidate, and that are not X or F already
         Whatever is timed runs alone on its device. A step with a marker of the same inputs is not run again.
EXIT     0 sealed; 1 sealed, and a task is F or R, or a canary failed (not sealed); 2 usage; 3 a check refused, named;
         4 a digest does not match; 130 interrupted: children are ended first, the same command goes on.
NEEDS    PyYAML, pydantic, scipy where there are times. torch only in the children.
"""
import argparse
import collections
import contextlib
import os
import platform
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from campaign import layout, prepare, preflight, seal
from campaign.classify import find_broken_evidence, find_failure, judge_canary
from campaign.device_state import describe_device, is_throttled
from campaign.evidence import read_run, scope_facts
from campaign.matrix import count_classes
from campaign.report import describe_switches
from campaign.worker import GRACE_S, RunningStep, Session, is_done, list_callers_switches
from common.device_lock import hold_devices
from common.devices import select_devices
from common.errors import BAD_RESULT, REFUSED, USAGE, UserError, run_main
from common.inputs import check_cache_place, check_choice, make_paths_absolute
from common.interrupts import Interrupts
from common.process import end_tagged
from common.state import (claim_directory, hold_lock, link_latest, read_json, read_marker, remove_marker, utc_now, utc_stamp,
                          write_json_atomic)
from common.trees import ROOT, find_commit
from warm.pool import make_pool

POLL_S = 0.02
THROTTLE_RETRIES = 1  # of a timed step; then its times are invalid, and that is what is reported


# Where, with what --------------------------------------------------------------------------------------------------


def choose_run(options, environ):
    """(run directory, Frozen): a new one, or that of a campaign which is to go on."""
    if options.run and read_json(options.run / layout.CAMPAIGN):
        frozen = layout.read_frozen(options.run / layout.FROZEN)
        if options.manifest and prepare.freeze(options.manifest, environ, options.frozen).name != name_frozen(frozen):
            raise UserError(f"{options.run}: was started with another manifest, tree or tools; go on without MANIFEST, or name "
                            f"another run: RUN=runs/NAME")
        return options.run, frozen
    if not options.manifest:
        raise UserError("MANIFEST: not set; give one, as MANIFEST=campaign/manifests/host_rlc.yaml"
                        + (f" ({options.run} is no campaign to go on with)" if options.run else ""), USAGE)
    frozen = layout.read_frozen(prepare.freeze(options.manifest, environ, options.frozen))
    return options.run or environ_runs(environ) / f"{frozen.manifest.name}-{utc_stamp()}", frozen


def name_frozen(frozen):
    return f"{frozen.manifest.name}-{frozen.digest[:12]}"


def environ_runs(environ):
    return Path(environ.get("RUNS") or ROOT / "runs")


def find_python(environ):
    named = environ.get("PYTHON") or next((str(path) for path in [ROOT / ".venv/bin/python"] if path.exists()), sys.executable)
    found = shutil.which(named)
    if found is None:
        raise UserError(f"PYTHON: {named}: not found; give another, or let `make setup` make one")
    return str(Path(found).absolute())


def find_run_pytest(environ):
    path = Path(environ.get("RUN_PYTEST") or ROOT / "run_pytest.sh").absolute()
    if not os.access(path, os.X_OK):
        raise UserError(f"RUN_PYTEST: {path}: is no executable file; `chmod +x` it or name another")
    return path


def start_run(run, frozen, context):
    """The run's directory with its own copy of the frozen one and campaign.json, which is written last; its run id."""
    known = read_json(run / layout.CAMPAIGN)
    if known:
        refuse_other_device(known, context)
        return known["run_id"]
    if run.exists() and any(run.iterdir()):
        if any(path.name != layout.FROZEN and path.suffix != ".tmp" for path in run.iterdir()):  # else a start that was killed
            raise UserError(f"{run}: is not empty and no campaign; name another: RUN=runs/NAME")
        shutil.rmtree(run)
    run = run if run.exists() else claim_directory(run)
    shutil.copytree(frozen.path, run / layout.FROZEN)
    run_id = f"{frozen.manifest.name}-{os.urandom(6).hex()}"
    write_json_atomic(run / layout.CAMPAIGN, {
        "schema": layout.SCHEMA, "run_id": run_id, "frozen": name_frozen(frozen), "started": utc_now(),
        "devices": context.facts, "host": platform.node(), "kernel": platform.release(),
        "source": {"repo": frozen.manifest.source.repo, "tree": str(context.tree),
                   "commit": find_commit(context.tree, context.environ)},
        "switches": list_callers_switches(context.environ, frozen.manifest),
        "project_commit": find_commit(ROOT, {}), "versions": preflight.read_versions(context.python, context.environ)})
    return run_id


def refuse_other_device(known, context):
    """A campaign goes on only on the devices it was started on."""
    before, now = ({name: facts.get("uuid") for name, facts in found.items()} for found in (known["devices"], context.facts))
    if before != now:
        raise UserError(f"check device-present: selected are {describe_devices(now)}, the campaign was started on "
                        f"{describe_devices(before)}; select those", REFUSED)


def describe_devices(uuids):
    return ", ".join(f"{name} ({uuid or 'unknown'})" for name, uuid in uuids.items())


# Steps -------------------------------------------------------------------------------------------------------------


def run_steps(session, steps, jobs=1):
    """Run those of `steps` that are not done, at most `jobs` at once, in their order."""
    queue = collections.deque(steps)
    run_lanes(session, [queue] * jobs)


def run_lanes(session, lanes):
    """Run queues of steps side by side, one step per lane at a time; lanes may share a queue. All that runs ends before an
    error or an interrupt goes on."""
    running = {}
    try:
        while running or any(lanes):
            if session.interrupts.count:
                raise KeyboardInterrupt
            for number, lane in enumerate(lanes):
                while number not in running and lane:
                    step = lane.popleft()
                    if can_run(session, step):
                        running[number] = RunningStep(session, step)
            for number, each in list(running.items()):
                if each.advance(time.monotonic()):
                    del running[number]
                    for note in session.pool.take_notes() if session.pool else ():
                        print(note, flush=True)
                    report_step(session, each.step)
                    if must_repeat(session, each):
                        lanes[number].appendleft(each.step)
            time.sleep(POLL_S if running else 0)
    except BaseException:
        stop_all(list(running.values()))
        raise


def stop_all(running):
    for each in running:
        each.end(time.monotonic())
    while not all([each.advance(time.monotonic()) for each in running]):
        time.sleep(POLL_S)


def can_run(session, step):
    """False for a step that is done, and for a replay whose recording did not end well: its task is X already."""
    if is_done(session, step):
        return False
    if step.is_tests or step.is_recording:
        return True
    return (read_marker(layout.step_dir(session.run, step.recording)) or {}).get("status") == "ok"


def report_step(session, step):
    marker = read_marker(layout.step_dir(session.run, step)) or {}
    print(f"{utc_now()} {step.name}: {marker.get('status', 'stopped')} {marker.get('detail', '')}".rstrip()
          + f" ({marker.get('seconds', 0)} s)", flush=True)


def must_repeat(session, running):
    """True for a step that was lost with its warm parent, and for a timed one that met a throttled device for the first time,
    whose marker is taken away."""
    step = running.step
    if running.is_lost:
        print(f"{step.name}: its warm parent ended; once more, as a plain process", flush=True)
        return True
    marker = read_marker(layout.step_dir(session.run, step))
    is_timed = not (step.is_tests or step.is_recording) and session.frozen.manifest.has_times
    if not marker or not is_timed or marker["attempt"] > THROTTLE_RETRIES:
        return False
    if not (is_throttled(marker["device_before"]) or is_throttled(marker["device_after"])):
        return False
    print(f"{step.name}: the device was throttled; once more", flush=True)
    remove_marker(layout.step_dir(session.run, step))
    return True


def run_round(session, tasks, round_):
    """One round of `tasks`. With times: one lane per device, in which each task's cells run one after the other."""
    steps = {task: layout.list_round(task, round_, session.frozen.manifest.replicates) for task in tasks}
    if session.frozen.manifest.has_times:
        run_lanes(session, [collections.deque(step for task in tasks if session.device_of(task) == device for step in steps[task])
                            for device in session.devices])
        return
    flat = [step for task in tasks for step in steps[task]]
    for is_recording in (True, False):  # what replays needs the record
        run_steps(session, [step for step in flat if step.is_recording == is_recording], session.frozen.manifest.jobs)


# The campaign ------------------------------------------------------------------------------------------------------


def run_campaign(session):
    """All steps in their order. UserError with BAD_RESULT for a canary that does not show what it must."""
    manifest = session.frozen.manifest
    canaries = [w.task for w in manifest.workloads if w.canary]
    others = [w.task for w in manifest.workloads if not w.canary]
    run_steps(session, [step for task in canaries for step in layout.list_tests(task)], manifest.jobs)
    run_round(session, canaries, "a")
    check_canaries(session, canaries)
    run_steps(session, [step for task in others for step in layout.list_tests(task)], manifest.jobs)
    run_round(session, others, "a")
    if manifest.has_times:
        run_round(session, list_changed(session), "b")


def check_canaries(session, canaries):
    tasks = read_run(session.run, session.frozen)
    for task in canaries:
        wanted = session.frozen.tasks[task]["canary"]
        problem = judge_canary(scope_facts(tasks[task], session.frozen.manifest.measured_launch_floor), wanted)
        if problem:
            raise UserError(f"canary {task}: {problem}; the campaign stops, its evidence is in "
                            f"{layout.step_dir(session.run, layout.Step(task, 'a1', 'off')).parent.parent}", BAD_RESULT)
        print(f"canary {task}: {wanted}, as it must be", flush=True)


def list_changed(session):
    """The tasks that a time could decide: sound, correct, and with other code above the floor in off and candidate."""
    tasks = read_run(session.run, session.frozen)
    facts = {task: scope_facts(data, session.frozen.manifest.measured_launch_floor) for task, data in tasks.items()}
    return [task for task, each in facts.items() if each.is_changed and not (find_broken_evidence(each) or find_failure(each))]


def main(argv):
    parser = argparse.ArgumentParser(prog="run.py", description="run a campaign to its seal")
    parser.add_argument("manifest", nargs="?", type=Path, default=os.environ.get("MANIFEST") or None)
    parser.add_argument("--run", type=Path, default=os.environ.get("RUN") or None)
    parser.add_argument("--frozen", type=Path, default=layout.FROZEN_ROOT, help="where frozen directories are kept")
    options = parser.parse_args(argv)
    check_choice("WARM", os.environ.get("WARM") or "1", ("0", "1"))
    interrupts = Interrupts()
    environ, python = dict(os.environ), find_python(os.environ)
    make_paths_absolute(environ)
    check_cache_place("RUN" if options.run else "RUNS", options.run or environ_runs(environ))
    run, frozen = choose_run(options, environ)
    run = Path(run).absolute()
    manifest = frozen.manifest
    if manifest.device.vendor == "host":
        environ.setdefault("HOST_TARGET", "cuda:90")
    # Sorted: tasks are bound to devices by their order, and one who goes on may name them in another.
    most = 1 if manifest.device.vendor == "host" else None
    devices = sorted(select_devices(environ, python), key=lambda device: device.name)[:most]
    context = preflight.Context(run, frozen, prepare.find_manifest_tree(manifest, environ), devices,
                                {device.name: describe_device(device, environ) for device in devices}, python, environ)
    run.parent.mkdir(parents=True, exist_ok=True)
    lock = run.with_name(f"{run.name}.lock")
    with hold_lock(lock, f"campaign {run}"), hold_devices(devices, environ, run, "check device-lock: ") as held:
        environ |= held
        if known := read_json(run / layout.CAMPAIGN):
            end_tagged(known["run_id"])  # what a killed driver left may still be on the device
        preflight.run_checks(context)
        run_id = start_run(run, frozen, context)
        frozen = layout.read_frozen(run / layout.FROZEN)
        print("\n".join([f"run: {run}", *describe_switches(run)]), flush=True)
        run_pytest = find_run_pytest(environ)
        pool = make_pool(environ, run, run_id, run_pytest, GRACE_S)
        with interrupts, contextlib.closing(pool) if pool else contextlib.nullcontext():
            run_campaign(Session(run, run_id, frozen, context.tree, tuple(devices), python, run_pytest, environ,
                                 lambda device: describe_device(device, environ), interrupts, pool))
        if interrupts.count:
            raise KeyboardInterrupt
        preflight.run_checks(replace(context, frozen=frozen), preflight.AT_THE_END)
        judgement, digest = seal.seal_run(run, frozen, {device.name: describe_device(device, environ) for device in devices})
        lock.unlink(missing_ok=True)
    link_latest(run.parent / "latest-campaign", run)
    counts = " ".join(f"{k}={n}" for k, n in count_classes(judgement.verdicts.values()).items())
    print(f"sealed: {run}\nSHA256SUMS {digest}\n{counts}")
    return BAD_RESULT if any(v.klass in "FR" for v in judgement.verdicts.values()) else 0


if __name__ == "__main__":
    run_main(main)
