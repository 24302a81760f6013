"""One attempt of one operator: start run_pytest.sh for it, and read what it left.

    <run>/<repo>/<op>/attempts/3/              claimed by run_pytest.sh: run.log, exit.json, tests.jsonl
    <run>/<repo>/<op>/attempts/3.driver.log    its output while it runs; afterwards 3/driver.log, where it says more
                                               than run.log does

Numbers go on after a resume; nothing is overwritten.

Requirements: the standard library.
"""

import contextlib
import errno
import os
import re
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from common.devices import Device, apply_changes, child_environment
from common.errors import REFUSED, USAGE, UserError
from common.outcome import Outcome, classify_attempt, normalize_error, unsupported_dtypes
from common.process import Child, run_bounded
from common.runlog import parse_runlog
from common.session import never_started, read_session
from common.state import utc_stamp
from common.trees import VARIABLES
from screen.results import read_pytest_exit, read_tests
from screen.retry import CACHE, Attempt, Step, name_infrastructure

LOG_TAIL = 400_000      # bytes at the end of a log that are searched for what the machine did wrong
CHECK_LIMIT = 120.0     # seconds for run_pytest.sh --check, which asks torch where it has to
MIN_FREE = 1 << 20      # bytes; with less than that no log can be trusted to be whole


@dataclass
class Running:
    """An attempt that was started. `ended` says how it ends: by itself unless the driver ends it. `is_claimed`: its run
    directory was seen; until then nothing of the operator ran."""
    child: Child
    number: int
    folder: Path
    log: Path
    cache_dir: Path
    step: Step
    device: Device
    started: float
    ended: str = "exit"
    is_claimed: bool = False

    def look_for_claim(self):
        """True the first time that the run directory is there, or was: run_pytest.sh has made it."""
        if self.is_claimed or not (self.folder.is_dir() or _read_tail(self.log).startswith("run directory: ")):
            return False
        self.is_claimed = True
        return True

    def end(self, why, now):
        """End it because of `why` (interrupted, timeout), if it does not end by itself already. Once is enough."""
        if self.ended == "exit" and not (why == "timeout" and self.child.has_exited()):
            self.ended = why
            self.child.end(now)

    def kill(self, now):
        """End it at once."""
        self.child.kill(now)

    def advance(self, now):
        """True once it has ended, with all its processes."""
        return self.child.advance(now)

    @property
    def stuck(self):
        """Its processes that cannot be ended."""
        return self.child.stuck

    def read(self):
        """Its Attempt, as read_attempt says; its logs are tidied."""
        attempt = read_attempt(self)
        tidy_logs(self.folder.parent)
        return attempt


def check_runner(screen, repo):
    """Ask run_pytest.sh --check, which makes nothing, about the knobs that only it judges. UserError if it refuses them."""
    device = screen.devices[0]
    cache = cache_folders(screen, device, None)["FLAGGEMS_CACHE_DIR"]
    env = make_environ(screen, repo, device) | {"REPLAY_FROM": "", "SHAPES": "",     # checked by run_batch.py
                                                "FLAGGEMS_CACHE_DIR": str(cache)}
    code, output = run_bounded([screen.run_pytest, "--check"], env=env, timeout=CHECK_LIMIT)
    if code != 0:
        last = (output.strip().splitlines() or [f"{screen.run_pytest} --check: exit status {code}"])[-1]
        raise UserError(last.removeprefix("run_pytest.sh: error: "), USAGE if code == USAGE else REFUSED)


def start_attempt(screen, row, step, device, replay="", warm=None, number=None):
    """Start run_pytest.sh for the planned `row` on `device`; `screen` as run_batch.py makes it, `warm` its Pool, `number` of
    the attempt where the next one is not to be looked for."""
    attempts = screen.op_folder(row) / "attempts"
    attempts.mkdir(parents=True, exist_ok=True)
    number = number or next_number(attempts)
    folder, log = attempts / str(number), attempts / f"{number}.driver.log"
    caches = cache_folders(screen, device, folder if step.fresh_cache else None)
    env = make_environ(screen, row.repo, device) | {
        "RUN_DIR": str(folder), "ATTEMPT": str(number), "FALLBACK": step.fallback, "DTYPES": ",".join(step.dtypes),
        "REPLAY_FROM": replay, "SHAPES": screen.shapes.get(row.repo, ""), "CHECK_SHAPES": "0",
        **{name: str(path) for name, path in caches.items()}}
    arguments = [row.op, *row.nodes]
    if warm is not None:
        env |= warm.offer(device, row.repo, arguments, env)
    child = Child([screen.run_pytest, *arguments], tag=f"{screen.run_id}/{row.name}/{number}", env=env,
                  log=log, grace=screen.grace)
    return Running(child, number, folder, log, caches["TRITON_CACHE_DIR"], step, device, time.monotonic())


def read_attempt(running):
    """The Attempt that an ended `running` was. None if the driver interrupted it: that is no outcome.

    UserError if run_pytest.sh refused what it was asked or pytest could not be started, OSError ENOSPC if the disk ran
    full: neither says anything about the operator, and the next one would meet the same.
    """
    if running.ended == "interrupted":
        return None
    step = running.step
    if not running.folder.is_dir():
        return _read_without_folder(running)
    text = _read_tail(running.folder / "run.log") + _read_tail(running.log)
    tests = read_tests(running.folder / "tests.jsonl")
    if running.ended == "exit" and running.child.returncode == REFUSED and read_pytest_exit(running.folder) is None:
        raise UserError(_read_last_line(running), REFUSED)      # run.log cannot be written
    outcome = _classify(running, tests)
    if outcome.status in ("ok", "skipped", "not_found", "timeout"):
        return Attempt(running.number, outcome.status, outcome.signature, outcome.reason, step.dtypes, step.fallback)
    # pytest that was interrupted, but not by us: someone killed it.
    status = "crashed" if outcome.status == "interrupted" else outcome.status
    infrastructure = name_infrastructure(text, running.cache_dir)
    if infrastructure == CACHE and step.fresh_cache:    # it fails with an empty one, too
        infrastructure = ""
    _check_disk(running.folder)
    if outcome.status == "failed" and not infrastructure and _is_unstarted(running.folder):
        raise UserError(f"{running.folder / 'run.log'}: {outcome.reason}; no operator can be run like this: mend it (`make "
                        "doctor` says what this machine has) and start the same command again", REFUSED)
    refused = tuple(name for name in unsupported_dtypes(tests) if name in step.dtypes)
    reason = f"{infrastructure}: {outcome.reason}" if infrastructure else outcome.reason
    return Attempt(running.number, status, outcome.signature, reason, step.dtypes, step.fallback, refused, infrastructure)


def tidy_logs(attempts):
    """Move each N.driver.log of the folder `attempts` to N/driver.log; drop one that says no more than run.log."""
    for log in attempts.glob("*.driver.log"):
        folder = attempts / log.name.partition(".")[0]
        lines = log.read_bytes().splitlines(keepends=True)
        told = [line for line in lines if not line.startswith(b"run directory: ")]
        run_log = folder / "run.log"
        if run_log.is_file() and run_log.read_bytes() == b"".join(told):
            log.unlink()
        else:
            folder.mkdir(exist_ok=True)
            os.replace(log, folder / "driver.log")


def set_cache_aside(screen, device):
    """Rename the compile cache of `device`, in which a file is torn, so that a new one begins; its new name."""
    path = cache_folders(screen, device, None)["TRITON_CACHE_DIR"]
    aside = path.with_name(f"{path.name}.torn-{utc_stamp()}")
    with contextlib.suppress(FileNotFoundError):
        os.replace(path, aside)
    return aside


def next_number(attempts):
    """The number of the next attempt in the folder `attempts`."""
    taken = [int(match[0]) for path in attempts.iterdir() if (match := re.match(r"\d+", path.name))]
    return max(taken, default=0) + 1


def make_environ(screen, repo, device):
    """What every call of run_pytest.sh for `repo` on `device` has in its environment."""
    env = apply_changes(screen.environ, child_environment(device, screen.environ, len(screen.devices)))
    env |= {"REPO": repo, "DEVICE": device.name, "DEVICES": device.name, "PYTHON": screen.python}
    return env | ({VARIABLES[repo]: str(screen.trees[repo])} if repo in VARIABLES else {})


def cache_folders(screen, device, fresh):
    """Compile and tuner cache of one device. Shared ones race between processes, and a tuner's choice holds for the
    card that it was made on; `fresh` is the attempt's folder if its compile cache is to be a new one."""
    label = re.sub(r"[^\w.-]", "_", f"{device.vendor}-{device.name}{screen.place}")
    triton = Path(screen.environ.get("TRITON_CACHE_DIR") or screen.caches / "triton") / label
    tuner = Path(screen.environ.get("FLAGGEMS_CACHE_DIR") or screen.caches / "flaggems") / label
    return {"TRITON_CACHE_DIR": fresh / "triton-cache" if fresh else triton, "FLAGGEMS_CACHE_DIR": tuner}


def _read_without_folder(running):
    """An attempt that left no run directory: its tests removed it, or run_pytest.sh ended before it claimed it."""
    code, step = running.child.returncode, running.step
    running.look_for_claim()
    if running.is_claimed:
        what = "its run directory is gone: something that ran in it removed it"
        return Attempt(running.number, "crashed", what, what, step.dtypes, step.fallback)
    what = _read_last_line(running)
    if running.ended == "exit" and 0 <= code <= 128:
        raise UserError(what, USAGE if code == USAGE else REFUSED)
    status = "timeout" if running.ended == "timeout" else "crashed"
    reason = f"{what} (run_pytest.sh ended with {code} before pytest started)"
    return Attempt(running.number, status, normalize_error(what), reason, step.dtypes, step.fallback)


def _read_last_line(running):
    """What run_pytest.sh said last."""
    lines = _read_tail(running.log).strip().splitlines() or [f"run_pytest.sh: exit status {running.child.returncode}"]
    return lines[-1].removeprefix("run_pytest.sh: error: ")


def _is_unstarted(folder):
    run_log = folder / "run.log"
    return run_log.is_file() and never_started(parse_runlog(run_log), read_session(folder))


def _classify(running, tests):
    """The Outcome of an attempt. A log that our own reader stumbles over costs this operator, not the whole screen."""
    run_log = running.folder / "run.log"
    try:
        return classify_attempt(ended=running.ended, returncode=running.child.returncode, tests=tests,
                                pytest_exit=read_pytest_exit(running.folder),
                                session=read_session(running.folder),
                                log=parse_runlog(run_log if run_log.is_file() else ""))
    except UserError as error:
        return Outcome("failed", str(error), "run.log cannot be read")
    except (LookupError, TypeError, ValueError, AttributeError, NameError) as error:
        with open(running.log, "a", encoding="utf-8") as stream:
            traceback.print_exc(file=stream)
        what = f"gemscreen: {run_log} cannot be understood, see driver.log beside it: {type(error).__name__}: {error}"
        return Outcome("failed", what, normalize_error(what))


def _read_tail(path):
    if not path.is_file():
        return ""
    with open(path, "rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - LOG_TAIL))
        return stream.read().decode("utf-8", errors="replace")


def _check_disk(folder):
    """OSError ENOSPC if the screen's own disk is full. What a log says of no space may be another disk, or made up."""
    free = os.statvfs(folder)
    if free.f_bavail * free.f_frsize < MIN_FREE:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))
