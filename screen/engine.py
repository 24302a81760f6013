"""Where a screen's operators run: the hosts, seen by run_batch.py, and an engine, seen by the scheduler.

    hosts = LocalHost()                         ENGINE=local: this host; or ray_hosts.py's, the nodes of a Ray cluster
    hosts.find_devices(environ, python)         [Device, ...]
    with hosts.hold(devices, environ, run) as held: ...
    engine = hosts.open(screen, say)
    running = engine.start(task, device)        attempts.py's Running, or what stands for one that runs elsewhere
    engine.close()

Requirements: the standard library; ray where it is asked for.
"""

from common.ask_torch import ask_arch
from common.device_lock import hold_devices
from common.devices import apply_changes, child_environment, select_devices
from common.errors import REFUSED, UserError
from screen.ahead import start_ahead
from screen.attempts import check_runner, set_cache_aside, start_attempt
from screen.settling import Settling
from warm.pool import make_pool


class DeviceLost(UserError):
    """A device, or the host that has it, is gone: its operator did nothing wrong and runs again elsewhere."""

    def __init__(self, message):
        super().__init__(message, REFUSED)


class LocalHost:
    """This host."""

    def find_devices(self, environ, python):
        """The devices that may be used, in the caller's order."""
        return select_devices(environ, python)

    def ask_arch(self, device, environ, python):
        """The architecture of `device`, None if it does not say."""
        return ask_arch(python, apply_changes(environ, child_environment(device, environ)))

    def check(self, screen, repo):
        """UserError unless the hosts can run `screen`."""
        check_runner(screen, repo)

    def hold(self, devices, environ, run):
        """A context that keeps others off `devices`; gives the variables that tell children so."""
        return hold_devices(devices, environ, run)

    def open(self, screen, say):
        """The engine for `screen`, whose directory is made."""
        return LocalEngine(screen, say)

    def close(self):
        """Let the hosts go."""


class LocalEngine:
    """Attempts are children of this process."""

    def __init__(self, screen, say):
        self._screen, self._ahead = screen, start_ahead(screen, say)
        self._pool = make_pool(screen.environ, screen.run, screen.run_id, screen.run_pytest, screen.grace)

    def start(self, task, device):
        """The Running of the next attempt of `task`."""
        return start_attempt(self._screen, task.row, task.step, device, task.replay, self._pool)

    def settle(self, device):
        """A Settling."""
        return Settling(self._screen, device)

    def set_cache_aside(self, device):
        """Where the torn compile cache of `device` is now."""
        return set_cache_aside(self._screen, device)

    def is_compiled(self, task):
        """False while COMPILE_AHEAD still has something to do for `task`."""
        return self._ahead is None or self._ahead.is_through(task)

    def advance(self, now, waiting):
        """Go on with what runs beside the attempts; `waiting` as Ahead.advance takes it, empty if nothing is to begin."""
        if self._ahead is not None:
            self._ahead.advance(now, waiting)

    def take_notes(self):
        """What a user should know, each once."""
        return [note for each in (self._ahead, self._pool) if each is not None for note in each.take_notes()]

    def close(self):
        """End what is left. Blocks."""
        for each in (self._ahead, self._pool):
            if each is not None:
                each.close()
