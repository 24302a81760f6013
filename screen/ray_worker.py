"""One device of a node of a Ray cluster: an actor that runs attempts there as LocalEngine does here (engine.py).

Every method returns {"value": ...}, or {"error": (text, exit code)} for what a user can mend. Those that take long return
None as long as they are not through, and are called again; so the driver can stop them, and nothing here has a thread: a
child ends with the thread that started it.

The run's directory is used as it is where this node sees it; else the attempts go to a folder of this node's and back to
the driver as bytes, and the compile and tuner caches lie in ~/.cache/gemscreen. The driver's environment holds but for what
belongs to a machine (OWN).

Requirements: gemscreen at the same path as the driver's. No import of ray.
"""

import functools
import os
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from common import inputs
from common.ask_torch import ask_arch
from common.device_lock import name_held, take_devices
from common.devices import ALL_VARIABLES, HOST, Device, apply_changes, child_environment, select_devices
from common.errors import REFUSED, UserError, describe_os_error
from common.process import end_tagged
from common.state import sha256_tree
from common.trees import ROOT
from screen.attempts import check_runner, set_cache_aside, start_attempt
from screen.settling import Settling
from warm.pool import make_pool

OWN = ("PATH", "HOME", "USER", "LOGNAME", "HOSTNAME", "TMPDIR", "PWD", "OLDPWD", "LD_LIBRARY_PATH", *ALL_VARIABLES)
POLL = 0.02
PATIENCE = 1.0      # seconds of one call: so long a stop may have to wait


def answers(method):
    """`method` with its answer in a dict; see the top of this file."""
    @functools.wraps(method)
    def call(*arguments):
        try:
            return {"value": method(*arguments)}
        except UserError as error:
            return {"error": (str(error), error.code)}
        except OSError as error:
            return {"error": (describe_os_error(error) or str(error), REFUSED)}
    return call


def describe_sources():
    """Digest of what of gemscreen runs on a node."""
    paths = [path for folder in ("common", "screen", "warm") for path in (ROOT / folder).rglob("*.py")]
    return sha256_tree(ROOT, [path.relative_to(ROOT).as_posix() for path in paths])


def strip_times(versions):
    """`versions` without the times of files, which differ between two installations of the same."""
    return {name: value if isinstance(value, str) else value[:2] for name, value in versions.items()}


def _drop_own(environ):
    return {name: value for name, value in environ.items() if name not in OWN and not name.startswith("RAY_")}


class Worker:
    """See the top of this file. `node`: its name; `number` of the device among those of the node; `has_card`: Ray chose the
    card, and shows it in the vendor's variable."""

    def __init__(self, node, number, has_card):
        self._node, self._number, self._has_card = node, number, has_card
        self._locks, self._running, self._settling, self._pool = [], None, None, None
        self._is_shared, self._scratch = True, None

    @answers
    def join(self, environ, python):
        """This worker's Device, named as on this node; None if the node has fewer devices than Ray says. {} for what follows."""
        os.environ["FLAGGEMS_COMMIT"] = environ.get("FLAGGEMS_COMMIT", "")     # inputs.describe_tree asks for it
        own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self._environ = {**own, **_drop_own(environ)}
        if not self._has_card:
            self._environ = apply_changes(self._environ, dict.fromkeys(ALL_VARIABLES))
        self._python = shutil.which(python)
        if self._python is None:
            raise UserError(f"PYTHON: {python}: is not there; gemscreen and its .venv have to be at the same path on every node",
                            REFUSED)
        if self._environ.get("HOST_TARGET") and not self._environ.get("DEVICES"):
            return Device(f"host:{self._number}", HOST)
        found = select_devices(self._environ, self._python)
        if self._has_card:
            return found[0]
        if found[0].is_host and not self._environ.get("DEVICES"):
            return Device(f"host:{self._number}", HOST)
        return found[self._number] if self._number < len(found) else None

    @answers
    def describe(self, trees, run_pytest):
        """What has to be the same on every node: {what: value}."""
        facts = {"gemscreen": describe_sources(), "run_pytest.sh and plugins": inputs.digest_runner(run_pytest)}
        facts |= strip_times(inputs.read_versions(self._python, self._environ))
        return facts | {f"{repo} at {tree}": inputs.describe_tree(tree) for repo, tree in trees.items()}

    @answers
    def ask_arch(self, device):
        """The architecture of the device."""
        return ask_arch(self._python, apply_changes(self._environ, child_environment(device, self._environ)))

    @answers
    def check(self, screen, repo):
        """UserError if run_pytest.sh refuses a knob."""
        check_runner(replace(screen, environ={**self._environ, **_drop_own(screen.environ)}, host=self._node), repo)

    @answers
    def hold(self, device, run):
        """Keep others off the device as long as this process lives."""
        self._locks += list(take_devices([device], self._environ, run))
        self._environ |= name_held([device], self._environ)

    @answers
    def end_leftovers(self, run_id, grace):
        """End what a killed driver of this screen left here: {pid: command}."""
        return end_tagged(run_id, grace)

    @answers
    def open(self, screen, token, shapes):
        """Begin with `screen` (its devices those of this node, under their names here). `token`: (path, text) of a file that
        lies in the run's directory; `shapes`: {repo: (name, content)} of its shape files. True if that directory is seen here."""
        self._is_shared = token[0].is_file() and token[0].read_text(encoding="utf-8") == token[1]
        screen = replace(screen, environ={**self._environ, **_drop_own(screen.environ)}, python=self._python, host=self._node)
        self._scratch = Path(tempfile.mkdtemp(prefix="gemscreen-ray-"))
        if not self._is_shared:
            for name, content in shapes.values():
                (self._scratch / name).write_text(content, encoding="utf-8")
            shapes = {repo: str(self._scratch / name) for repo, (name, _) in shapes.items()}
            screen = replace(screen, run=self._scratch / "run", runs=Path.home() / ".cache" / "gemscreen", shapes=shapes)
        self._screen = screen
        self._pool = make_pool(screen.environ, self._scratch, screen.run_id, screen.run_pytest, screen.grace)
        return self._is_shared

    @answers
    def start(self, row, step, device, replay, number):
        """Start attempt `number` of the planned `row`."""
        if replay and not Path(replay).exists():
            raise UserError(f"REPLAY_ROOT: {replay}: node {self._node} does not see it; a replay needs it on a shared disk",
                            REFUSED)
        self._running = start_attempt(self._screen, row, step, device, replay, self._pool, number)

    @answers
    def wait(self):
        """None as long as the attempt runs, then {attempt, ended, stuck, notes, files}. See Running.read for its errors."""
        end, running = time.monotonic() + PATIENCE, self._running
        while not running.advance(time.monotonic()):
            if time.monotonic() > end:
                return None
            time.sleep(POLL)
        self._running = None
        attempt = running.read()
        notes = [f"{self._node}: {note}" for note in self._pool.take_notes()] if self._pool else []
        return {"attempt": attempt, "ended": running.ended, "stuck": running.stuck, "notes": notes,
                "files": None if self._is_shared else self._take_files(running.folder)}

    @answers
    def end(self, why):
        """End the attempt because of `why`; `kill`: at once."""
        if self._running is not None and why == "kill":
            self._running.kill(time.monotonic())
        elif self._running is not None:
            self._running.end(why, time.monotonic())

    @answers
    def settle(self, device):
        """None as long as it is not known whether the device's memory is free, then clean or dirty."""
        end = time.monotonic() + PATIENCE
        self._settling = self._settling or Settling(self._screen, device)
        while (answer := self._settling.advance(time.monotonic())) is None and time.monotonic() < end:
            time.sleep(POLL)
        if answer is not None:
            self._settling.close()
            self._settling = None
        return answer

    @answers
    def set_cache_aside(self, device):
        """Where the torn compile cache is now."""
        return f"{self._node}:{set_cache_aside(self._screen, device)}"

    @answers
    def close(self):
        """End what is left."""
        for each in (self._settling, self._pool):
            if each is not None:
                each.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _take_files(self, folder):
        """{path in the attempt's folder: content}; the folder is removed."""
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*"))
                 if path.is_file() and not path.is_symlink()}
        shutil.rmtree(folder, ignore_errors=True)
        return files
