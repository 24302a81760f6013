"""collect_tests.py - what pytest itself collects of a tree, asked in child processes.

PURPOSE  The running half of rebuild_inventory.py. Each folder is collected by a pytest of its own (both conftest.py files
         own the same options), side by side; ops/reading/_collect_plugin.py writes what was found. Nothing is run.
OUTPUT   collect_tests(...) -> {"benchmark": {"items": 1188, "functions": {node: [case, ...]}, "skipped": [...]}, ...}
         with the cases of _collect_plugin.py. CollectError with every failed module if anything went wrong.
NEEDS    pytest, torch, triton, flag_gems in `python`; an accelerator or the host device. Linux.
"""

import json
import os
import tempfile
import time
from pathlib import Path

from common.devices import HOST, Device, apply_changes, child_environment
from common.process import Child

HERE = Path(__file__).resolve().parent
PLUGINS = ("_device_guard_plugin", "_host_device_plugin", "_collect_plugin")
GRACE = 5.0


class CollectError(Exception):
    """A folder could not be collected as a whole; `problems` has one line per failed module or pytest."""

    def __init__(self, problems):
        super().__init__("; ".join(problems))
        self.problems = problems


def collect_tests(tree, folders, *, python, environ, timeout, on_host):
    """Collect `folders` of `tree` at the same time, at most `timeout` seconds long. See the top of this file."""
    env = child_env(tree, environ, on_host)
    deadline = time.monotonic() + timeout
    found, problems = {}, []
    wanted = {folder: [folder] for folder in folders}
    while wanted and not problems:
        answers, problems = run_round(tree, wanted, python, env, deadline)
        again = {}
        for folder, data in answers.items():
            earlier = found.setdefault(folder, {**data, "functions": {}, "skipped": [], "items": 0})
            earlier["functions"].update(data["functions"])
            earlier["skipped"] += data["skipped"]
            earlier["items"] += data["items"]
            twins = [error["node"] for error in data["errors"] if error["mismatch"]]
            if twins and twins != wanted[folder]:       # otherwise another round would say the same
                again[folder] = twins
            else:
                problems += [f"{error['node'] or folder}: {error['text']}" for error in data["errors"]]
        wanted = again
    if problems:
        raise CollectError(problems)
    return found


def run_round(tree, wanted, python, env, deadline):
    """Collect the paths `wanted` {folder: [path]}, each folder by one pytest: ({folder: data}, problems)."""
    answers, problems = {}, []
    with tempfile.TemporaryDirectory(prefix="gemscreen-collect-") as scratch:
        runs = {}
        try:
            for folder, paths in wanted.items():
                runs[folder] = start_pytest(tree, paths, python, env, Path(scratch, folder))
            late = await_all(runs, deadline)
        finally:
            end_all(runs)
        for folder, child in runs.items():
            if folder in late:
                problems.append(f"{folder}: too slow to collect; give it more time: --timeout")
            else:
                data, wrong = read_answer(Path(scratch, folder), child, folder)
                problems += wrong
                if data:
                    answers[folder] = data
    return answers, problems


def start_pytest(tree, paths, python, env, here):
    """A Child that collects `paths` of the tree; its files are in `here`, which is also its working directory."""
    here.mkdir()
    command = [python, "-m", "pytest", "--collect-only", "-q", "--tb=short", "-p", "no:cacheprovider", "--rootdir", tree]
    if Path(tree, "pytest.ini").is_file():
        command += ["-c", Path(tree, "pytest.ini")]
    for plugin in PLUGINS:
        command += ["-p", plugin]
    command += [Path(tree, path) for path in paths]
    return Child([*map(str, command)], tag=f"inventory-{os.getpid()}/{here.name}", log=here / "log", cwd=here,
                 env={**env, "COLLECT_OUT": str(here / "collected.json")}, grace=GRACE)


def child_env(tree, environ, on_host):
    """The environment of a collecting pytest: the tree's own package first, our plugins, none of the site's."""
    env = dict(environ)
    if on_host:
        env = apply_changes(env, child_environment(Device(f"{HOST}:0", HOST), environ))
    else:
        env.pop("HOST_TARGET", None)
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "RUN_DIR"):
        env.pop(name, None)
    paths = [Path(tree, "src")] if Path(tree, "src").is_dir() else []
    paths += [HERE.parent.parent / "plugins", HERE, *filter(None, [environ.get("PYTHONPATH")])]
    env["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    return env


def await_all(runs, deadline):
    """Wait until all children are gone; end them at `deadline`. Returns the folders that were too slow."""
    late = set()
    waiting = dict(runs)
    while waiting:
        now = time.monotonic()
        for folder, child in list(waiting.items()):
            if child.advance(now):
                del waiting[folder]
            elif now > deadline and folder not in late:
                late.add(folder)
                child.end(now)
        time.sleep(0.02)
    return late


def end_all(runs):
    """After Ctrl-C: leave no pytest behind."""
    for child in runs.values():
        child.end(time.monotonic())
    while not all([child.advance(time.monotonic()) for child in runs.values()]):
        time.sleep(0.02)


def read_answer(here, child, folder):
    """(data or None, problems) of a finished child."""
    log = (here / "log").read_text(encoding="utf-8", errors="replace")
    try:
        data = json.loads((here / "collected.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        tail = "\n    ".join(log.strip().splitlines()[-8:])
        return None, [f"{folder}: pytest ended with status {child.returncode} before it had collected:\n    {tail}"]
    data["functions"] = {entry["node"]: entry["cases"] for entry in data["functions"]}
    # 5: there is no test in it. 2 comes with errors, which name the modules.
    is_complete = data["pytest_exit"] in (0, 5) or data["errors"]
    return data, [] if is_complete else [f"{folder}: pytest ended with status {data['pytest_exit']}"]
