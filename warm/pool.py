"""pool.py - the warm parents of a screen or campaign: one for each device and tree (and cell), from its first process to the end.

    pool = make_pool(environ, run, run_id, run_pytest, grace)       None where no parent is wanted
    env |= pool.offer("host:0", "samples", ["abs", *nodes], env)    {} where there is no parent: a plain process
    for line in pool.take_notes(): ...                              what a user should know, each once
    pool.close()

A parent is run_pytest.sh with WARM_SERVE: what it exports for an operator is what the parent imports under
(server.py). <run>/.warm/<device>-<repo>[-<cell>]/ goes at the end, but for the log of one that failed.
"""
import re
import shutil
import time
from pathlib import Path

from common.process import Child
from warm.client import read_state

VENDORS = ("host", "nvidia")    # of which it is known that a fork can use the device (preload.py)


def make_pool(environ, *arguments, **options):
    """Pool(*arguments, **options); None with WARM=0, or another program in the place of run_pytest.sh."""
    return None if environ.get("WARM") == "0" or environ.get("RUN_PYTEST") else Pool(*arguments, **options)


class Pool:
    """See the top of this file. Nothing here waits for a parent but close()."""

    def __init__(self, run, run_id, run_pytest, grace, prefix=()):
        self._run, self._run_id, self._run_pytest, self._grace = Path(run), run_id, run_pytest, grace
        self._prefix = list(prefix)     # of the command that starts a parent
        self._parents, self._ending, self._noted, self._notes = {}, [], set(), []

    def offer(self, device, repo, arguments, environ, cell=""):
        """Changes to the `environ` of an attempt on `device` that let a parent of `repo`'s tree fork it. `cell`: cells of a
        campaign differ in variables that imports may read, so that each has a parent of its own."""
        if device.vendor not in VENDORS:
            self._note(device.vendor, f"warm: plain processes: whether a fork can use a {device.vendor} device is not known")
            return {}
        key = (device.name, repo, cell)
        if key not in self._parents:
            for other in [other for other in self._parents if other[0] == device.name and other[1] != repo]:
                self._retire(other)         # its tree's operators are through
            self._parents[key] = self._start(device, repo, arguments, environ, cell)
        folder, child = self._parents[key]
        child.advance(time.monotonic())
        word, remark = read_state(folder)
        if word == "broken" or child.returncode is not None:
            self._note(key, f"warm: {name_key(key)}: plain processes: {remark if word == 'broken' else 'the parent ended'}")
            return {}
        if word == "ready" and remark:
            self._note(key, f"warm: {name_key(key)}: {remark}")
        return {"WARM_FOLDER": str(folder)}

    def take_notes(self):
        """The lines since the last call."""
        for key, (folder, _) in self._parents.items():
            word, remark = read_state(folder)
            if word == "broken":
                self._note(key, f"warm: {name_key(key)}: plain processes: {remark}")
        notes, self._notes = self._notes, []
        return notes

    def close(self):
        """End every parent, and with it what it forked; blocks until they are gone."""
        for key in list(self._parents):
            self._retire(key)
        for folder, child, has_failed in self._ending:
            while not child.advance(time.monotonic()):
                time.sleep(0.02)
            if not has_failed:
                shutil.rmtree(folder, ignore_errors=True)
        if (self._run / ".warm").is_dir() and not any((self._run / ".warm").iterdir()):
            (self._run / ".warm").rmdir()

    def _start(self, device, repo, arguments, environ, cell):
        label = re.sub(r"[^\w.-]", "_", "-".join(filter(None, (device.name, repo, cell))))
        folder = self._run / ".warm" / label
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        child = Child([*self._prefix, self._run_pytest, *arguments], tag=f"{self._run_id}/warm/{label}", log=folder / "log",
                      env={**environ, "WARM_SERVE": str(folder)}, grace=self._grace)
        (folder / "state").write_text(f"importing {child.pid}", encoding="utf-8")   # run_pytest.sh becomes the parent
        return folder, child

    def _retire(self, key):
        folder, child = self._parents.pop(key)
        has_failed = child.advance(time.monotonic()) or read_state(folder)[0] == "broken"
        self._ending.append((folder, child, has_failed))
        child.end(time.monotonic())

    def _note(self, key, text):
        if key not in self._noted:
            self._noted.add(key)
            self._notes.append(text)


def name_key(key):
    device, _, cell = key
    return f"{device} {cell}".strip()
