"""server.py - the warm parent: imports once what every `python -m pytest` imports, and forks one for each operator.

USAGE    WARM_SERVE=FOLDER ./run_pytest.sh OP ...     (the driver does it; run_pytest.sh ends in this script, in FOLDER)
WHY      Imports are most of an operator's start: on 2 cores 6 of 7 s, on an H200 machine 12 s and more. A fork has
         them at once, and none of what an earlier operator did: the parent never runs a test.

FOLDER   socket    what client.py connects to
         state     importing PID | forking PID | ready [REMARK] | broken WHY     replaced, never written in place
         log       the parent's own output

PROTOCOL on the socket, one connection per operator:
           client -> parent   8 bytes: length; with them 4 descriptors: stdin, stdout, stderr, gate
                              the request (marshal): argv, cwd, environ, umask, limits, ...      client.py: describe_self
           parent or fork -> client, at the gate      `ready PID`, or why not
           client -> fork, at the gate                `go`; without it the fork ends, having done nothing
           client -> parent   4 bytes: a signal for the fork
           parent -> client   4 bytes: the fork's wait status
         A client that is gone: the fork's whole session is KILLed at once.

ISOLATION  A fork has its own session, working directory, environment (also in /proc), descriptors (only its own 0, 1
         and 2), limits, umask, cores, niceness, ignored signals, random numbers. It shares with its siblings what was
         imported, PYTHONHASHSEED and the address space's layout.
         What modules read when they are imported must be what the operator's own process would have read. So the
         parent is started by run_pytest.sh with the environment of an operator of this device and tree, and declines a
         request whose environment differs in anything but PER_RUN: other caches, another switch, a plain process.

NOT USED where a fork is not safe: a vendor that is not known to survive it, the accelerator initialised already, more
         threads than numpy's, a first fork that does not answer or cannot use the device. `state` says it, once.
NEEDS    Linux. Level "torch" (without flag_gems) where flag_gems cannot be imported ahead: `ready` then says why.
"""
import gc
import marshal
import os
import selectors
import signal
import socket
import struct
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(1, str(ROOT))
from warm import child, preload  # noqa: E402

sys.path.remove(str(ROOT))

# What run_pytest.sh exports and nothing reads before a test runs; Triton asks for its cache at each use; the shell's own.
PER_RUN = {b"TRITON_CACHE_DIR", b"RUN_DIR", b"ATTEMPT", b"FALLBACK", b"DTYPES", b"REPLAY_FROM", b"REPLAY_STRICT",
           b"REPLAY_FORCE", b"SHAPES", b"GEMSCREEN_TAG", b"STARTED", b"WARM_SERVE", b"WARM_FOLDER", b"_", b"SHLVL", b"PWD",
           b"OLDPWD", b"SUITE", b"PYTEST_EXTRA", b"MODE", b"LEVEL", b"IR_META", b"TIMER", b"CACHE", b"CHECK_SHAPES",
           b"WARMUP_MS", b"ITER_MS", *child.CACHES}       # child.py sees to these
FORK_LIMIT = 6.0        # seconds for the first fork; less than client.py waits
REQUEST_LIMIT = 5.0     # seconds that a client may take for its request


class Server:
    """The loop of a parent that is ready: requests in, forks and their statuses out. One thread, blocks on nobody."""

    def __init__(self, listener, environ, changes):
        self.listener, self.environ, self.changes = listener, environ, changes
        self.selector = selectors.DefaultSelector()
        self.clients = {}       # pid of a fork -> connection
        self.wakeup, writer = os.pipe()
        for number in (self.wakeup, writer):
            os.set_blocking(number, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer)
        self.pipe = (self.wakeup, writer)
        self.selector.register(self.wakeup, selectors.EVENT_READ, self.reap)
        self.selector.register(listener, selectors.EVENT_READ, self.accept)

    def serve(self):
        """For ever in the parent; returns in a fork, as its operator's process."""
        while True:
            for key, _ in self.selector.select():
                if key.data():
                    return

    def accept(self):
        """Take one request. True in the fork that was made for it."""
        connection, _ = self.listener.accept()
        files = []
        try:
            connection.settimeout(REQUEST_LIMIT)
            files, request = receive(connection)
            why = self.find_difference(request["environ"])
            if why:
                os.write(files[3], why.encode(errors="surrogateescape"))
            elif self.fork(connection, files, request):
                return True
        except (OSError, ValueError, EOFError, struct.error) as error:
            print(f"a request failed: {error}", flush=True)
        for number in files:
            os.close(number)
        return False

    def find_difference(self, environ):
        """Why a request cannot be served, or None."""
        names = self.environ.keys() | environ.keys()
        other = sorted(name for name in names - PER_RUN if self.environ.get(name) != environ.get(name))
        return f"{b', '.join(other).decode(errors='surrogateescape')} is not as in the warm parent" if other else None

    def fork(self, connection, files, request):
        """True in the fork; in the parent the connection is watched from now on."""
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:        # this once, perhaps: too many processes, no memory
            os.write(files[3], f"fork failed: {error}".encode())
            return False
        if pid == 0:
            self.close_in_fork(connection)
            enter(files, request | {"environ": request["environ"] | self.changes}, parent)
            return True
        self.clients[pid] = connection
        self.selector.register(connection, selectors.EVENT_READ, lambda: self.hear(pid, connection))
        return False

    def close_in_fork(self, connection):
        """A fork leaves the parent's files to the parent (the selector's registrations are shared: it is only closed)."""
        signal.set_wakeup_fd(-1)
        for each in (connection, *self.clients.values(), self.listener, self.selector):
            each.close()
        for number in self.pipe:
            os.close(number)

    def hear(self, pid, connection):
        """A signal for the fork, or the client's end."""
        try:
            data = connection.recv(4)
        except OSError:
            data = b""
        if len(data) == 4:
            os.kill(pid, struct.unpack("=i", data)[0])      # it is not reaped yet: the number is still its own
            return
        self.selector.unregister(connection)
        for kill in (os.killpg, os.kill):                   # before its setsid() it leads no group
            try:
                kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def reap(self):
        """Tell the clients of the forks that ended."""
        try:
            while os.read(self.wakeup, 512):
                pass
        except BlockingIOError:
            pass
        for pid in list(self.clients):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                connection = self.clients.pop(pid)
                if connection in self.selector.get_map():
                    self.selector.unregister(connection)
                try:
                    connection.sendall(struct.pack("=i", status))
                except OSError:
                    pass
                connection.close()


def receive(connection):
    """(the 4 descriptors, the request) of a client."""
    head, files, _, _ = socket.recv_fds(connection, 8, 4)
    try:
        size = struct.unpack("=Q", head)[0]
        data = b""
        while len(data) < size:
            part = connection.recv(size - len(data))
            if not part:
                raise EOFError("the client went away")
            data += part
        return files, marshal.loads(data)
    except BaseException:
        for number in files:
            os.close(number)
        raise


def enter(files, request, parent):
    """In a fork: become what the request says, and begin when the client says so. Ends here if it never does."""
    gate = socket.socket(fileno=files[3])
    try:
        child.become(request, files[:3], parent)
        gate.sendall(b"ready %d" % os.getpid())
        if gate.recv(2) == b"go":
            gate.close()
            return
    except Exception as error:  # noqa: BLE001 - whatever it is, the plain process is the answer
        gate.sendall(f"the fork could not take on the request: {type(error).__name__}: {error}".encode())
    os._exit(0)


# ---- starting

def write_state(folder, text):
    """Replace FOLDER/state, unless a client has given up meanwhile."""
    try:
        if (folder / "state").read_text(encoding="utf-8").startswith("broken"):
            sys.exit(0)
    except FileNotFoundError:
        pass
    (folder / "state.tmp").write_text(text, encoding="utf-8")
    os.replace(folder / "state.tmp", folder / "state")


def try_fork():
    """Unsafe unless a fork answers in time that it can compute."""
    reader, writer = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        raise preload.Unsafe(f"fork failed: {error}") from None
    if pid == 0:
        answer = b"ready"
        try:
            preload.try_device()
        except BaseException as error:  # noqa: BLE001 - told, and said
            answer = f"{type(error).__name__}: {error}".encode()
        os.write(writer, answer)
        os._exit(0)
    os.close(writer)
    os.set_blocking(reader, False)
    answer, start = None, time.monotonic()
    while answer is None and time.monotonic() - start < FORK_LIMIT:
        time.sleep(0.01)
        try:
            answer = os.read(reader, 4096)
        except BlockingIOError:
            pass
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(reader)
    if answer is None:
        raise preload.Unsafe(f"a first fork did not answer within {FORK_LIMIT:.0f} s")
    if answer != b"ready":
        raise preload.Unsafe(f"a first fork cannot compute: {answer.decode(errors='replace') or 'it died'}")


def start(folder, level, environ):
    """(listening socket, variables that imports set). Unsafe if this process must not be forked."""
    write_state(folder, f"importing {os.getpid()}")
    if not getattr(sys.flags, "safe_path", False):      # with PYTHONSAFEPATH neither this script nor `-m pytest` adds one
        sys.path[0] = os.getcwd()       # not this script's; in a fork its working directory (child.py)
    gc.disable()        # all that is imported stays
    try:
        changes = preload.import_all(level == "gems")
    except Exception as error:  # noqa: BLE001 - whatever it is: once more without flag_gems
        if level != "gems":
            raise
        traceback.print_exc()
        remark = f"without flag_gems: {error}"
        os.execve(sys.executable, [sys.executable, __file__, str(folder), "torch", " ".join(remark.split())], environ)
    directory = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"/proc/self/fd/{directory}/socket")
    listener.listen(64)
    os.close(directory)
    gc.collect()
    gc.freeze()         # so that a collection in a fork does not touch, and thereby copy, the parent's pages
    gc.enable()
    write_state(folder, f"forking {os.getpid()}")
    try_fork()
    return listener, {os.fsencode(name): os.fsencode(value) for name, value in changes.items()}


def main(folder, level="gems", remark=""):
    """Serve in `folder` until told to stop; in a fork, be `python -m pytest`."""
    folder, environ = Path(folder), dict(os.environb)
    try:
        listener, changes = start(folder, level, environ)
    except Exception as error:  # noqa: BLE001 - said in the state, and in full in the log
        traceback.print_exc()
        name = "" if isinstance(error, preload.Unsafe) else f"{type(error).__name__}: "
        write_state(folder, f"broken {name}{' '.join(str(error).split())}")
        return
    write_state(folder, f"ready {remark}".strip())
    Server(listener, environ, changes).serve()
    child.run_pytest()


if __name__ == "__main__":
    main(*sys.argv[1:])
