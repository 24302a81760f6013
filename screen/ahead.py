"""Compile-ahead (COMPILE_AHEAD=n): while operators are measured, n cores compile the kernels of the next ones.

A pass on the host device in HOST_MODE=compile (plugins/_compile_ahead_plugin.py) writes the cubins into the compile cache
of the device that the operator waits for. Their keys are those of the measuring process: Triton's key has the target,
the options, the kernel's source, and no device; the host device's target is the card's. Nothing is launched, and no
memory of the card is used.

The passes have cores of their own: this driver, and with it every measuring process, is pinned to the others. With fewer
than MIN_CORES cores, or none left for a device, there is no compiling ahead, and that is said. A pass that fails or takes
longer than PASS_LIMIT costs nothing but its own time: the operator then compiles as ever. Why the first one failed is said.
An operator whose pass has not ended lets those come first whose pass has (scheduler.py): both would compile the same meanwhile.

Requirements: the standard library; Linux.
"""

import os
import shutil
import time
from dataclasses import replace

from common.ask_torch import ask_arch
from common.devices import HOST, Device, apply_changes, child_environment
from common.process import Child
from common.runlog import parse_runlog
from screen.attempts import cache_folders, make_environ
from warm.pool import make_pool

MIN_CORES = 4
PER_DEVICE = 2          # cores that a measuring process keeps for itself: it launches, and a thread of the driver polls
PASS_LIMIT = 900.0      # seconds
TARGETS = {"9.0": "cuda:90", "8.0": "cuda:80"}      # what the host device can stand for
PLUGINS = "_device_guard_plugin _seed_plugin _kernel_key_plugin _host_device_plugin _rlc_switch_plugin _compile_ahead_plugin"
NO_KNOBS = ("TIMER", "CACHE", "WARMUP_MS", "ITER_MS", "REPLAY_FROM", "REPLAY_STRICT", "PARALLEL_WARMUP_GPUS", "GEMS_VENDOR",
            "IR_META")  # a card's
PIN = """import os, sys
os.sched_setaffinity(0, map(int, sys.argv[1].split(",")))
os.nice(10)
os.execv(sys.argv[2], sys.argv[2:])"""


def start_ahead(screen, say):
    """An Ahead for `screen`, or None where COMPILE_AHEAD is 0 or cannot be; the latter is said."""
    count = int(screen.environ.get("COMPILE_AHEAD") or 0)
    if count == 0 or screen.environ.get("RUN_PYTEST"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < MIN_CORES or len(cores) - count < PER_DEVICE * len(screen.devices):
        say(f"compile-ahead: off: {len(cores)} cores; {count} to compile and {PER_DEVICE} for each of "
            f"{len(screen.devices)} devices are needed, {MIN_CORES} at least")
        return None
    target = find_target(screen)
    if target is None:
        say(f"compile-ahead: off: the host device cannot stand for this one; it can for {', '.join(TARGETS.values())}")
        return None
    return Ahead(screen, cores[-count:], cores[:-count], target)


def find_target(screen):
    """The HOST_TARGET of the screen's devices, or None."""
    device = screen.devices[0]
    shown = child_environment(device, screen.environ)
    if device.is_host:
        return shown["HOST_TARGET"]
    if device.vendor != "nvidia":
        return None
    return TARGETS.get(device.arch or ask_arch(screen.python, apply_changes(screen.environ, shown)))


class Ahead:
    """The passes of one screen. Nothing here blocks but close()."""

    def __init__(self, screen, cores, others, target):
        self._screen, self._target, self._folder = screen, target, screen.run / ".ahead"
        self._count, self._seen, self._running = len(cores), set(), {}     # names; of those that run (pass, when it began)
        self._notes, self._has_failed = [], False
        self._locks = self._folder / "cores"
        self._locks.mkdir(parents=True, exist_ok=True)
        for core in cores:
            (self._locks / str(core)).touch()
        self._pin = [screen.python, "-I", "-S", "-c", PIN, ",".join(map(str, cores))]
        self._pool = make_pool(screen.environ, screen.run, screen.run_id, screen.run_pytest, screen.grace, prefix=self._pin)
        os.sched_setaffinity(0, others)

    def advance(self, now, waiting):
        """Go on; `waiting` are (device, task) in the order in which they will be measured."""
        for name, (child, started) in list(self._running.items()):
            if now - started > PASS_LIMIT:
                child.end(now)
            if child.advance(now):
                del self._running[name]
                self._look_at(name, child)
        for device, task in waiting if len(self._running) < self._count else ():
            if len(self._running) >= self._count:
                return
            if task.row.name not in self._seen:
                self._seen.add(task.row.name)
                self._running[task.row.name] = self._start(device, task), now

    def is_through(self, task):
        """True if the pass of `task` has ended, however."""
        return task.row.name in self._seen and task.row.name not in self._running

    def take_notes(self):
        """The lines since the last call."""
        notes, self._notes = self._notes, []
        return [*notes, *(f"compile-ahead: {note}" for note in (self._pool.take_notes() if self._pool else ()))]

    def close(self):
        """End every pass, and what belongs to them."""
        for child, _ in self._running.values():
            child.kill(time.monotonic())
        for child, _ in self._running.values():
            while not child.advance(time.monotonic()):
                time.sleep(0.02)
        if self._pool is not None:
            self._pool.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _look_at(self, name, child):
        """Say of the first pass that failed what went wrong: if all of them do, nothing is compiled ahead."""
        if child.returncode == 0 or self._has_failed:
            return
        self._has_failed = True
        errors = parse_runlog(self._folder / f"{name}.log").errors or ["it does not say why"]
        self._notes.append(f"compile-ahead: {name}: its pass ended with exit status {child.returncode} "
                           f"({errors[-1][:200].strip()}); what it did not compile, the operator will; said once")

    def _start(self, device, task):
        row, host = task.row, Device("host:ahead", HOST)
        folder = self._folder / row.repo / row.op
        folder.parent.mkdir(parents=True, exist_ok=True)
        env = self._describe(host, device, task, folder)
        arguments = [row.op, *row.nodes]
        if self._pool is not None:
            env |= self._pool.offer(host, row.repo, arguments, env)
        return Child([*self._pin, self._screen.run_pytest, *arguments], tag=f"{self._screen.run_id}/ahead/{row.name}", env=env,
                     log=f"{folder}.log", grace=self._screen.grace)

    def _describe(self, host, device, task, folder):
        """The environment of a pass: that of an operator on the host device, with the compile cache of `device`."""
        screen, row = self._screen, task.row
        stands_for = {**screen.environ, "HOST_TARGET": self._target, "OMP_NUM_THREADS": "1"}
        return make_environ(replace(screen, environ=stands_for), row.repo, host) | dict.fromkeys(NO_KNOBS, "") | {
            "HOST_ANY_VERSION": "1",     # the list is of versions whose kernels are executed right: nothing is executed
            "RUN_DIR": str(folder), "COMPILE_LOCKS": str(self._locks), "DTYPES": ",".join(task.step.dtypes),
            "SHAPES": screen.shapes.get(row.repo, ""), "CHECK_SHAPES": "0", "HOST_MODE": "compile", "COMPILE_PASS": "1",
            "PLUGINS": PLUGINS, "TUNER_CACHE": "shared",
            "PYTEST_EXTRA": f"{screen.environ.get('PYTEST_EXTRA', '')} --metrics=latency",
            "TRITON_CACHE_DIR": str(cache_folders(screen, device, None)["TRITON_CACHE_DIR"]),
            "FLAGGEMS_CACHE_DIR": str(screen.caches / "flaggems" / "ahead")}
