"""common/log_pipe.py: what reaches run.log and the terminal (the whole way is in test_run_pytest.py)."""
import os
import subprocess
import sys

import pytest

from stub_tree import ROOT

MARK = "\x1eend 1 2"
ROW = b"SUCCESS               0.006000            0.005000               1.200          [torch.Size([8, 8])]\n"


def pipe(tmp_path, data, colour="", stdout=subprocess.PIPE):
    """(exit status, stdout, stderr, run.log) for `data` on stdin."""
    command = [sys.executable, "-I", "-S", ROOT / "common/log_pipe.py", tmp_path / "run.log", MARK, colour]
    ended = subprocess.run(command, input=data, stdout=stdout, stderr=subprocess.PIPE, timeout=60)
    return ended.returncode, ended.stdout, ended.stderr, (tmp_path / "run.log").read_bytes()


@pytest.mark.parametrize("data, log", [
    (b"", b""), (b"a\nb", b"a\nb\n"), (b"a\n" + MARK.encode(), b"a\n"), (b"a" + MARK.encode() + b"late\n", b"a\n"),
    (b"\x1eend 1 1\nx \x1e", b"end 1 1\nx \n"), (b"\n\n\r\n", b"\n\n\n"),
    (b" 10%\r 50%\r100%\r\n\x1b[31mred\x1b[0m\x07\n", b"100%\nred\n")])
def test_text_up_to_the_mark_is_kept_without_codes(tmp_path, data, log):
    code, plain, _, written = pipe(tmp_path, data)
    assert (code, written, plain) == (0, log, log)


def test_mark_is_found_across_reads_and_a_terminal_gets_the_bytes(tmp_path):
    data = b"\x1b[1m" + b"x" * ((1 << 16) - 8) + MARK.encode()
    assert pipe(tmp_path, data, "1")[:2] == (0, data.removesuffix(MARK.encode()))


def test_mark_that_comes_after_the_end_is_nobodys_output(tmp_path):
    """The script writes the mark without knowing whether the pipe has ended by itself."""
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-I", "-S", ROOT / "common/log_pipe.py", tmp_path / "run.log", MARK, ""]
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reading, True)
    (tmp_path / "pipe").write_bytes(b"a\n")
    with subprocess.Popen(command, stdin=reading, stdout=subprocess.PIPE) as process:
        (tmp_path / "pipe").write_bytes(MARK.encode())
        assert process.communicate(timeout=60)[0] == b"a\n"
    os.close(reading)


def test_holder_of_the_pipe_is_named_and_not_waited_for(tmp_path):
    command = [sys.executable, "-I", "-S", ROOT / "common/log_pipe.py", tmp_path / "run.log", MARK, ""]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(b"a\n" + MARK.encode())
        process.stdin.flush()
        assert process.wait(timeout=60) == 0
    said = "run_pytest.sh: a process that the tests left behind still held their output\n"
    assert (tmp_path / "run.log").read_text() == f"a\n{said}"


def test_log_has_an_end_but_keeps_the_tables(tmp_path):
    noise = (b"x" * 99 + b"\n") * 10_000
    code, plain, _, log = pipe(tmp_path, ROW + noise * 100 + ROW + MARK.encode())
    assert code == 0 and plain == log and len(log) < (64 << 20) + 1000
    assert log.startswith(ROW) and log.endswith(
        b"x\nrun_pytest.sh: run.log is full (64 MiB): from here on it has only the lines of benchmark tables\n" + ROW)


def test_one_endless_line_has_an_end_too(tmp_path):
    code, _, _, log = pipe(tmp_path, b"." * (70 << 20) + b"\n" + ROW)
    assert code == 0 and len(log) < (65 << 20)
    full = b"run_pytest.sh: run.log is full (64 MiB): from here on it has only the lines of benchmark tables\n"
    assert log.endswith(b".\n" + full + ROW)


def test_what_cannot_be_written_is_said_and_the_rest_is_written(tmp_path):
    with open("/dev/full", "wb") as full:
        code, _, stderr, log = pipe(tmp_path, b"a\nb\n", stdout=full)
    assert (code, stderr, log) == (1, b"stdout: No space left on device\n", b"a\nb\n")
