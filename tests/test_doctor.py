"""doctor.py through its command line: what it finds on this machine, and the mend of what lacks."""
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def doctor(**environment):
    done = subprocess.run([sys.executable, "doctor.py"], cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, "DEVICES": "host:0", **environment})
    rows = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    return done, rows


def test_machine_that_can_screen():
    done, rows = doctor()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3.6.0" in rows["triton"] and " ok " in rows["triton"]
    assert "host device (host:0)" in rows["devices"]
    assert "the sample tree is used" in rows["upstream main"]


def test_wrong_checkout_is_a_finding_and_not_the_end(tmp_path):
    done, rows = doctor(FLAGGEMS_DIR=str(tmp_path))
    assert done.returncode == 3 and " ok " in rows["disk"]
    assert "lacks" in rows["upstream main"] and str(tmp_path) in rows["upstream main"]
    assert "mend upstream main: unset FLAGGEMS_DIR, or name a checkout" in done.stdout
    assert "GB free" in rows["disk"]


def test_a_place_where_screens_cannot_go_is_said():
    done, rows = doctor(RUNS="/tmp/a?b")
    assert done.returncode == 3 and " lacks " in rows["disk"] and "RUNS: /tmp/a?b: has a `?`, at which the URL" in rows["disk"]


def test_changed_checkout_is_said(tmp_path):
    (tmp_path / "benchmark").mkdir()
    for name in ("conftest.py", "base.py"):
        (tmp_path / "benchmark" / name).touch()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    assert "clean" in doctor(FLAGGEMS_DIR=str(tmp_path))[1]["upstream main"]
    (tmp_path / "benchmark/base.py").write_text("# changed\n")
    assert "1 files changed" in doctor(FLAGGEMS_DIR=str(tmp_path))[1]["upstream main"]


def test_caches_that_are_used_are_named(tmp_path):
    (tmp_path / "runs/.cache/triton/host-0").mkdir(parents=True)
    (tmp_path / "runs/.cache/triton/host-0/kernel.ptx").write_bytes(bytes(3_000_000))
    (tmp_path / "tuned.db").write_bytes(bytes(2_000_000))
    _, rows = doctor(RUNS=str(tmp_path / "runs"), HOME=str(tmp_path / "home"), FLAGGEMS_CACHE_DIR=str(tmp_path))
    assert rows["triton cache"].endswith(
        f"of screens {tmp_path}/runs/.cache/triton: 3 MB; by hand {tmp_path}/home/.triton/cache: empty")
    assert rows["tuner cache"].endswith(f"FLAGGEMS_CACHE_DIR: {tmp_path}: 5 MB")
    assert rows["disk"].endswith(f"GB free in {tmp_path}/runs")
