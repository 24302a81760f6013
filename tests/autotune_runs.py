"""Helper of the autotune tests: pytest processes over autotune_kernels.py under the host device, and their records."""
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parent.parent

OTHER_PACKAGE = '''
from triton.runtime.autotuner import Autotuner

class OtherTuner(Autotuner):
    """Another package's tuner, with a run() and a key of its own, as flaggems_vllm's."""
    def run(self, *args, **kwargs):
        self.nargs = dict(zip(self.arg_names, args))
        key = (self.nargs["n"], "other")
        if key not in self.cache:
            timings = {c: self._bench(*args, config=c, **kwargs) for c in self.prune_configs(kwargs)}
            self.cache[key] = min(timings, key=timings.get)
            self.configs_timings = timings
        self.best_config = self.cache[key]
        return self.fn.run(*args, **kwargs, **self.best_config.all_kwargs())

def other_tuner(configs, key):
    return lambda fn: OtherTuner(fn, fn.arg_names, configs, key, None, None)
'''


def run_with_plugin(folder, source, plugin):
    """pytest of `source`, written to `folder`, with that plugin of ours alone: the ended process."""
    (folder / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", plugin, "test_it.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "plugins")}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


class Folder:
    """A place with the kernels, one compile cache, and the run directories of the processes that ran there."""

    def __init__(self, path):
        self.path = path
        (path / "test_it.py").write_text((ROOT / "tests/autotune_kernels.py").read_text())
        (path / "other_package").mkdir()
        (path / "other_package/__init__.py").write_text(OTHER_PACKAGE)

    def run(self, name, *words, database="db", **environment):
        """pytest in a fresh run directory `name`: its text, status, record, and what each case launched."""
        run_dir = self.path / name
        run_dir.mkdir()
        env = {**os.environ, "PYTHONPATH": f"{ROOT / 'plugins'}:{self.path}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
               "TRITON_CACHE_DIR": str(self.path / "cache"), "FLAGGEMS_DB_URL": f"sqlite:///{self.path}/{database}",
               "HOST_TARGET": "cuda:90", "HOST_MODE": "compile", "RUN_DIR": str(run_dir), **environment}
        command = [sys.executable, "-m", "pytest", "-s", "-q", "-rA", "--tb=short", "-p", "no:cacheprovider",
                   "--rootdir", self.path, "-p", "_host_device_plugin", "-p", "_autotune_record_plugin", self.path / "test_it.py",
                   *words]
        done = subprocess.run(command, cwd=run_dir, env=env, text=True, capture_output=True, timeout=300, check=False)
        lines = [json.loads(line) for line in read_lines(run_dir / "launched.jsonl")]
        launched = {case: blocks for line in lines for case, blocks in line.items() if case != "hooked"}
        hooked = {case: line["hooked"] for line in lines for case in line if case != "hooked"}
        return SimpleNamespace(text=done.stdout + done.stderr, code=done.returncode, path=run_dir, launched=launched,
                               hooked=hooked, entries=read_entries(run_dir / "autotune.json"),
                               failed=set(re.findall(r"^FAILED \S+\[(\S+)\]", done.stdout, re.M)))


def read_lines(path):
    return path.read_text().splitlines() if path.is_file() else []


def read_entries(path):
    """{case: entry} of a record; other kernels by their name and key."""
    found = {}
    for entry in json.loads(path.read_text())["entries"] if path.is_file() else ():
        name, (first, *_) = entry["kernel"].rpartition(".")[2].removesuffix("_kernel"), json.loads(entry["key"])
        found[f"{name}-{first[1]}"] = entry
    return found


def edit_record(source, place, change, **meta):
    """A copy of a record with `change(case, entry)` for each entry (None drops it) and other `meta` (None drops it)."""
    data = json.loads((source / "autotune.json").read_text())
    cases = read_entries(source / "autotune.json")
    data["entries"] = [e for e in (change(case, entry) for case, entry in cases.items()) if e]
    data["meta"] = {k: v for k, v in {**data["meta"], **meta}.items() if v is not None}
    place.mkdir()
    (place / "autotune.json").write_text(json.dumps(data))
    return place


def choose_block(entry, block, pre_hook=False):
    return {**entry, "config": {**entry["config"], "kwargs": {"BLOCK": ["int", block]}, "pre_hook": pre_hook}}


def find_tables(database, kernel):
    """The names of a kernel's tables: winners, trials."""
    names = [name for name, in database.execute("SELECT name FROM sqlite_master WHERE type='table'") if name.startswith(kernel)]
    trials = [name for name in names if "benchmark" in name]
    winners = [name for name in names if name not in trials]
    assert len(winners) == len(trials) == 1
    return winners[0], trials[0]
