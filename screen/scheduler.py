"""The slots of a screen: one operator at a time on each device, until every planned one has its outcome.

One thread and no callbacks: run() looks at each slot every POLL seconds and moves it one state further.

    idle -> running -> (ending) -> idle            an operator's attempt; see engine.py, attempts.py, process.py
                    -> settling -> idle            after a kill or a lack of memory, until the device is clean
                                -> quarantined     it never became clean, a process cannot be ended, or pytest does not start:
                                                   its operators move to the devices that live

Operators stay with their device, but for host slots and SHARD=queue: an idle one takes over from another. They are run in
their order, but for one whose kernels are still being compiled ahead. Nothing is
waited for without a look at whether it still lives. An interrupt (Ctrl-C, SIGTERM) ends the children and leaves their operators
without a marker; a second one kills.

Requirements: the standard library.
"""

import time
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from common.errors import REFUSED, UserError
from common.inputs import split_list
from common.process import KILL_LIMIT
from common.state import remove_marker, sha256_json, write_marker
from screen.engine import DeviceLost
from screen.plan import PlannedOp
from screen.retry import MEMORY, Step, decide_next
from screen.sharding import find_typical, shard

POLL = 0.02


@dataclass
class Task:
    """A planned operator on its way to an outcome. `inputs` as inputs.py lists them; `recorded`: seconds that it took before,
    if that is known; `seconds` spent so far."""
    row: PlannedOp
    inputs: dict
    replay: str = ""
    recorded: float = None
    step: Step = None
    attempts: list = field(default_factory=list)
    not_before: float = 0.0
    seconds: float = 0.0


class Slot:
    """A device, and the operators that wait for it."""

    def __init__(self, device):
        self.device, self.queue = device, deque()
        self.task, self.running, self.settling, self.is_dead = None, None, None, False

    def is_busy(self):
        return self.running is not None or self.settling is not None


class Scheduler:
    """Runs `tasks` on the devices of `screen` by `engine` (engine.py), which it closes.

    `report` is told what happens (progress.py); `stop()` gives the number of interrupts so far; `save_moves(rows)`
    is called with the planned rows whose device changed. `budget`: seconds after which no operator may end.
    """

    def __init__(self, screen, engine, tasks, report, stop, save_moves, budget=float("inf")):
        self._screen, self._report, self._stop, self._save_moves = screen, report, stop, save_moves
        self._slots = [Slot(device) for device in screen.devices]
        by_name = {slot.device.name: slot for slot in self._slots}
        for task in tasks:
            task.step = Step("run", dtypes=tuple(split_list(screen.environ.get("DTYPES"))))
            by_name[task.row.device].queue.append(task)
        self.outcomes = {}
        self._deadline = time.monotonic() + budget
        self._took = [task.recorded for task in tasks if task.recorded is not None]
        self._typical = find_typical(self._took)
        self._engine = engine

    def run(self):
        """Until all is done or stopped; self.outcomes then has the status of every operator that got one.

        Whatever is raised (a full disk, a refused environment), no child is left running.
        """
        try:
            while self._advance():
                time.sleep(POLL)
        finally:
            self._end_everything()

    def _advance(self):
        now, stops = time.monotonic(), self._stop()
        for slot in self._slots:
            if slot.settling is not None:
                self._advance_settling(slot, now, stops)
            elif slot.running is not None:
                self._advance_running(slot, now, stops)
            if not slot.is_busy() and not slot.is_dead and not stops:
                self._start_next(slot, now)
        self._engine.advance(now, () if stops else self._list_waiting())
        self._report.tick()
        waiting = not stops and any(self._fits(task, now) for slot in self._slots if not slot.is_dead for task in slot.queue)
        return waiting or any(slot.is_busy() for slot in self._slots)

    def _list_waiting(self):
        """(device, task) of what waits, one after the other: the first of each slot before the second of any."""
        queues = [((slot.device, task) for task in slot.queue) for slot in self._slots if not slot.is_dead]
        return (pair for pairs in zip_longest(*queues) for pair in pairs if pair is not None)

    def _start_next(self, slot, now):
        if not slot.queue and (slot.device.is_host or self._screen.environ["SHARD"] == "queue"):
            self._take_over(slot, now)
        ready = [task for task in slot.queue if task.not_before <= now and self._fits(task, now)]
        if not ready:
            return
        slot.task = self._choose(ready)
        slot.queue.remove(slot.task)
        slot.running = self._engine.start(slot.task, slot.device)
        self._report.started(slot.device.name, slot.task.row, slot.running.number)

    def _choose(self, ready):
        """The first; but one whose kernels are still being compiled ahead leaves the device to one that needs no compiling
        any more, unless a budget has set the order."""
        if self._deadline < float("inf"):
            return ready[0]
        return next((task for task in ready if self._engine.is_compiled(task)), ready[0])

    def _advance_running(self, slot, now, stops):
        running = slot.running
        if running.look_for_claim():    # an older outcome must not stand for this operator should we be killed from here on
            remove_marker(self._screen.op_folder(slot.task.row))
        if stops:
            running.end("interrupted", now)
        if stops > 1:
            running.kill(now)
        if now - running.started > self._screen.timeout:
            running.end("timeout", now)
        if running.advance(now):
            self._finish_attempt(slot, now)

    def _finish_attempt(self, slot, now):
        task, running = slot.task, slot.running
        slot.task = slot.running = None
        self._report.freed(slot.device.name)
        for note in self._engine.take_notes():
            self._report.note(note)
        try:
            attempt = running.read()
        except UserError as error:
            if not isinstance(error, DeviceLost) and (error.code != REFUSED or slot.device.is_host):
                raise
            slot.queue.appendleft(task)     # the device may be at fault: another one shows it
            self._quarantine(slot, str(error), is_stuck=True)
            return
        task.seconds += now - running.started
        if attempt is not None:
            task.attempts.append(attempt)
            self._follow(slot, task, attempt, now)
        if running.stuck:
            self._quarantine(slot, f"process {running.stuck[0]} of {task.row.name} cannot be ended "
                                   f"(survived KILL for {KILL_LIMIT:.0f} s)", is_stuck=True)
        elif running.ended == "timeout" or (attempt and attempt.infrastructure == MEMORY):
            if not slot.device.is_host:
                slot.settling = self._engine.settle(slot.device)

    def _follow(self, slot, task, attempt, now):
        """Finish the operator or queue its next attempt."""
        step = decide_next(task.attempts, self._screen.retries)
        if step.kind == "finish":
            if task.step.fresh_cache and attempt.status == "ok":    # so what failed before was the cache
                self._report.note(f"{task.row.name}: passed with a fresh compile cache; the torn one is now "
                                  f"{self._engine.set_cache_aside(slot.device)}")
            self._write_outcome(slot, task, step.attempt)
            return
        task.step = step
        task.not_before = now + (self._screen.pause if step.pause else 0)
        why = f"dtypes -> {','.join(step.dtypes) or 'its own'}" if step.fallback != attempt.fallback else "again"
        self._report.note(f"{task.row.name}: attempt {attempt.number} {attempt.status}: {attempt.reason}; {why}")
        target = self._other_slot(slot) if step.elsewhere else slot
        if target is not slot:
            self._move([task], target)
        else:
            slot.queue.appendleft(task)

    def _write_outcome(self, slot, task, attempt):
        write_marker(self._screen.op_folder(task.row), attempt.status, sha256_json(task.inputs), inputs=task.inputs,
                     attempt=attempt.number, fallback=attempt.fallback, reason=attempt.reason,
                     signature=attempt.signature, seconds=round(task.seconds, 1), device=slot.device.name,
                     timeout=self._screen.timeout)
        self.outcomes[task.row.key] = attempt.status
        self._took.append(task.seconds)
        self._typical = find_typical(self._took)
        self._report.ended(slot.device.name, task.row, attempt, task.seconds)

    def _advance_settling(self, slot, now, stops):
        answer = "clean" if stops else slot.settling.advance(now)
        if answer is None:
            return
        slot.settling.close()
        slot.settling = None
        if answer == "dirty":
            self._quarantine(slot, "its memory is not freed", is_stuck=False)

    def _quarantine(self, slot, why, is_stuck):
        """Take a device out and move its operators. The last one is kept if it can still be used."""
        live = [each for each in self._slots if not each.is_dead and each is not slot]
        if not live and not is_stuck:
            self._report.note(f"device {slot.device.name}: {why}; it is the last one, so it is used all the same")
            return
        slot.is_dead = True
        self._report.note(f"device {slot.device.name}: {why}; it gets no more operators")
        if not live:
            raise UserError(f"device {slot.device.name}: {why}; no device is left. Mend it and start again: what is "
                            f"complete is kept", REFUSED)
        tasks = list(slot.queue)
        slot.queue.clear()
        shares = shard("hash", [task.row.name for task in tasks], [each.device.name for each in live])
        for target in live:
            self._move([task for task in tasks if task.row.name in shares[target.device.name]], target)

    def expect(self, task):
        """Seconds that `task` is expected to take: what it took before, else the median of the others."""
        return self._typical if task.recorded is None else task.recorded

    def _fits(self, task, now):
        """True if `task` may be begun: it is expected to end within the budget. What was begun is finished."""
        return bool(task.attempts) or self._deadline == float("inf") or now + self.expect(task) <= self._deadline

    def list_left(self):
        """The tasks that were never begun."""
        return [task for slot in self._slots for task in slot.queue if not task.attempts]

    def _take_over(self, slot, now):
        """An idle slot takes the first operator of the slot that has most left to do.

        Only one that was not tried yet: what waits to be tried again may have been moved on purpose.
        """
        fullest = max(self._slots, key=lambda each: sum(map(self.expect, each.queue)))
        task = next((task for task in fullest.queue if not task.attempts and self._fits(task, now)), None)
        if task is not None:
            fullest.queue.remove(task)
            self._move([task], slot)

    def _other_slot(self, slot):
        """The live slot with the least to do other than `slot`, or `slot` if there is none."""
        others = [each for each in self._slots if each is not slot and not each.is_dead]
        return min(others, key=lambda each: len(each.queue), default=slot)

    def _move(self, tasks, target):
        for task in tasks:
            task.row = replace(task.row, device=target.device.name)
            target.queue.append(task)
        self._save_moves([task.row for task in tasks])

    def _end_everything(self):
        """After an error: TERM to all at once, so that their graces run side by side, then wait."""
        for slot in self._slots:
            if slot.settling is not None:
                slot.settling.close()
            if slot.running is not None:
                slot.running.end("interrupted", time.monotonic())
        for slot in self._slots:
            while slot.running is not None and not slot.running.advance(time.monotonic()):
                time.sleep(POLL)
        self._engine.close()
