"""client.py - one `python -m pytest` as a fork of a warm parent; where that cannot be, the plain process itself.

USAGE    [WARM_FOLDER=/run/.warm/host_0-main] PYTHON -I -S warm/client.py $$ PYTHON -m pytest ARGUMENT ...
         $$ is the caller, run_pytest.sh: the kernel KILLs this process should the caller be killed.
WHAT     Sends the parent (warm/server.py) its arguments, working directory, environment, umask, limits, ignored
         signals, and its stdin, stdout and stderr; passes on the signals that it gets, and ends as the fork ends: with
         the same exit status, or by the same signal. If it is KILLed, the parent KILLs the fork's session.
PLAIN    PYTHON -m pytest ARGUMENT ... is run in this very process without a WARM_FOLDER, and if the parent is not there, is
         not ready, or declines. A parent that does not answer, or does not tell of a fork's end, for ANSWER_LIMIT seconds is
         marked as broken, so that only one operator waits for it. The fork begins only when this process says "go": nothing
         is ever run twice.
NEEDS    Linux, the standard library without site-packages: it starts in 20 ms.
"""
import ctypes
import marshal
import os
import resource
import select
import signal
import socket
import struct
import sys
import time

PLAIN = "warm: plain process: "     # as run.log has them
LOST = "warm: the parent of this process ended or hangs, and so the process ended"
ANSWER_LIMIT = 8.0      # seconds from the request, or from the parent's first fork, to an answer
IMPORT_LIMIT = 300.0    # seconds for the parent's imports; the plain process would need as many
LOOK_EVERY = 1.0        # seconds between two looks whether the fork lives
PR_SET_PDEATHSIG = 1
PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main(argv):
    """Run the command of `argv` warm and end as it ends; else become the plain process."""
    caller, *command = argv
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(caller):
        return
    folder = os.environ.pop("WARM_FOLDER", None)
    if folder:
        try:
            connection, word = request_fork(folder, command)
        except OSError as error:
            connection, word = None, f"the warm parent is gone ({error})"
        if connection is not None:
            end_as(follow(connection, word, folder))
        print(f"{PLAIN}{word}", file=sys.stderr, flush=True)
    os.execv(command[0], command)


# ---- the parent's state: a file that it replaces

def read_state(folder):
    """(word, the rest) of FOLDER/state: importing, forking, ready or broken; "" without one."""
    try:
        with open(f"{folder}/state", encoding="utf-8") as stream:
            return stream.read().partition(" ")[::2]
    except FileNotFoundError:
        return "", ""


def mark_broken(folder, why):
    """For those who come later, and for the driver, who says it."""
    name = f"{folder}/state.{os.getpid()}"
    with open(name, "w", encoding="utf-8") as stream:
        stream.write(f"broken {why}")
    os.replace(name, f"{folder}/state")


def is_alive(pid):
    """False for a process that ended, be it reaped or not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            return stream.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def await_parent(folder):
    """True once the parent is ready; False if it is broken, ended, or too slow, which is then marked."""
    start = forking = time.monotonic()
    while True:
        word, pid = read_state(folder)
        now = time.monotonic()
        if word == "ready":
            return True
        if word == "broken":
            return False
        if word == "":
            raise FileNotFoundError(f"{folder}: no state")
        if not is_alive(pid):
            mark_broken(folder, "the warm parent ended while it was starting")
            return False
        if word == "importing":
            forking = now
        if now - forking > ANSWER_LIMIT or now - start > IMPORT_LIMIT:
            mark_broken(folder, f"a fork of the warm parent did not answer within {ANSWER_LIMIT:.0f} s"
                        if word == "forking" else f"the warm parent imported for more than {IMPORT_LIMIT:.0f} s")
            return False
        time.sleep(0.01)


# ---- the request

def request_fork(folder, argv):
    """(connection to the parent, pid of the fork), the fork begun; or (None, why not)."""
    if not await_parent(folder):
        return None, read_state(folder)[1]
    connection = connect(folder)
    gate, fork_side = socket.socketpair()
    request = marshal.dumps(describe_self(argv))
    try:
        for each in (connection, gate):
            each.settimeout(ANSWER_LIMIT)
        socket.send_fds(connection, [struct.pack("=Q", len(request))], [0, 1, 2, fork_side.fileno()])
        connection.sendall(request)
        fork_side.close()
        word, _, pid = gate.recv(4096).decode(errors="replace").partition(" ")
    except TimeoutError:
        mark_broken(folder, f"a fork of the warm parent did not answer within {ANSWER_LIMIT:.0f} s")
        return None, read_state(folder)[1]
    if word != "ready":
        return None, f"{word} {pid}".strip() or "the fork ended before it began"
    connection.settimeout(None)
    gate.sendall(b"go")
    return connection, pid


def connect(folder):
    """A connection to FOLDER/socket by way of the folder's descriptor: a socket's own path is limited to 107 bytes."""
    directory = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(f"/proc/self/fd/{directory}/socket")
    os.close(directory)
    return connection


def describe_self(argv):
    """All that a process inherits and a fork of another parent does not."""
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")}
    umask = os.umask(0o077)
    os.umask(umask)
    ignored = [number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN
               and number not in (signal.SIGPIPE, signal.SIGXFSZ)]     # Python itself ignores these two
    return {"argv": argv, "cwd": os.getcwd(), "environ": dict(os.environb), "umask": umask, "limits": limits,
            "ignored": [int(number) for number in ignored], "cores": sorted(os.sched_getaffinity(0)),
            "niceness": os.getpriority(os.PRIO_PROCESS, 0)}


# ---- while it runs, and its end

def follow(connection, fork, folder):
    """The wait status of `fork`. Signals of this process go to the parent, which hands them on."""
    def pass_on(number, _frame):
        try:
            connection.sendall(struct.pack("=i", number))
        except OSError:
            pass            # the parent is gone, and with it the fork: said below
    for number in PASSED_ON:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, pass_on)
    data = receive_status(connection, fork, folder)
    if len(data) == 4:
        return struct.unpack("=i", data)[0]
    print(LOST, file=sys.stderr, flush=True)
    return int(signal.SIGKILL)


def receive_status(connection, fork, folder):
    """4 bytes; fewer if the parent is gone, or has not told of the end of `fork` in time."""
    late = None
    while not select.select([connection], [], [], LOOK_EVERY)[0]:
        late = None if is_alive(fork) else late or time.monotonic() + ANSWER_LIMIT
        if late and time.monotonic() > late:
            mark_broken(folder, f"the warm parent did not tell within {ANSWER_LIMIT:.0f} s how a fork ended")
            return b""
    try:
        return connection.recv(4)
    except ConnectionResetError:
        return b""


def end_as(status):
    """Exit as the fork did: with its exit status, or by its signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pause()
    sys.exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    main(sys.argv[1:])
