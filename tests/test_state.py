"""common/state.py and common/errors.py: what a crash, a second process or a full disk may not do."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from common import state
from common.errors import UserError

ROOT = Path(__file__).resolve().parent.parent


def run_python(script, *arguments, cwd=None):
    """A Python process that can import common; its CompletedProcess."""
    return subprocess.run([sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)], capture_output=True,
                          text=True, check=False, cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_text_is_written_as_it_is(tmp_path):
    state.write_text_atomic(tmp_path / "a", "ü\r\nb\n")
    assert (tmp_path / "a").read_bytes() == b"\xc3\xbc\r\nb\n"
    assert os.listdir(tmp_path) == ["a"]


def test_json_has_one_form(tmp_path):
    state.write_json_atomic(tmp_path / "a", {"b": [1], "a": "é"})
    assert (tmp_path / "a").read_text() == '{\n "a": "é",\n "b": [\n  1\n ]\n}\n'


@pytest.mark.parametrize("limit", [0, 4096])
def test_a_write_that_fails_leaves_the_old_content_and_no_temporary_file(tmp_path, limit):
    """As on a full disk: the kernel takes nothing, or only the beginning."""
    (tmp_path / "a").write_text("old")
    done = run_python("""
        import resource, sys
        from common.errors import run_main
        from common.state import write_text_atomic
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
        run_main(lambda argv: write_text_atomic(argv[0], "new" * 10000))
    """, tmp_path / "a", limit)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (f"-c: error: {tmp_path}/a: larger than files may become here; "
                           "raise `ulimit -f` and start the same command again\n")
    assert (tmp_path / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    writers = [subprocess.Popen([sys.executable, "-c", textwrap.dedent("""
        import sys
        from common.state import write_text_atomic
        for _ in range(50):
            write_text_atomic(sys.argv[1], sys.argv[2] * 50_000)
    """), tmp_path / "a", letter], env={**os.environ, "PYTHONPATH": str(ROOT)}) for letter in "xyz"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert (tmp_path / "a").read_text() in ("x" * 50_000, "y" * 50_000, "z" * 50_000)
    assert os.listdir(tmp_path) == ["a"]


def test_a_writer_killed_at_any_moment_leaves_old_or_new(tmp_path):
    target = tmp_path / "a"
    state.write_text_atomic(target, "0" * 100_000)
    script = """
        import itertools, sys
        from common.state import write_text_atomic
        print("go", flush=True)
        for number in itertools.count():
            write_text_atomic(sys.argv[1], str(number % 10) * 100_000)
    """
    for delay in (0.0, 0.003, 0.011, 0.05):
        writer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script), str(target)], stdout=subprocess.PIPE,
                                  env={**os.environ, "PYTHONPATH": str(ROOT)})
        writer.stdout.readline()
        try:
            writer.wait(delay)
        except subprocess.TimeoutExpired:
            writer.send_signal(signal.SIGKILL)
        writer.communicate()
        text = target.read_text()
        assert len(text) == 100_000 and len(set(text)) == 1


@pytest.mark.parametrize("content", [
    "", "{", '{"schema": 1, "sta', "[1]", '{"schema": 2, "status": "ok"}', "\xff",
    '{"schema": 1, "status": "ok", "seconds": NaN}', '{"schema": 1, "status": "ok", "seconds": -5}'])
def test_a_marker_that_cannot_be_trusted_is_none(tmp_path, content):
    (tmp_path / ".complete").write_text(content, encoding="latin-1")
    assert state.read_marker(tmp_path) is None


def test_marker_round_trip(tmp_path):
    assert state.read_marker(tmp_path) is None
    state.write_marker(tmp_path, "ok", "ab12", attempt=2)
    marker = state.read_marker(tmp_path)
    assert marker.pop("finished").endswith("Z")
    assert marker == {"schema": 1, "status": "ok", "inputs_sha256": "ab12", "attempt": 2}
    state.remove_marker(tmp_path)
    state.remove_marker(tmp_path)
    assert state.read_marker(tmp_path) is None


def test_claimants_of_one_directory_all_get_their_own(tmp_path):
    script = "import sys; from common.state import claim_directory; print(claim_directory(sys.argv[1]))"
    claimants = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "new" / "run")], stdout=subprocess.PIPE,
                                  text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}) for _ in range(6)]
    got = sorted(each.communicate()[0].strip() for each in claimants)
    base = str(tmp_path / "new" / "run")
    assert got == [base] + [f"{base}-{number}" for number in range(2, 7)]


def test_link_latest_replaces_a_link_and_nothing_else(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        state.link_latest(tmp_path / "latest", tmp_path / name)
    assert os.readlink(tmp_path / "latest") == "b"
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").mkdir()
    with pytest.raises(UserError, match="latest: is no link"):
        state.link_latest(tmp_path / "latest", tmp_path / "a")


def test_a_lock_names_its_holder_and_goes_with_it(tmp_path):
    script = """
        import subprocess, sys
        from common.state import hold_lock
        with hold_lock(sys.argv[1], "the screen"):
            subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)      # a child does not keep it
            print("held", flush=True)
            sys.stdin.read()
    """
    lock = tmp_path / "screen.lock"
    holder = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script), str(lock)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True)
    try:
        holder.stdout.readline()
        host = os.uname().nodename
        with pytest.raises(UserError, match=f"the screen is in use by process {holder.pid} on host {host}") as caught:
            with state.hold_lock(lock, "the screen"):
                pass
        assert caught.value.code == 3
        holder.kill()
        holder.wait()
        with state.hold_lock(lock, "the screen"):
            assert json.loads(lock.read_text())["pid"] == os.getpid()
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.communicate()


def test_digests(tmp_path):
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    (tmp_path / "a.py").write_text("abc")
    assert state.sha256_text("abc") == state.sha256_text(b"abc") == state.sha256_file(tmp_path / "a.py") == abc
    assert state.canonical_json({"b": 1, "a": ["é"]}) == '{"a":["é"],"b":1}'
    assert state.sha256_json({"b": 1, "a": 2}) == state.sha256_json({"a": 2, "b": 1})


def test_a_tree_digest_sees_names_contents_and_absence(tmp_path):
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    before = state.sha256_tree(tmp_path, ["a", "b"])
    assert state.sha256_tree(tmp_path, ["b", "a"]) == before
    assert state.sha256_tree(tmp_path, ["a"]) != before
    missing = state.sha256_tree(tmp_path, ["a", "b", "c"])
    (tmp_path / "c").write_text("")
    assert len({before, missing, state.sha256_tree(tmp_path, ["a", "b", "c"])}) == 3
    (tmp_path / "a").write_text("2")
    (tmp_path / "b").write_text("1")
    assert state.sha256_tree(tmp_path, ["a", "b"]) != before


@pytest.mark.parametrize("body, code, stderr", [
    ("return None", 0, ""),
    ("return 1", 1, ""),
    ("raise UserError('OPS: foo: unknown')", 2, "-c: error: OPS: foo: unknown\n"),
    ("raise UserError('OPS: foo: unknown', 4)", 4, "-c: error: OPS: foo: unknown\n"),
    ("raise KeyboardInterrupt", 130, "-c: error: interrupted\n"),
    ("open('/dev/full', 'w').write('x' * 100000)", 3,
     "-c: error: no space left on the device; free some and start the same command again\n"),
    ("print('x' * 100000)\n    raise BrokenPipeError", 1, ""),
])
def test_how_a_script_ends(body, code, stderr):
    done = run_python(f"from common.errors import UserError, run_main\ndef main(argv):\n    {body}\nrun_main(main)\n")
    assert (done.returncode, done.stderr) == (code, stderr)


def test_a_programming_error_keeps_its_traceback():
    done = run_python("from common.errors import run_main\ndef main(argv):\n    return {}['x']\nrun_main(main)\n")
    assert done.returncode == 1 and "KeyError: 'x'" in done.stderr
