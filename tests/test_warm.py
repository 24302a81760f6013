"""warm/: a fork of a warm parent is what a fresh `python -m pytest` is, begins only once, and leaves nothing behind."""
import json
import os
import resource
import signal
import subprocess
import sys
import time

import pytest

from common.process import find_members
from warm_parent import CLIENT, ROOT, Parent

DESCRIBE = """
import json, os, resource, signal, sys, torch, random, numpy, triton, logging, threading, multiprocessing
def test_describe():
    import flag_gems
    from triton.runtime import driver
    numbers = [n for n in signal.valid_signals() if n not in (9, 19) and hasattr(n, "name")]
    handlers = {n.name: getattr(signal.getsignal(n), "value", str(signal.getsignal(n))) for n in numbers}
    own = [number for number in range(256) if os.path.lexists(f"/proc/self/fd/{number}")]
    facts = {"argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "environ": dict(os.environ),
             "shown": sorted(open("/proc/self/environ").read().strip(chr(0)).split(chr(0))), "files": own, "signals": handlers,
             "limits": resource.getrlimit(resource.RLIMIT_NOFILE), "umask": os.umask(0o22), "nice": os.nice(0),
             "cores": sorted(os.sched_getaffinity(0)), "threads": torch.get_num_threads(),
             "philox": torch.cuda.default_generators[0].initial_seed(),
             "driver": type(driver.active).__name__, "device": flag_gems.device,
             "main": sys.modules["__main__"].__spec__.name, "handlers": len(logging.root.handlers),
             "foreign": [n for n in sys.modules if n.partition(".")[0] in ("warm", "server", "client", "child", "preload")],
             "method": multiprocessing.get_start_method(), "alive": threading.active_count(), "orig": sys.orig_argv[1:]}
    json.dump(facts, open(os.environ["OUT"], "w"))
"""
LEAK = """
import gc, multiprocessing.synchronize, os, random, subprocess, sys, numpy, torch, flag_gems
def test_leak():
    assert not hasattr(flag_gems, "leaked") and "LEAKED" not in os.environ and torch.get_default_dtype() == torch.float32
    assert torch.cuda.default_generators[0].initial_seed() == 67280421310721
    gc.unfreeze()
    locks = [each for each in gc.get_objects() if type(each) is multiprocessing.synchronize.Lock]    # flag_gems: one per kernel
    assert locks and all(lock.acquire(block=False) for lock in locks)
    assert subprocess.Popen("exit 7", shell=True).wait() == 7
    drawn = torch.rand(1).item()
    flag_gems.leaked = os.environ["LEAKED"] = "1"
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(1)
    torch.cuda.manual_seed_all(1)
    print("DREW", random.random())
    print("DREW", numpy.random.rand())
    print("DREW", drawn)
"""
ENDINGS = """
import os, signal
def test_ending():
    ending = os.environ["ENDING"]
    assert ending != "fail"
    if ending.isdigit():
        os._exit(int(ending))
    if ending.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, ending))
"""
LEAVES = """
import atexit, ctypes, os, sys, threading, time
def write(text):
    print(text, flush=True)
def test_leaves():
    atexit.register(write, "AT EXIT")
    threading.Thread(target=lambda: (time.sleep(0.3), write("THREAD"))).start()
    sys.unclosed = open("unclosed", "w")
    sys.unclosed.write("whole")
    ctypes.CDLL(None).printf(b"%s\\n", b"FROM C")      # as a kernel's printf; in a pipe it is only written at an end
"""
WAITS = """
import os, signal, subprocess, time
def test_waits():
    if os.environ["ENDING"] == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "100"])
    open(os.environ["OUT"], "w").write(f"{os.getpid()} {child.pid}")
    time.sleep(100)
"""
PER_RUN = "ATTEMPT"     # a variable that may differ between an operator and the parent


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    found = Parent(tmp_path_factory.mktemp("parent"), OUT="out.json", ENDING="", GEMSCREEN_TAG="screen/warm/parent",
                   FLAGGEMS_DB_URL="sqlite://",
                   PYTHONPATH=f"{ROOT / 'plugins'}:lib:")       # the last two are relative to the working directory
    for name, text in (("describe", DESCRIBE), ("leak", LEAK), ("ending", ENDINGS), ("waits", WAITS)):
        (found.folder / f"test_{name}.py").write_text(text)
    assert found.await_state("ready", "broken") == "ready", (found.warm / "log").read_text()
    yield found
    found.close()


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            return stream.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def await_end(*pids):
    deadline = time.monotonic() + 10
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, pids
        time.sleep(0.02)


def prepare():
    """Between fork and exec: what a shell may have set."""
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(0o27)
    os.nice(3)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, 600))


# ---- the same as a fresh process

def test_a_fork_is_as_a_fresh_process(parent):
    facts = {}
    for warm in (False, True):
        cwd = parent.folder / "there"
        cwd.mkdir(exist_ok=True)
        tag = {"GEMSCREEN_TAG": "screen/main/abs/1", "ATTEMPT": "x" * 300}
        code, output = parent.run(parent.folder / "test_describe.py", warm=warm, cwd=cwd, environ=tag, preexec_fn=prepare)
        assert code == 0 and "warm:" not in output, output
        facts[warm] = json.loads((cwd / "out.json").read_text())
    changed = [name for name in facts[True] if facts[True][name] != facts[False][name]]
    facts[False].pop("shown")
    shown = facts[True].pop("shown")    # as much as the parent's had room for, the tag first
    assert "GEMSCREEN_TAG=screen/main/abs/1" in shown
    own = {"=".join(item) for item in facts[False]["environ"].items()}
    assert set(shown) <= own
    assert facts[True] == facts[False], changed
    assert facts[True]["signals"]["SIGQUIT"] == facts[True]["signals"]["SIGINT"] == 1


def test_with_safe_path_as_well(tmp_path):
    (tmp_path / "test_path.py").write_text("import sys, flag_gems\ndef test_path():\n    print('PATH', sys.path)\n")
    parent = Parent(tmp_path, PYTHONSAFEPATH="1")
    parent.await_state("ready")
    paths = [[line for line in parent.run("test_path.py", warm=warm)[1].splitlines() if "PATH" in line] for warm in (False, True)]
    parent.close()
    assert paths[0] == paths[1] and str(ROOT / "plugins") in paths[0][0]


def test_operators_cannot_affect_each_other(parent):
    draws = set()
    for _ in range(3):
        code, output = parent.run("test_leak.py")
        assert code == 0, output
        draws |= {line for line in output.splitlines() if "DREW" in line}
    assert len(draws) == 9      # Python's, numpy's and torch's own generators are not those of a sibling


@pytest.mark.parametrize("ending", ["", "fail", "0", "7", "SIGSEGV", "SIGKILL", "SIGTERM"])
def test_it_ends_as_a_plain_process_ends(parent, ending):
    # ENDING must be as in the parent for it to serve: it goes by a variable that may differ
    text = ENDINGS.replace('"ENDING"', f'"{PER_RUN}"')
    (parent.folder / "test_ends.py").write_text(text)
    expected = {"": 0, "fail": 1, "0": 0, "7": 7}.get(ending) if not ending.startswith("SIG") else -getattr(signal, ending)
    code, output = parent.run("test_ends.py", environ={PER_RUN: ending})
    assert "warm:" not in output and code == expected, output


def test_an_end_waits_for_threads_and_leaves_nothing_unwritten(parent):
    (parent.folder / "test_leaves.py").write_text(LEAVES)
    code, output = parent.run("test_leaves.py")
    assert code == 0 and output.index("THREAD") < output.index("AT EXIT") and output.count("FROM C") == 1, output
    assert (parent.folder / "unclosed").read_text() == "whole"


def test_nothing_collected_and_bad_usage_have_pytests_status(parent):
    assert parent.run("test_ending.py", "-k", "nothing")[0] == 5
    assert parent.run("--no-such-option")[0] == 4


def test_without_a_parent_it_is_the_plain_command_and_with_another_caller_nothing(parent):
    command = [sys.executable, "-c", "import sys; print('torch' in sys.modules, sys.argv)", "a b"]
    outputs = [subprocess.run([sys.executable, "-I", "-S", CLIENT, caller, *command], env=parent.environ, capture_output=True,
                              text=True, check=True).stdout for caller in (str(os.getpid()), "1")]
    assert outputs == ["False ['-c', 'a b']\n", ""]


# ---- signals and leftovers

def start_waiting(parent, ending=""):
    """(client, pid of the fork, pid of its child), the fork found by its tag."""
    (parent.folder / "test_wait.py").write_text(WAITS.replace('"ENDING"', f'"{PER_RUN}"'))
    (parent.folder / "out.json").unlink(missing_ok=True)
    client = parent.start("test_wait.py", environ={PER_RUN: ending, "GEMSCREEN_TAG": "screen/main/waits/1"})
    deadline = time.monotonic() + 20
    while not (parent.folder / "out.json").exists() or not (parent.folder / "out.json").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pids = [int(pid) for pid in (parent.folder / "out.json").read_text().split()]
    assert {client.pid, *pids} <= find_members(None, "screen/main/waits/1")
    return client, *pids


def test_a_signal_to_the_client_reaches_the_fork(parent):
    client, fork, child = start_waiting(parent)
    client.send_signal(signal.SIGTERM)
    assert client.wait(timeout=10) == -signal.SIGTERM and not is_alive(fork)
    assert is_alive(child) and child in find_members(None, "screen/main/waits/1")     # as with a plain process: the driver's
    os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("ending", ["", "stubborn"])
def test_with_the_client_killed_the_fork_and_its_session_go(parent, ending):
    client, fork, child = start_waiting(parent, ending)
    client.kill()
    client.wait()
    await_end(fork, child)
    assert parent.run("test_ending.py")[0] == 0


def test_the_parent_keeps_no_file_and_no_process(parent):
    for _ in range(6):
        assert parent.run("--noconftest", "--version")[0] == 0
    deadline = time.monotonic() + 10
    # stdin, stdout, stderr, the socket, the selector, both ends of its pipe; a client is told before its connection closes
    while len(os.listdir(f"/proc/{parent.process.pid}/fd")) > 7 or parent.list_forks():
        assert time.monotonic() < deadline, sorted(os.listdir(f"/proc/{parent.process.pid}/fd"))
        time.sleep(0.02)


def test_with_the_parent_gone_its_forks_go_and_the_next_are_plain(tmp_path):
    parent = Parent(tmp_path, OUT="out.json")
    assert parent.await_state("ready", "broken") == "ready"
    client, fork, child = start_waiting(parent)
    parent.process.kill()
    parent.process.wait()
    assert client.wait(timeout=10) == -signal.SIGKILL
    await_end(fork)
    os.kill(child, signal.SIGKILL)
    assert "the parent of this process ended or hangs" in client.stdout.read()
    code, output = parent.run("--noconftest", "--version")
    assert code == 0 and "plain process: the warm parent is gone" in output


def test_with_a_parent_that_hangs_nobody_waits_for_the_time_limit(tmp_path):
    parent = Parent(tmp_path, OUT="out.json")
    parent.await_state("ready")
    client, fork, child = start_waiting(parent)
    parent.process.send_signal(signal.SIGSTOP)
    for pid in (fork, child):
        os.kill(pid, signal.SIGKILL)
    assert client.wait(timeout=20) == -signal.SIGKILL
    assert parent.read_state() == "broken the warm parent did not tell within 8 s how a fork ended"
    code, output = parent.run("--noconftest", "--version")
    assert (code, output.splitlines()[0]) == (0, "warm: plain process: the warm parent did not tell within 8 s how a fork ended")
    parent.process.kill()
    parent.process.wait()


def test_a_fork_that_fails_later_is_a_plain_process_and_the_next_is_tried(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import os, sys\nif 'server.py' in ' '.join(sys.orig_argv):\n    real, calls = os.fork, []\n    def fork():\n"
        "        calls.append(1)\n        if len(calls) == 2: raise OSError(11, 'no more processes')\n"
        "        return real()\n    os.fork = fork\n")
    parent = Parent(tmp_path, PYTHONPATH=f"{tmp_path / 'site'}:{ROOT / 'plugins'}")
    assert parent.await_state("ready", "broken") == "ready"
    outputs = [parent.run("--noconftest", "--version")[1].splitlines() for _ in range(2)]
    parent.close()
    assert outputs[0][0] == "warm: plain process: fork failed: [Errno 11] no more processes"
    assert [len(output) for output in outputs] == [2, 1]        # the version alone


# ---- caches of its own

CACHES = """
def test_caches():
    import sys
    code_cache, libentry = sys.modules["flag_gems.utils.code_cache"], sys.modules["flag_gems.utils.libentry"]
    libentry.libcache["a"].set(("key",), libentry.triton.Config({"BLOCK": 16}, num_warps=4))
    print("\\nCACHES", code_cache.code_cache_dir(), libentry.libcache["a"].get(("key",)).kwargs)
"""


def test_flag_gems_has_its_caches_where_the_fork_has_them(parent):
    """Its code and its tuner's database, neither where the parent had them nor where another fork has."""
    (parent.folder / "test_caches.py").write_text(CACHES)
    for name in ("one", "two"):
        own = parent.folder / name
        own.mkdir()
        environ = {"FLAGGEMS_CACHE_DIR": str(own), "FLAGGEMS_DB_URL": f"sqlite:///{own}/tuned.db"}
        code, output = parent.run("test_caches.py", environ=environ)
        assert code == 0 and f"\nCACHES {own}/code_cache {{'BLOCK': 16}}\n" in output, output
        assert "plain process" not in output, output
        assert sorted(path.name for path in own.iterdir()) == ["code_cache", "tuned.db"]


KEEPER = {"code_cache": """
import functools, os
@functools.lru_cache
def cache_dir_path(): return os.environ["FLAGGEMS_CACHE_DIR"]
cache_dir_path()
""", "libentry": """
import os, sqlalchemy, types
class Model:
    def __init__(self, url): self.engine = sqlalchemy.create_engine(url)
libcache = types.SimpleNamespace(model=Model(os.environ["FLAGGEMS_DB_URL"]))
"""}
MOVES = """
import os, sys, flag_gems, flaggems_vllm
sys.path.insert(0, os.environ["ROOT"])
from warm import child, client, server
request = client.describe_self(["pytest"])
request["environ"] |= {b"FLAGGEMS_CACHE_DIR": b"/own", b"FLAGGEMS_DB_URL": b"sqlite:////own/tuned.db"}
child.become(request, [os.dup(number) for number in range(3)], os.getppid())
for package in (flag_gems, flaggems_vllm):
    print(package.utils.code_cache.cache_dir_path(), package.utils.libentry.libcache.model.engine.url)
"""


def test_both_packages_move_theirs(tmp_path):
    """FlagGems-vllm has modules of its own for both."""
    for package in ("flag_gems", "flaggems_vllm"):
        utils = tmp_path / package / "utils"
        utils.mkdir(parents=True)
        (utils.parent / "__init__.py").write_text(f"import {package}.utils.code_cache, {package}.utils.libentry")
        for name, text in KEEPER.items():
            (utils / f"{name}.py").write_text(text)
    environ = {"PYTHONPATH": str(tmp_path), "ROOT": str(ROOT), "FLAGGEMS_CACHE_DIR": "/parent", "FLAGGEMS_DB_URL": "sqlite://"}
    done = subprocess.run([sys.executable, "-c", MOVES], env=environ, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("/own sqlite:////own/tuned.db\n" * 2, 0), done.stderr


@pytest.mark.parametrize("source, reason", [
    ("", "flag_gems keeps its caches otherwise: KeyError: 'flag_gems.utils.code_cache'"),
    ("import flag_gems.utils.code_cache, flag_gems.utils.libentry",
     "flag_gems's caches stayed where they were: /elsewhere, sqlite:///tuned.db")])
def test_a_flag_gems_that_keeps_them_otherwise_is_refused(tmp_path, source, reason):
    utils = tmp_path / "site" / "flag_gems" / "utils"
    utils.mkdir(parents=True)
    (utils.parent / "__init__.py").write_text(source)
    (utils / "code_cache.py").write_text("import functools\n@functools.lru_cache\ndef cache_dir_path(): return '/elsewhere'\n")
    (utils / "libentry.py").write_text("import sqlalchemy, types\n"
                                       "class Model:\n"
                                       "    def __init__(self, url): self.engine = sqlalchemy.create_engine(url)\n"
                                       "libcache = types.SimpleNamespace(model=Model('sqlite://'))\n")
    environ = {"PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}", "FLAGGEMS_CACHE_DIR": "/own", "FLAGGEMS_DB_URL": "sqlite:///tuned.db"}
    code = "import flag_gems; from warm import child; child.move_caches('flag_gems')"
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    # server.py makes a plain process of it
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, f"OSError: {reason}")


# ---- where it is not used

@pytest.mark.parametrize("name", ["TRITON_F32_DEFAULT", "GEMS_VENDOR", "CUDA_VISIBLE_DEVICES"])
def test_another_environment_gets_a_plain_process(parent, name):
    code, output = parent.run("--noconftest", "--version", environ={name: "other"})
    assert code == 0 and output.splitlines()[0] == f"warm: plain process: {name} is not as in the warm parent"
    assert parent.list_forks() == []


@pytest.mark.parametrize("name, hook, reason", [
    ("fails", "import os; os.fork = lambda: (_ for _ in ()).throw(OSError(11, 'no more processes'))", "fork failed: "),
    ("hangs", "import os, time; os.register_at_fork(after_in_child=lambda: time.sleep(100))",
     "a first fork did not answer within 6 s"),
    ("stops", "import os, time; os.register_at_fork(before=lambda: time.sleep(100))", "a fork of the warm parent did not answer"),
    ("threads", "import threading, time; threading.Thread(target=time.sleep, args=(100,), daemon=True).start()",
     "threads, and a fork has only one"),
])
def test_where_forking_is_not_safe_plain_processes_run(tmp_path, name, hook, reason):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        f"import sys\nif 'server.py' in ' '.join(sys.orig_argv):\n    {hook}\n")
    parent = Parent(tmp_path, PYTHONPATH=f"{tmp_path / 'site'}:{ROOT / 'plugins'}")
    try:
        parent.await_state("forking", "broken")
        start = time.monotonic()
        code, output = parent.run("--noconftest", "--version")
        assert time.monotonic() - start < 10, name                                  # a limit that the issue sets
        assert (code, "pytest" in output, output.splitlines()[0]) == (0, True, f"warm: plain process: {parent.read_state()[7:]}")
        assert parent.read_state().startswith("broken ") and reason in parent.read_state()
    finally:
        parent.process.kill()
        parent.process.wait()
