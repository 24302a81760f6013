"""The engine of ENGINE=ray: attempts are children of the actors of a cluster (ray_worker.py), which ray_hosts.py found.

A device whose actor does not answer any more is lost: its node died, its network, its memory, or it hangs (an actor answers
every second, whatever runs there). The actor is ended, so that nothing runs twice, and its operators go to other devices.

Requirements: ray.
"""

import os
import secrets
import time

from common.errors import UserError
from screen.attempts import next_number
from screen.engine import DeviceLost

LOOK_EVERY = 0.05       # seconds between two looks at a device
SILENCE_LIMIT = 60.0    # seconds without an answer; the file system of a node may hang as long as that


class RayEngine:
    """Attempts are children of the actors. See engine.LocalEngine."""

    def __init__(self, ray, screen, slots):
        self._ray, self._screen, self._slots, self._notes = ray, screen, slots, []

    def start(self, task, device):
        """A RemoteAttempt."""
        actor, own, _ = self._slots[device.name]
        attempts = self._screen.op_folder(task.row) / "attempts"
        attempts.mkdir(parents=True, exist_ok=True)
        number = next_number(attempts)
        reference = actor.start.remote(task.row, task.step, own, task.replay, number)
        return RemoteAttempt(Calls(self._ray, actor, reference, "wait"), attempts / str(number), number, self._notes)

    def settle(self, device):
        """A RemoteSettling."""
        actor, own, _ = self._slots[device.name]
        return RemoteSettling(Calls(self._ray, actor, actor.settle.remote(own), "settle", own))

    def set_cache_aside(self, device):
        """See LocalEngine."""
        actor, own, _ = self._slots[device.name]
        try:
            return self._ray.get(actor.set_cache_aside.remote(own), timeout=SILENCE_LIMIT).get("value", "gone")
        except self._ray.exceptions.RayError:       # the next attempt there finds out
            return "gone"

    def is_compiled(self, task):
        """See LocalEngine: nothing is compiled ahead."""
        return True

    def advance(self, now, waiting):
        """Nothing runs beside the attempts."""

    def take_notes(self):
        """See LocalEngine."""
        notes = list(dict.fromkeys(self._notes))
        self._notes.clear()
        return notes

    def close(self):
        """End the actors' own; one that does not answer is left to Ray."""
        waiting = [actor.close.remote() for actor, _, _ in self._slots.values()]
        self._ray.wait(waiting, num_returns=len(waiting), timeout=30)


class Calls:
    """A method of an actor that is called until its answer is not None."""

    def __init__(self, ray, actor, reference, method, *arguments):
        self.ray, self.actor, self._reference = ray, actor, reference
        self._method, self._arguments, self._next_look = method, arguments, 0.0
        self._asked = time.monotonic()
        self.was_answered = False

    def advance(self, now):
        """{} as long as there is none, then {"value": ...} or {"error": ...}; {"lost": text} if the actor is gone."""
        if now < self._next_look:
            return {}
        self._next_look = now + LOOK_EVERY
        if not self.ray.wait([self._reference], timeout=0)[0]:
            if now - self._asked < SILENCE_LIMIT:
                return {}
            self.ray.kill(self.actor)
            return {"lost": f"does not answer for {SILENCE_LIMIT:.0f} s"}
        try:
            answer = self.ray.get(self._reference)
        except self.ray.exceptions.RayTaskError:
            raise                           # a defect of ours
        except self.ray.exceptions.RayError as error:
            return {"lost": first_line(error)}
        self.was_answered = True
        if "error" not in answer and answer["value"] is None:
            self._reference, self._asked = getattr(self.actor, self._method).remote(*self._arguments), now
            return {}
        return answer


class RemoteAttempt:
    """What attempts.Running is for a child of this process."""

    def __init__(self, calls, folder, number, notes):
        self._calls, self._folder, self._notes = calls, folder, notes
        self.number, self.started, self.ended, self.stuck = number, time.monotonic(), "exit", []
        self._answer, self._is_claimed = {}, False

    def look_for_claim(self):
        """True the first time that the node has said that it began."""
        if self._is_claimed or not self._calls.was_answered:
            return False
        self._is_claimed = True
        return True

    def end(self, why, now):
        """See Running.end; the node has the last word on what came first."""
        if self.ended == "exit":
            self.ended = why
            self._calls.actor.end.remote(why)

    def kill(self, now):
        """End it at once."""
        if self.ended != "killed":
            self.ended = "killed"
            self._calls.actor.end.remote("kill")

    def advance(self, now):
        """True once it has ended, or its node is gone."""
        self._answer = self._answer or self._calls.advance(now)
        return bool(self._answer)

    def read(self):
        """See Running.read; DeviceLost if the node is gone."""
        is_stopped = self.ended in ("interrupted", "killed")
        if "value" not in self._answer:
            if is_stopped:
                return None
            if "lost" in self._answer:
                raise DeviceLost(self._answer["lost"])
            raise UserError(*self._answer["error"])
        result = self._answer["value"]
        self._notes += result["notes"]
        self.ended, self.stuck = result["ended"], result["stuck"]
        if result["files"]:
            self._write_files(result["files"])
        return None if is_stopped else result["attempt"]

    def _write_files(self, files):
        """The attempt's folder, whole or not at all."""
        temporary = self._folder.with_name(f"{self._folder.name}.{secrets.token_hex(4)}.tmp")
        for name, content in files.items():
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        os.rename(temporary, self._folder)


class RemoteSettling:
    """What settling.Settling is on this host."""

    def __init__(self, calls):
        self._calls = calls

    def advance(self, now):
        """None, clean or dirty; an actor that is gone is found out by the next attempt."""
        answer = self._calls.advance(now)
        return answer.get("value", "clean") if answer else None

    def close(self):
        """Nothing: the node closes it."""


def first_line(error):
    """What `error` says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
