"""shards.py - the children of the parallel warm-up, one per device, and their end.

    RUN_DIR/warmup/0/output.log, autotune.json, flaggems/       shard 0, and the tuner's database that it alone writes
    RUN_DIR/warmup/autotune.json                                the merged record, which the serial run replays

A child is this very pytest with the same arguments. It is told its device in the variables that the caller's selection
gave, and its shard in PARALLEL_WARMUP_SHARD. The kernel ends it should this process be killed.
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

GRACE_SECONDS = 10
POLL_SECONDS = 0.1
SWEEP = re.compile(r"^PARALLEL_WARMUP_SHARD .*\bsweep=([\d.]+)$", re.M)

# Starts pytest so that the kernel ends it with its parent (1 is PR_SET_PDEATHSIG).
LAUNCH = """import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *sys.argv[2:]])"""


@dataclass
class Child:
    """One shard: its number, the device as the caller wrote it, its folder and its process."""

    number: int
    device: str
    folder: Path
    process: subprocess.Popen

    def read_sweep(self):
        """Seconds from its first test to its last, or None if it did not get there."""
        match = SWEEP.search((self.folder / "output.log").read_text(encoding="utf-8", errors="replace"))
        return float(match[1]) if match else None


def start_children(devices, folder, arguments, environ):
    """One Child per device of `devices` [{"device": name, "environ": {variable: value or None}}]; all ended if one fails."""
    children = []
    try:
        for number, device in enumerate(devices):
            children.append(start_child(number, len(devices), device, folder / str(number), arguments, environ))
    except BaseException:
        end_children(children)
        raise
    return children


def make_absolute(argument):
    """A relative path or node id as one that holds in the child's working directory."""
    path = argument.partition("::")[0]
    return str(Path(argument).resolve()) if not argument.startswith("-") and Path(path).exists() else argument


def start_child(number, count, device, folder, arguments, environ):
    folder.mkdir(parents=True)
    arguments = [make_absolute(str(argument)) for argument in arguments]
    environ = {**environ, "PARALLEL_WARMUP_SHARD": f"{number}/{count}", "RUN_DIR": str(folder), **own_database(folder, environ)}
    environ.pop("PARALLEL_WARMUP_GPUS", None)
    for name, value in device["environ"].items():
        if value is None:
            environ.pop(name, None)
        else:
            environ[name] = value
    with open(folder / "output.log", "wb") as log:
        process = subprocess.Popen([sys.executable, "-c", LAUNCH, str(os.getpid()), *arguments], env=environ, cwd=folder,
                                   stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    return Child(number, device["device"], folder, process)


def own_database(folder, environ):
    """Variables that give a child its own copy of the tuner's database: SQLite has one writer, and no patience here."""
    cache, url = folder / "flaggems", environ.get("FLAGGEMS_DB_URL", "")
    cache.mkdir()
    variables = {"FLAGGEMS_CACHE_DIR": str(cache)}
    if url.startswith("sqlite:///"):
        path = Path(url.removeprefix("sqlite:///"))
        if path.is_file():
            shutil.copy(path, cache / "tuned.db")
        return {**variables, "FLAGGEMS_DB_URL": f"sqlite:///{cache / 'tuned.db'}"}
    source = Path(environ.get("FLAGGEMS_CACHE_DIR") or Path.home() / ".flaggems")
    for path in source.glob("config_cache/*.db"):
        (cache / "config_cache").mkdir(exist_ok=True)
        shutil.copy(path, cache / "config_cache" / path.name)
    return variables


def wait_for_children(children, report):
    """Wait until all have ended; end the rest first if this is interrupted in any way. Their exit statuses, in order."""
    previous = signal.signal(signal.SIGTERM, interrupt) if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL else None
    try:
        waiting = list(children)
        while waiting:
            for child in [c for c in waiting if c.process.poll() is not None]:
                waiting.remove(child)
                report(child)
            time.sleep(POLL_SECONDS)
    except BaseException:
        end_children(children)
        raise
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)
    return [child.process.returncode for child in children]


def interrupt(number, frame):
    raise KeyboardInterrupt(signal.Signals(number).name)


def end_children(children):
    """TERM, a grace, KILL; every child is reaped when this returns, whatever arrives meanwhile; one that hangs in the driver,
    which no signal reaches, is named."""
    for child in children:
        if child.process.poll() is None:
            child.process.terminate()
    end = time.monotonic() + GRACE_SECONDS
    for child in children:
        try:
            child.process.wait(max(0.0, end - time.monotonic()))
        except BaseException:  # noqa: BLE001 - its grace is over, or a second Ctrl-C: either way, now
            child.process.kill()
            try:
                child.process.wait(GRACE_SECONDS)
            except BaseException:  # noqa: BLE001 - the rest must be ended, too
                print(f"_parallel_warmup_plugin: shard {child.number} (device {child.device}), process {child.process.pid}, "
                      "does not end: it hangs in the driver", file=sys.stderr, flush=True)
