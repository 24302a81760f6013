"""run_pytest.sh when it is told to stop, or killed: neither it nor its pytest outlives the other."""
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from common.runlog import parse_runlog
from stub_tree import add_benchmark, make_env, make_tree, run_script, script_command, wait_for


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path / "tree")


def list_processes(word):
    """Command lines of live processes that hold `word` in their arguments or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if word.encode() in text and state != "Z":
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


WAITS = """
@pytest.mark.one
def test_one():
    import pathlib, time
    def gems(x, *rest, alpha):
        if x.shape[0] == 32:
            pathlib.Path("waiting").touch()
            time.sleep(600)
        return 0.005
    make("one", gems).run()
"""


def start_waiting(tree, body=WAITS, **changes):
    node = add_benchmark(tree, "one", body)
    changes = {"FLAGGEMS_DIR": tree, "DEVICE": "0", "RUN_DIR": tree / "run", **changes}
    script = subprocess.Popen(script_command("one", node), env=make_env(tree, **changes), cwd=tree, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
    wait_for((tree / "run/waiting").exists)
    return script


@pytest.mark.parametrize("number, status", [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("target", ["script", "group"])
def test_signal_ends_both_and_keeps_the_rows_measured_so_far(tree, number, status, target):
    script = start_waiting(tree)
    (os.kill if target == "script" else os.killpg)(script.pid, number)
    output, _ = script.communicate(timeout=30)
    assert script.returncode == status, output
    assert list_processes(str(tree)) == []
    assert not (tree / "run/exit.json").exists()
    log = parse_runlog(tree / "run/run.log")
    if not (target == "group" and number == signal.SIGHUP):  # pytest itself has no handler for that one
        assert [row.shape.split("]")[0] for row in log.rows if row.status == "SUCCESS"] == [
            "([torch.Size([8, 8", "([torch.Size([16, 16"]  # fmt: skip
        assert [(row.dtype, row.reason) for row in log.rows if row.status == "NOT_MEASURED"] == [
            ("float16", "interrupted: KeyboardInterrupt: SIGTERM"), ("float32", "after interruption of torch.float16")
        ]  # fmt: skip


def test_pytest_that_ignores_the_signal_is_killed_in_the_end(tree):
    body = "def test_one():\n    import pathlib, signal, time\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" \
           "    pathlib.Path('waiting').touch()\n    time.sleep(600)\n"  # fmt: skip
    script = start_waiting(tree, body, KILL_AFTER_S=1)
    script.terminate()
    assert script.wait(timeout=30) == 143
    assert list_processes(str(tree)) == []


def test_pytest_dies_with_a_killed_script(tree):
    script = start_waiting(tree)
    script.kill()
    script.wait(timeout=30)
    wait_for(lambda: list_processes(str(tree)) == [])
    assert not (tree / "run/exit.json").exists()


def test_process_left_behind_does_not_hold_the_run(tree):
    node = add_benchmark(tree, "one", """
        def test_one():
            import subprocess
            print("left:", subprocess.Popen(["sleep", "60"], start_new_session=True).pid)
        """)
    ended = run_script(tree, "one", node, KILL_AFTER_S=50, timeout=30)
    log = (tree / "run/run.log").read_text()
    os.kill(int(re.search(r"left: (\d+)", log)[1]), signal.SIGKILL)
    assert ended.returncode == 0
    assert "still held their output" in log and "pytest_exit: 0" in log
