"""After a killed process or a lack of memory: wait until the device's memory is free again.

A driver holds a dead process's memory for seconds; the next operator would run out of it and be blamed. torch is
asked in a child with a deadline how much is in use (no vendor command is spawned), until less than DIRTY is or the
time is up.

Requirements: the standard library here, torch in the child. Limits: where torch cannot say, the device counts as
clean; host slots are always clean.
"""

import tempfile
import time
from pathlib import Path

from common.ask_torch import ask_used_share_command, read_used_share
from common.devices import apply_changes, child_environment
from common.process import Child

DIRTY = 0.10            # of the device's memory; a fresh context takes 1 % or less
ASK_SECONDS = 60.0      # for one answer; importing torch takes some seconds


class Settling:
    """advance() every few ms until it returns `clean` or `dirty`."""

    def __init__(self, screen, device):
        self._command = ask_used_share_command(screen.python)
        self._env = apply_changes(screen.environ, child_environment(device, screen.environ))
        self._tag = f"{screen.run_id}/settle-{device.name}"
        self._folder = tempfile.TemporaryDirectory()
        self._deadline = time.monotonic() + screen.settle
        self._number, self._child = 0, None
        self._ask()

    def advance(self, now):
        """None while it is undecided, then `clean` or `dirty`. Never blocks."""
        if now > self._asked + ASK_SECONDS:
            self._child.end(now)
        if not self._child.advance(now):
            return None
        share = read_used_share(self._log.read_text(errors="replace"))
        if share is None or share < DIRTY:
            return "clean"
        if now > self._deadline:
            return "dirty"
        self._ask()
        return None

    def close(self):
        """End the child that is asking, and wait for it."""
        self._child.kill(time.monotonic())
        while not self._child.advance(time.monotonic()):
            time.sleep(0.02)
        self._folder.cleanup()

    def _ask(self):
        self._number += 1
        self._asked = time.monotonic()
        self._log = Path(self._folder.name) / str(self._number)
        self._child = Child(self._command, tag=self._tag, env=self._env, log=self._log, grace=1.0)
