"""collect_tests.py - what pytest itself collects of a tree, asked in child processes.

PURPOSE  The running half of rebuild_inventory.py. Each folder is collected by a pytest of its own (both conftest.py files
         own the same options), side by side; ops/_collect_plugin.py writes what was found. Nothing is run.
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

ROOT = Path(__file__).resolve().parent.parent
PLUGINS = ("_device_guard_plugin", "_host_device_plugin", "_collect_plugin")
GRACE = 5.0


class CollectError(Exception):
    """A folder could not be collected as a whole; `problems` has one line per failed module or pytest."""

    def __init__(self, problems):
        super().__init__("; ".join(problems))
        self.problems = problems


def collect_tests(tree, folders, *, python, environ, timeout, on_host):
    """Collect `folders` of `tree` at the same time, at most `timeout` seconds long. See the top of this file."""
    with tempfile.TemporaryDirectory(prefix="gemscreen-collect-") as scratch:
        runs = {folder: start_pytest(tree, folder, python, environ, on_host, Path(scratch)) for folder in folders}
        try:
            late = await_all(runs, timeout)
        finally:
            end_all(runs)
        problems, found = [], {}
        for folder, child in runs.items():
            data, wrong = read_answer(Path(scratch, folder), child, folder, timeout if folder in late else None)
            problems += wrong
            found[folder] = data
    if problems:
        raise CollectError(problems)
    return found


def start_pytest(tree, folder, python, environ, on_host, scratch):
    """A Child that collects one folder; its files are in scratch/folder, which is also its working directory."""
    here = scratch / folder
    here.mkdir()
    command = [python, "-m", "pytest", "--collect-only", "-q", "--tb=short", "-p", "no:cacheprovider", "--rootdir", tree]
    if Path(tree, "pytest.ini").is_file():
        command += ["-c", Path(tree, "pytest.ini")]
    for plugin in PLUGINS:
        command += ["-p", plugin]
    env = child_env(tree, environ, on_host)
    env["COLLECT_OUT"] = str(here / "collected.json")
    return Child([*map(str, command), str(Path(tree, folder))], tag=f"inventory-{os.getpid()}/{folder}", env=env,
                 log=here / "log", cwd=here, grace=GRACE)


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
    paths += [ROOT / "plugins", ROOT / "ops", *filter(None, [environ.get("PYTHONPATH")])]
    env["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    return env


def await_all(runs, timeout):
    """Wait until all children are gone; end them after `timeout` seconds. Returns the folders that were too slow."""
    deadline = time.monotonic() + timeout
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


def read_answer(here, child, folder, exceeded):
    """(data or None, problems) of a finished child."""
    if exceeded is not None:
        return None, [f"{folder}: not collected within {exceeded:g} s; give it more: --timeout"]
    log = (here / "log").read_text(encoding="utf-8", errors="replace")
    try:
        data = json.loads((here / "collected.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        tail = "\n    ".join(log.strip().splitlines()[-8:])
        return None, [f"{folder}: pytest ended with status {child.returncode} before it had collected:\n    {tail}"]
    problems = [f"{error['node'] or folder}: {error['text']}" for error in data["errors"]]
    if not problems and data["pytest_exit"] not in (0, 5):      # 5: there is no test in it
        problems = [f"{folder}: pytest ended with status {data['pytest_exit']}"]
    data["functions"] = {entry["node"]: entry["cases"] for entry in data["functions"]}
    return data, problems
