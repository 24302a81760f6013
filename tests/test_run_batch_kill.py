"""run_batch.py when it, its children or the disk end at a bad moment. Real processes, real signals."""

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time

import pytest

from screen_stub import ROOT


# What a benchmark may leave: a child that ignores TERM, one in a session of its own, a daemon, a job with its own group.
FAMILY = """
(trap '' TERM; while :; do sleep 1; done) &
setsid sh -c 'trap "" TERM; while :; do sleep 1; done' &
(setsid sleep 600 &)
set -m; sleep 600 & set +m
table
touch "$RUN_DIR/ready"
"""
# Catastrophic backtracking in C: no Python signal handler runs until it is done.
BLOCKED_IN_C = """
exec python3 -c 'import re, signal; signal.signal(signal.SIGTERM, print); re.match(r"(a+)+$", "a" * 60 + "b")'
"""


def comparable(rows):
    """Summary rows without what says how often a screen was disturbed, and on which of the equal host slots an op ran."""
    return sorted(tuple(value for name, value in row.items() if name not in ("attempt", "device")) for row in rows)


def wait_until_gone(stub, seconds=20):
    """Wait until no process of the screen is left."""
    end = time.monotonic() + seconds
    while stub.list_processes() and time.monotonic() < end:
        time.sleep(0.02)
    assert stub.list_processes() == []


def test_a_timeout_leaves_no_descendant_and_keeps_the_rows(stub):
    stub.behave("abs", FAMILY + "sleep 600")
    stub.behave("add", FAMILY + BLOCKED_IN_C)
    assert stub.run("--timeout", "3") == 1
    assert stub.list_processes() == []
    assert stub.statuses() == {"abs": "timeout", "add": "timeout", "mm": "ok"}
    rows = {row["op"]: (row["status"], row["latency_ms"], row["row_status"]) for row in stub.read_csv("summary.csv")}
    assert rows["abs"] == rows["add"] == ("timeout", "0.02", "SUCCESS")


def test_what_an_op_leaves_behind_is_ended_though_it_passed(stub):
    stub.behave("abs", FAMILY)
    assert stub.run() == 0
    assert stub.statuses() == {"abs": "ok", "add": "ok", "mm": "ok"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_ends_the_children_and_the_screen_goes_on_later(stub, number):
    stub.write_ops(["abs", "add", "mm", "mul"])
    stub.behave("abs", FAMILY + "[ -e \"$BEHAVE/go\" ] || sleep 600")
    driver = stub.start("--devices", "host:0", "--retries", "0")        # nothing but the interrupt keeps it from an outcome
    stub.wait_for_attempt("abs")
    driver.send_signal(number)
    assert driver.wait(30) == 130
    assert stub.list_processes() == []
    assert stub.statuses() == {}
    rows = {row["op"]: (row["status"], row["latency_ms"]) for row in stub.read_csv("summary.csv")}
    assert rows == {"abs": ("interrupted", "0.02"), **dict.fromkeys(["add", "mm", "mul"], ("interrupted", ""))}
    (stub.behaviour / "go").touch()
    assert stub.run("--devices", "host:0") == 0
    assert stub.attempts("abs") == ["1", "2"]
    assert set(stub.statuses().values()) == {"ok"}


def test_a_second_interrupt_does_not_wait_for_the_grace(stub):
    stub.behave("abs", "trap '' TERM\n" + FAMILY + "while :; do sleep 1; done")
    driver = stub.start("--ops", "abs", GRACE_S=600)
    stub.wait_for_attempt("abs")
    driver.send_signal(signal.SIGINT)
    time.sleep(0.7)                 # sooner it would count as the same one
    assert driver.poll() is None
    driver.send_signal(signal.SIGINT)
    assert driver.wait(30) == 130


def test_one_interrupt_that_arrives_twice_leaves_time_to_clean_up(stub):
    stub.behave("abs", "trap 'sleep 0.3; touch \"$BEHAVE/cleaned\"; exit 1' TERM\ntouch \"$RUN_DIR/ready\"; sleep 600 & wait")
    driver = stub.start("--ops", "abs", GRACE_S=30)
    stub.wait_for_attempt("abs")
    driver.send_signal(signal.SIGTERM)          # as timeout(1) does it: the process, then its group
    time.sleep(0.05)
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(30) == 130
    assert (stub.behaviour / "cleaned").exists()


def test_a_reader_that_goes_away_does_not_stop_the_screen(stub):
    stub.behave("abs", "touch \"$RUN_DIR/ready\"; while [ ! -e \"$BEHAVE/go\" ]; do sleep 0.05; done")
    driver = subprocess.Popen([sys.executable, ROOT / "run_batch.py"], env=stub.environ(), cwd=stub.folder,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert driver.stdout.readline().startswith(b"screen: ")
    stub.wait_for_attempt("abs")
    driver.stdout.close()
    (stub.behaviour / "go").touch()
    assert driver.wait(30) == 0
    assert stub.statuses() == {"abs": "ok", "add": "ok", "mm": "ok"}
    assert len(stub.read_csv("summary.csv")) == 3


def test_a_lost_terminal_is_an_interrupt(stub):
    stub.behave("abs", "touch \"$RUN_DIR/ready\"; exec sleep 600")
    controller, terminal = pty.openpty()
    driver = subprocess.Popen([sys.executable, ROOT / "run_batch.py", "--ops", "abs"], env=stub.environ(), cwd=stub.folder,
                              stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
                              preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
    os.close(terminal)
    stub.wait_for_attempt("abs")
    os.close(controller)
    assert driver.wait(30) == 130
    assert stub.list_processes() == []
    assert [row["status"] for row in stub.read_csv("summary.csv")] == ["interrupted"]


def test_a_worker_killed_by_someone_else_is_crashed_and_the_rest_goes_on(stub):
    stub.write_ops([f"op{number}" for number in range(6)])
    stub.behave("op0", FAMILY + "sleep 600")
    driver = stub.start("--retries", "0")
    stub.wait_for_attempt("op0")
    worker = next(pid for pid, command in stub.list_processes() if " op0 benchmark/" in command)
    os.kill(os.getsid(worker), signal.SIGKILL)
    assert driver.wait(60) == 1
    assert stub.statuses() == {"op0": "crashed", **{f"op{number}": "ok" for number in range(1, 6)}}
    assert "SIGKILL" in stub.marker("op0")["reason"]


def test_a_killed_driver_takes_its_children_with_it(stub):
    stub.behave("abs", "touch \"$RUN_DIR/ready\"; exec sleep 600")
    (stub.folder / "tmp").mkdir()
    driver = stub.start("--ops", "abs", TMPDIR=stub.folder / "tmp")
    stub.wait_for_attempt("abs")
    driver.kill()
    driver.wait()
    wait_until_gone(stub)
    assert not list((stub.folder / "tmp").glob("gemscreen-*"))


def test_the_next_start_ends_what_a_killed_driver_left_and_says_so(stub):
    stub.behave("abs", "trap '' TERM\n" + FAMILY + "[ -e \"$BEHAVE/go\" ] || while :; do sleep 1; done")
    driver = stub.start("--ops", "abs")
    stub.wait_for_attempt("abs")
    driver.kill()
    driver.wait()
    left = [pid for pid, command in stub.list_processes() if "stub.sh abs" in command]
    assert left
    (stub.behaviour / "go").touch()
    assert stub.run("--ops", "abs") == 0
    for pid in left:
        assert f"left by an earlier driver of this screen, ended: {pid} " in stub.output()
    assert stub.attempts("abs") == ["1", "2"]
    assert not list(stub.latest.glob("main/abs/attempts/*.driver.log"))


def test_a_stale_outcome_does_not_come_back_when_its_repetition_is_killed(stub):
    run = ["--run", str(stub.runs / "mine"), "--ops", "abs"]
    assert stub.run(*run) == 0
    (stub.tree / "benchmark/test_abs.py").write_text("# changed\n")
    stub.behave("abs", "touch \"$RUN_DIR/ready\"; exec sleep 600")
    driver = stub.start(*run)
    stub.wait_for_attempt("abs")
    stub.wait_for(lambda: stub.marker("abs") is None)       # at its next look, 20 ms later
    driver.kill()
    driver.wait()
    assert stub.marker("abs") is None
    wait_until_gone(stub)


OPS = [f"op{number}" for number in range(9)]


def prepare_nine_ops(stub):
    """Ops that take a while: good ones, a partial, a skipped, a crashing one, one that falls back, one that waits."""
    stub.write_ops(OPS)
    wait = "sleep 0.1\n"
    for op in OPS:
        stub.behave(op, wait)
    stub.behave("op1", wait + "table; test_line failed 'RuntimeError: bad'; finish 1")
    stub.behave("op2", wait + "test_line skipped 'needs SM90'; finish 0")
    stub.behave("op3", wait + "table; setsid sleep 600 & kill -9 $$")
    stub.behave("op4", wait + "refuse_dtype int32")
    stub.behave("op5", wait + "setsid sleep 600 &")
    stub.behave("op8", "while [ ! -e \"$BEHAVE/go\" ]; do sleep 0.05; done")


def test_killed_at_five_moments_and_resumed_gives_the_rows_of_an_undisturbed_run(stub):
    prepare_nine_ops(stub)
    arguments = ["--dtypes", "int32,float16", "--devices", "host:0,host:1"]
    (stub.behaviour / "go").touch()
    assert stub.run("--run", str(stub.runs / "undisturbed"), *arguments) == 1
    (stub.behaviour / "go").unlink()            # no driver gets to the end before the last one
    killed_at = []
    for done in (0, 1, 3, 4, 6):                # after so many outcomes and a little more, wherever that is
        driver = stub.start("--run", str(stub.runs / "disturbed"), *arguments)
        end = time.monotonic() + 30
        while len(stub.statuses(stub.runs / "disturbed")) < done and time.monotonic() < end:
            time.sleep(0.005)
        time.sleep(0.037 * done)
        driver.kill()
        driver.wait()
        killed_at.append(len(stub.statuses(stub.runs / "disturbed")))
    assert killed_at == sorted(killed_at) and killed_at[0] < killed_at[-1] < 9
    (stub.behaviour / "go").touch()
    assert stub.run("--run", str(stub.runs / "disturbed"), *arguments) == 1
    disturbed, undisturbed = (comparable(stub.read_csv("summary.csv", stub.runs / name))
                              for name in ("disturbed", "undisturbed"))
    assert disturbed == undisturbed
    assert len({row[2] for row in undisturbed}) == 9


def test_a_second_screen_in_the_same_directory_is_refused(stub):
    stub.behave("abs", "touch \"$RUN_DIR/ready\"; while [ ! -e \"$BEHAVE/go\" ]; do sleep 0.05; done")
    driver = stub.start("--ops", "abs")
    stub.wait_for_attempt("abs")
    second = subprocess.run([sys.executable, *driver.args[1:]], env=stub.environ(), cwd=stub.folder, capture_output=True,
                            text=True, check=False)
    assert second.returncode == 3
    assert f"is in use by process {driver.pid} on host {os.uname().nodename}" in second.stderr
    (stub.behaviour / "go").touch()
    assert driver.wait(30) == 0
    assert stub.attempts("abs") == ["1"]


def test_two_new_screens_at_once_get_their_own_directories(stub):
    drivers = [subprocess.Popen([sys.executable, ROOT / "run_batch.py", "--fresh"], env=stub.environ(), cwd=stub.folder,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(3)]
    assert [driver.wait(60) for driver in drivers] == [0, 0, 0]
    screens = [path for path in stub.runs.glob("screen-*") if path.is_dir()]
    assert len(screens) == 3
    assert [len(stub.read_csv("summary.csv", screen)) for screen in screens] == [3, 3, 3]


# ---- a full disk

def test_a_marker_that_cannot_be_written_stops_the_screen_and_loses_nothing(stub):
    """As on a full disk: while the last operator ends the kernel begins to take no more of the driver's data."""
    run = stub.runs / "mine"
    stub.behave("abs", FAMILY + "sleep 600")
    stub.behave("add", "while ! ls \"$RUN_DIR\"/../../../abs/attempts/1/ready; do sleep 0.05; done\n" + f"{sys.executable} -c "
                "'import resource, sys; resource.prlimit(int(sys.argv[1]), resource.RLIMIT_FSIZE, (0, -1))' $PPID")
    done = subprocess.run([sys.executable, ROOT / "run_batch.py", "--run", run, "--ops", "abs,add"], env=stub.environ(),
                          cwd=stub.folder, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 3, done.stdout + done.stderr
    assert done.stderr == f"run_batch.py: error: {run}/main/add/.complete: larger than files may become here; " \
        "raise `ulimit -f` and start the same command again\n"
    assert stub.list_processes() == []
    assert "add" not in stub.statuses(run)
    assert [path for path in run.rglob("*.tmp")] == []
    stub.behave("abs", "")
    stub.behave("add", "")
    assert stub.run("--run", str(run), "--ops", "abs,add") == 0
    assert set(stub.statuses(run).values()) == {"ok"}
