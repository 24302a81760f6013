"""Child processes that leave nothing behind: sessions, tags, TERM -> grace -> KILL, sweeps.

Every command starts in a session of its own with GEMSCREEN_TAG=<run id>/<...> in its environment. Its
descendants inherit both: who leaves the session (setsid) still carries the tag, so that /proc/*/environ
finds it. That holds after the driver was killed too: the next driver knows the run id from the screen's files.

    child = Child(["./run_pytest.sh", "abs"], tag="0f3a.../main/abs/1", env=env, log="driver.log")
    while not child.advance(time.monotonic()):      # call it every few ms; it never blocks
        if too_late: child.end(time.monotonic())
    child.returncode, child.ended_pids, child.stuck

Requirements: Linux, the standard library. Limits: a descendant that left the session and emptied its own
environment escapes; one in uninterruptible sleep cannot be ended: it is given up and named in `stuck`.
"""

import contextlib
import ctypes
import errno
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

TAG = "GEMSCREEN_TAG"
KILL_LIMIT = 20.0       # seconds that a KILLed process may take to go; the kernel tears down its device memory
_SCAN_EVERY = 0.1       # seconds between two scans of /proc while waiting for processes to go
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class Child:
    """One command in its own session.

    `log` is the file that takes stdout and stderr (appended). `env` is the whole environment. `returncode` is
    as subprocess has it (-9 is SIGKILL), None until advance() returned True. `ended_pids` are those that had to
    be signalled after the command itself had ended or been told to; `stuck` those that survived KILL.
    """

    def __init__(self, command, *, tag, env, log, cwd=None, grace=10.0):
        self.tag, self.grace = tag, grace
        self.returncode, self.ended_pids, self.stuck = None, set(), []
        self._signalled, self._deadline, self._next_scan, self._is_done = None, None, 0.0, False
        with open(log, "ab") as stream:
            self._popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, cwd=cwd,
                env={**env, TAG: tag}, start_new_session=True, preexec_fn=_die_with(os.getpid()))
        self.pid = self._popen.pid

    def end(self, now):
        """Ask all of it to go (TERM). After `grace` seconds of advance() calls the rest is KILLed."""
        if self._signalled is None and not self._is_done:
            self._signal_all(signal.SIGTERM, now + self.grace)

    def kill(self, now):
        """KILL all of it, now."""
        if self._signalled != signal.SIGKILL and not self._is_done:
            self._signal_all(signal.SIGKILL, now + KILL_LIMIT)

    def advance(self, now):
        """True once the command and every descendant are gone (or given up); then it is reaped."""
        if self._is_done:
            return True
        if not self.has_exited() and (self._deadline is None or now < self._deadline):
            return False
        if now < self._next_scan:
            return False
        self._next_scan = now + _SCAN_EVERY
        alive = find_members(self.pid, self.tag)
        if not alive and self.has_exited():
            self.returncode, self._is_done = self._popen.wait(), True
            return True
        if self._signalled is None:                 # the command ended and left some behind
            self._signal_all(signal.SIGTERM, now + self.grace, alive)
        elif self._signalled == signal.SIGTERM and now >= self._deadline:
            self._signal_all(signal.SIGKILL, now + KILL_LIMIT, alive)
        elif self._signalled == signal.SIGKILL and now >= self._deadline:
            self.stuck = sorted(alive)
            self.returncode, self._is_done = self._popen.poll(), True
            return True
        elif self._signalled == signal.SIGKILL:     # a fork that raced with the last KILL
            _signal_pids(alive, signal.SIGKILL)
        return False

    def has_exited(self):
        """True if the command itself ended. It stays a zombie, so that its group's number cannot be reused."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def _signal_all(self, number, deadline, alive=None):
        alive = find_members(self.pid, self.tag) if alive is None else alive
        self._signalled, self._deadline = number, deadline
        self.ended_pids |= alive
        try:
            os.killpg(self.pid, number)             # safe: the leader is not reaped yet, its number not reused
        except (ProcessLookupError, PermissionError):
            pass                                    # only zombies are left in it
        # Each once: a second TERM would meet a Python that is already on its way out, without its handler.
        _signal_pids([pid for pid in alive if _group_of(pid) != self.pid], number)


def run_bounded(command, *, env, timeout):
    """Run `command` for at most `timeout` seconds; return (returncode or None if it was too slow, its output).

    A process that cannot be killed (a vendor tool in D state) is abandoned, never waited for: subprocess.run's
    timeout would wait for it forever.
    """
    with start_bounded(command, env=env, timeout=timeout) as wait:
        return wait()


@contextlib.contextmanager
def start_bounded(command, *, env, timeout):
    """A context in which `command` runs beside the caller; gives the function that waits for it and returns what run_bounded
    returns. One that is not waited for is KILLed at the end."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "output"
        child = Child(command, tag=f"probe-{os.getpid()}/{time.monotonic_ns()}", env=env, log=log, grace=1.0)
        start = time.monotonic()

        def wait():
            too_slow = False
            while not child.advance(time.monotonic()):
                if time.monotonic() - start > timeout and not too_slow:
                    too_slow = True
                    child.end(time.monotonic())
                if time.monotonic() - start > timeout + 5:
                    break
                time.sleep(0.01)
            return None if too_slow else child.returncode, log.read_text(errors="replace")
        try:
            yield wait
        finally:
            if child.returncode is None:
                child.kill(time.monotonic())


def end_tagged(run_id, grace=5.0):
    """End whatever an earlier, killed driver of the run `run_id` left; return {pid: command} of those ended.

    Blocks until they are gone. One that survives KILL for KILL_LIMIT seconds is in the answer all the same.
    """
    seen = {}
    deadline, number = time.monotonic() + grace, signal.SIGTERM
    while True:
        alive = find_members(None, f"{run_id}/", prefix=True)
        new = alive - seen.keys()
        seen.update((pid, _command_of(pid)) for pid in new)
        late = time.monotonic() >= deadline
        if not alive or (late and number == signal.SIGKILL):
            return seen
        if late:
            number, deadline = signal.SIGKILL, time.monotonic() + KILL_LIMIT
        if late or new:
            _signal_pids(alive, number)
        time.sleep(0.05)


def find_run_ids():
    """The run ids of all processes of this user that carry a tag."""
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                _, tag, value = (b"\0" + _read_proc(entry, "environ")).partition(b"\0" + TAG.encode() + b"=")
            except OSError:
                continue                            # gone, or another user's
            if tag:
                found.add(value.partition(b"\0")[0].partition(b"/")[0].decode(errors="replace"))
    return found


def find_members(session, tag, prefix=False):
    """Pids alive (no zombies) in session or group `session` (None: any), or carrying `tag`; never ourselves.

    With `prefix` a tag that only begins with `tag` counts too.
    """
    wanted = f"{TAG}={tag}".encode() + (b"" if prefix else b"\0")
    own_pid, own_group = os.getpid(), os.getpgid(0)
    found = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        pid = int(entry)
        try:
            state, _, group, its_session = _read_proc(pid, "stat").rpartition(b")")[2].split()[:4]
            if state in (b"Z", b"X") or pid == own_pid or int(group) == own_group:
                continue
            in_session = session is not None and session in (int(group), int(its_session))
            if in_session or (b"\0" + _read_proc(pid, "environ") + b"\0").find(b"\0" + wanted) >= 0:
                found.add(pid)
        except (OSError, ValueError):
            continue                                # gone, or another user's
    return found


def _read_proc(pid, name):
    with open(f"/proc/{pid}/{name}", "rb") as stream:
        return stream.read()


def _group_of(pid):
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _command_of(pid):
    try:
        return _read_proc(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip() or "?"
    except OSError:
        return "?"


def _signal_pids(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass                                    # already gone is what we want
        except OSError as error:
            if error.errno != errno.EPERM:
                raise


def _die_with(parent):
    """For the child, between fork and exec: get TERM when the driver dies, however it dies.

    It is TERM and not KILL so that run_pytest.sh can pass it on to its pytest.
    """
    def prepare():
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:                  # it died before the call above
            os._exit(1)
    return prepare
