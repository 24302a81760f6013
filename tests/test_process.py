"""common/process.py against real processes that do what badly behaved benchmarks do."""

import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

import pytest

from common.process import Child, end_tagged, find_members, run_bounded, start_bounded

ROOT = Path(__file__).resolve().parent.parent


def is_alive(pid):
    """True if `pid` runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_for(condition, seconds=20):
    """Poll until condition() gives something true, and return that."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    pytest.fail(f"nothing within {seconds} s")


def read_pids(folder, count):
    """The pids that `count` processes have written into files *.pid in `folder`."""
    def complete():
        texts = [path.read_text() for path in folder.glob("*.pid")]
        return len(texts) == count and all(text.endswith("\n") for text in texts) and [int(t) for t in texts]
    return wait_for(complete)


def start(tmp_path, script, *, interpreter=sys.executable, grace=0.3, tag=None):
    """A Child that runs `script` in tmp_path."""
    path = tmp_path / "script"
    path.write_text(textwrap.dedent(script))
    return Child([interpreter, str(path)], tag=tag or f"{uuid.uuid4().hex}/op/1", env=dict(os.environ),
                 log=tmp_path / "log", cwd=tmp_path, grace=grace)


def finish(child, seconds=30):
    """Advance `child` to its end."""
    wait_for(lambda: child.advance(time.monotonic()), seconds)


REPORT = """
import os, signal, sys, time
def report(name):
    with open(name + ".tmp", "w") as stream:
        stream.write(f"{os.getpid()}\\n")
    os.rename(name + ".tmp", name + ".pid")
"""


@pytest.mark.parametrize("script, expected", [
    ("import sys; sys.exit(0)", 0),
    ("import sys; sys.exit(7)", 7),
    ("import os; os._exit(3)", 3),
    ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
    ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -11),
])
def test_exit_status_comes_out(tmp_path, script, expected):
    child = start(tmp_path, script)
    finish(child)
    assert (child.returncode, child.ended_pids, child.stuck) == (expected, set(), [])


def test_both_streams_are_appended_to_the_log(tmp_path):
    (tmp_path / "log").write_text("before\n")
    child = start(tmp_path, "import os; os.write(1, b'out\\n'); os.write(2, b'err\\n')")
    finish(child)
    assert (tmp_path / "log").read_text() == "before\nout\nerr\n"


def test_child_that_ignores_term_is_killed(tmp_path):
    child = start(tmp_path, REPORT + "signal.signal(signal.SIGTERM, signal.SIG_IGN); report('a'); time.sleep(600)")
    pids = read_pids(tmp_path, 1)
    child.end(time.monotonic())
    finish(child)
    assert child.returncode == -9
    assert not any(map(is_alive, pids))


def test_a_child_gets_one_term(tmp_path, monkeypatch):
    """Through its group. A second one would meet a Python on its way out, without its handler: it looked killed now and then."""
    child = start(tmp_path, REPORT + "report('a'); time.sleep(600)")
    read_pids(tmp_path, 1)
    kill, killed = os.kill, []
    monkeypatch.setattr(os, "kill", lambda pid, number: (killed.append(pid), kill(pid, number)))
    child.end(time.monotonic())
    finish(child)
    assert child.returncode == -15 and child.pid not in killed


def test_child_that_obeys_term_is_not_killed(tmp_path):
    child = start(tmp_path, REPORT + "signal.signal(signal.SIGTERM, lambda *a: sys.exit(5)); report('a');\n"
                                     "time.sleep(600)", grace=60)
    read_pids(tmp_path, 1)
    child.end(time.monotonic())
    finish(child)
    assert child.returncode == 5


# A child that ignores TERM, one in a session of its own, a daemon forked twice, and a pool of two.
FAMILY = REPORT + """
import multiprocessing
def sit(name, leave=False, ignore=False):
    if os.fork() == 0:
        if leave: os.setsid()
        if ignore: signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if name == "daemon" and os.fork() != 0: os._exit(0)
        report(name)
        time.sleep(600)
        os._exit(0)
sit("ignoring", ignore=True)
sit("setsid", leave=True, ignore=True)
sit("daemon", leave=True)
def work(number):
    report(f"pool{number}")
    time.sleep(600)
pool = multiprocessing.get_context("fork").Pool(2)
pool.map_async(work, [0, 1], chunksize=1)
report("parent")
"""


@pytest.mark.parametrize("ending", ["timeout", "exit", "killed"])
def test_no_descendant_survives(tmp_path, ending):
    child = start(tmp_path, FAMILY + "while not os.path.exists('go'): time.sleep(0.02)\nos._exit(0)")
    pids = read_pids(tmp_path, 6)
    if ending == "exit":
        (tmp_path / "go").touch()
    if ending == "timeout":
        child.end(time.monotonic())
    if ending == "killed":
        os.kill(child.pid, signal.SIGKILL)
    finish(child)
    assert not [pid for pid in pids if is_alive(pid)]
    assert child.ended_pids >= set(pids) - {child.pid}
    assert child.stuck == []


def test_a_job_of_an_interactive_shell_has_its_own_group_and_is_found(tmp_path):
    child = start(tmp_path, """
        set -m
        env -u GEMSCREEN_TAG sh -c 'echo $$ > t && mv t a.pid; exec sleep 600' &
        wait
    """, interpreter="bash")
    pids = read_pids(tmp_path, 1)
    assert os.getpgid(pids[0]) != child.pid
    child.end(time.monotonic())
    finish(child)
    assert not is_alive(pids[0])


def test_ending_what_is_already_gone_is_no_error(tmp_path):
    child = start(tmp_path, "pass")
    wait_for(lambda: not is_alive(child.pid))
    child.end(time.monotonic())
    child.kill(time.monotonic())
    finish(child)
    assert child.returncode == 0


def test_our_own_group_and_strangers_are_left_alone(tmp_path):
    bystander = subprocess.Popen(["sleep", "600"])                          # our group, no tag
    sibling = start(tmp_path, "import time; time.sleep(600)", tag="other/op/1")
    namesake = subprocess.Popen(["sleep", "600"], start_new_session=True,   # a tag that only begins like ours
                                env={**os.environ, "GEMSCREEN_TAG": "mine/op/10"})
    child = start(tmp_path, "import time; time.sleep(600)", tag="mine/op/1")
    try:
        child.end(time.monotonic())
        finish(child)
        assert child.returncode == -15
        assert bystander.poll() is None and namesake.poll() is None and is_alive(sibling.pid)
    finally:
        sibling.kill(time.monotonic())
        finish(sibling)
        for process in (bystander, namesake):
            process.kill()
            process.wait()


DRIVER = """
import os, sys, time
sys.path.insert(0, {root!r})
from common.process import Child
child = Child([sys.executable, "script"], tag={tag!r}, env=dict(os.environ), log="log", grace=1)
while not child.advance(time.monotonic()):
    time.sleep(0.02)
"""


def start_driver(tmp_path, script, tag):
    """A driver process with one Child that runs `script`."""
    (tmp_path / "script").write_text(script)
    (tmp_path / "driver.py").write_text(DRIVER.format(root=str(ROOT), tag=tag))
    return subprocess.Popen([sys.executable, "driver.py"], cwd=tmp_path)


def test_a_killed_driver_takes_its_direct_child_with_it(tmp_path):
    driver = start_driver(tmp_path, REPORT + "report('a'); time.sleep(600)", "run/op/1")
    pids = read_pids(tmp_path, 1)
    driver.kill()
    driver.wait()
    wait_for(lambda: not is_alive(pids[0]))


def test_what_a_killed_driver_left_is_found_by_its_run_id_and_ended(tmp_path):
    run_id = uuid.uuid4().hex
    driver = start_driver(tmp_path, FAMILY + "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)",
                          f"{run_id}/main/abs/1")
    pids = read_pids(tmp_path, 6)
    driver.kill()
    driver.wait()
    stranger = subprocess.Popen(["sleep", "600"], env={**os.environ, "GEMSCREEN_TAG": f"{run_id}0/main/abs/1"})
    try:
        ended = end_tagged(run_id, grace=0.3)
        assert not [pid for pid in pids if is_alive(pid)]
        assert any("script" in command for command in ended.values())
        assert stranger.poll() is None
        assert end_tagged(run_id) == {}
    finally:
        stranger.kill()
        stranger.wait()


def test_a_probe_that_never_answers_is_given_up(tmp_path):
    stub = tmp_path / "vendor-smi"
    stub.write_text("#!/bin/sh\ntrap '' TERM\necho starting\nwhile :; do sleep 1; done\n")
    stub.chmod(0o755)
    code, output = run_bounded([str(stub)], env=dict(os.environ), timeout=2)
    assert (code, output) == (None, "starting\n")
    assert find_members(None, f"probe-{os.getpid()}/", prefix=True) == set()


def test_a_probe_that_answers(tmp_path):
    assert run_bounded(["sh", "-c", "echo yes; exit 4"], env=dict(os.environ), timeout=20) == (4, "yes\n")


def test_what_runs_beside_the_caller_answers_or_is_ended(tmp_path):
    with start_bounded(["sh", "-c", "echo yes; exit 4"], env=dict(os.environ), timeout=20) as wait:
        assert wait() == (4, "yes\n")
    with pytest.raises(KeyError), start_bounded(["sh", "-c", f"echo $$ > {tmp_path}/pid; sleep 100"], env=dict(os.environ),
                                                timeout=200):
        pid = wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
        raise KeyError
    wait_for(lambda: not is_alive(pid))
