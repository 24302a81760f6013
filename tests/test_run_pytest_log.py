"""run_pytest.sh: what reaches run.log and the terminal, whatever is printed and whoever stops reading."""
import os
import re
import subprocess
import sys

import pytest

from common.runlog import parse_runlog
from stub_tree import PASSES, add_benchmark, make_env, make_tree, read_log, run_script, script_command, wait_for


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path / "tree")


CODES = r"""
def test_one():
    print("\033[31mred\033[0m \033[1;38;5;9mbold\033[m end")
    print("\033]8;;http://example.com\033\\link\033]8;;\033\\ \033]0;title\007after")
    print("\033[2K\033[1A\033[?25lcursor\033(B\033=")
    print(" 10%|#   |\r 50%|##  |\r100%|####|\r")
    print("bell\a null\0 back\b tab\tkept umlaut \u00fc \u4e2d")
    print("windows\r\nline")
"""
CLEAN = ["red bold end", "link after", "cursor", "100%|####|", "bell null back tab\tkept umlaut ü 中", "windows", "line"]


def test_log_is_free_of_codes_while_a_coloured_terminal_keeps_them(tree):
    node = add_benchmark(tree, "one", CODES)
    plain = run_script(tree, "one", node)
    coloured = run_script(tree, "one", node, FORCE_COLOR=1)
    assert "\033" not in plain.stdout and "\033[31mred" in coloured.stdout
    for log in (read_log(tree / "run"), read_log(tree / "run-2")):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", log)
        lines = log.splitlines()
        start = next(i for i, line in enumerate(lines) if line.endswith("red bold end"))
        lines[start] = "red bold end"  # pytest's progress stands before it
        assert lines[start : start + len(CLEAN)] == CLEAN


def test_log_is_complete_when_the_reader_goes_away(tree):
    node = add_benchmark(tree, "one", "def test_one():\n    for n in range(3000): print('line', n)")
    for colour in (None, "1"):
        env = make_env(tree, FLAGGEMS_DIR=tree, DEVICE="0", RUN_DIR=tree / f"run{colour}", FORCE_COLOR=colour)
        command = ["bash", "-c", '"$@" | head -1; exit "${PIPESTATUS[0]}"', "-", *script_command("one", node)]
        ended = subprocess.run(command, env=env, cwd=tree, text=True, capture_output=True, timeout=60)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == f"run directory: {tree}/run{colour}\n"
        log = read_log(tree / f"run{colour}")
        assert "\nline 2999\n" in log and parse_runlog(log).footer["pytest_exit"] == "0"


def test_rows_reach_the_log_while_the_run_goes_on(tree):
    node = add_benchmark(tree, "one", """
        def test_one():
            print("first table")
            import time; time.sleep(60)
        """)
    env = make_env(tree, FLAGGEMS_DIR=tree, DEVICE="0", RUN_DIR=tree / "run")
    with subprocess.Popen(script_command("one", node), env=env, cwd=tree, stdout=subprocess.DEVNULL) as script:
        wait_for(lambda: (tree / "run/run.log").is_file() and "first table\n" in read_log(tree / "run"))
        script.terminate()
    assert script.returncode == 143


def test_log_that_cannot_be_written_is_an_error_of_the_environment(tree):
    node = add_benchmark(tree, "one", "def test_one():\n    for n in range(9000): print('line', n)")
    env = make_env(tree, FLAGGEMS_DIR=tree, DEVICE="0", RUN_DIR=tree / "run")
    # A limit of 16 blocks of 512 bytes on any file stands for a full disk.
    command = ["bash", "-c", 'ulimit -S -f 16; trap "" XFSZ; exec "$@"', "-", *script_command("one", node)]
    ended = subprocess.run(command, env=env, cwd=tree, text=True, capture_output=True, timeout=60)
    assert ended.returncode == 3
    assert f"{tree}/run/run.log" in ended.stderr and "free some space" in ended.stderr
    assert not (tree / "run/exit.json").exists()


def test_log_with_a_hole_in_it_is_an_error_too(tree, tmp_path):
    """The log could be written at both ends, but not in between."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/bash\n[[ "$*" != *log_pipe.py* ]] || {{ cat > /dev/null; exit 1; }}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    node = add_benchmark(tree, "one", PASSES)
    ended = run_script(tree, "one", node, PYTHON=python)
    assert ended.returncode == 3 and "was not written to its end" in ended.stderr
    assert not (tree / "run/exit.json").exists()


def test_terminal_has_colour_and_the_log_none(tree):
    node = add_benchmark(tree, "one", PASSES)
    env = make_env(tree, FLAGGEMS_DIR=tree, DEVICE="0", RUN_DIR=tree / "run", TERM="xterm")
    master, slave = os.openpty()
    with subprocess.Popen(script_command("one", node), env=env, cwd=tree, stdout=slave, start_new_session=True) as script:
        os.close(slave)
        screen = b""
        while chunk := read_terminal(master):
            screen += chunk
    assert script.returncode == 0
    assert b"\033[32mSUCCESS\033[0m  " in screen and screen.startswith(b"run directory: ")
    assert "\nSUCCESS   " in read_log(tree / "run") and "\033" not in read_log(tree / "run")


def read_terminal(master):
    try:
        return os.read(master, 65536)
    except OSError:  # how Linux says that the other end is closed
        return b""
