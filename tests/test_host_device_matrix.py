"""matrix.py: what it refuses, and that the list of passed versions follows what was seen.

The environments are stand-ins whose `python` only exits with a given status: pip and the checks themselves need a
network and minutes. The script, its list and its exit status are real.
"""
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def project(tmp_path):
    """A copy of the project's part that matrix.py touches; passed.json lists 3.6.0 and the release 5.0.2."""
    shutil.copytree(ROOT / "plugins/host_device", tmp_path / "plugins/host_device")
    passed = {"schema": 1, "passed": [{"triton": "3.6.0", "flag_gems": "5.0.2"}]}
    (tmp_path / "plugins/host_device/passed.json").write_text(json.dumps(passed))
    return tmp_path


def add_environment(project, pair, status):
    python = project / "runs/host-matrix" / pair / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho ran with $1\nexit {status}\n")
    python.chmod(0o755)
    (project / "runs/host-matrix" / pair / "installed").touch()


def run_matrix(project, *args):
    command = [sys.executable, project / "plugins/host_device/matrix.py", *args]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)


def read_passed(project):
    record = json.loads((project / "plugins/host_device/passed.json").read_text())
    assert record["schema"] == 1
    return [(entry["triton"], entry["flag_gems"]) for entry in record["passed"]]


def test_pair_that_passes_is_listed(project):
    add_environment(project, "3.7.0-5.0.2", 0)
    ended = run_matrix(project, "--pair", "3.7.0:5.0.2")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert read_passed(project) == [("3.6.0", "5.0.2"), ("3.7.0", "5.0.2")]
    assert ended.stdout.splitlines()[1].split() == ["3.7.0", "5.0.2", "ok", "-", "passed"]


def test_new_pair_that_fails_is_not_listed_and_is_no_error(project):
    add_environment(project, "3.9.0-5.0.2", 1)
    ended = run_matrix(project, "--pair", "3.9.0:5.0.2")
    assert ended.returncode == 0
    assert read_passed(project) == [("3.6.0", "5.0.2")]
    log = project / "runs/host-matrix/3.9.0-5.0.2"
    assert ended.stdout.splitlines()[1].split() == ["3.9.0", "5.0.2", "exit", "1", "-", "failed,", "see", str(log)]
    assert "ran with" in (log / "check.log").read_text()


def test_listed_pair_that_fails_is_taken_off_and_is_an_error(project):
    add_environment(project, "3.6.0-5.0.2", 1)
    ended = run_matrix(project, "--pair", "3.6.0:5.0.2")
    assert ended.returncode == 1
    assert read_passed(project) == []


def test_checkout_is_named_by_its_commit(project):
    source = project / "tree/src/flag_gems"
    source.mkdir(parents=True)
    (source / "__init__.py").write_text("from flag_gems._version import version as __version__\n")
    git = ["git", "-C", str(project / "tree"), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    for pair in ("3.6.0-5.0.2", f"3.6.0-git-{commit}"):
        add_environment(project, pair, 0)
    ended = run_matrix(project, "--pair", "3.6.0:5.0.2", "--tree", project / "tree")
    assert ended.returncode == 0, ended.stderr
    assert read_passed(project) == [("3.6.0", "5.0.2"), ("3.6.0", f"git:{commit}")]


@pytest.mark.parametrize(
    "args, message",
    [
        (["--pair", "3.7.0"], "argument --pair: '3.7.0' is no TRITON:FLAG_GEMS, as 3.6.0:5.0.2"),
        (["--tree", "/nowhere"], "--tree: /nowhere: no src/flag_gems in it; give the root of a FlagGems checkout"),
    ],
)
def test_bad_arguments(project, args, message):
    ended = run_matrix(project, *args)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == f"matrix.py: error: {message}"
    assert read_passed(project) == [("3.6.0", "5.0.2")]


def test_broken_list_is_named(project):
    (project / "plugins/host_device/passed.json").write_text("{")
    ended = run_matrix(project, "--pair", "3.7.0:5.0.2")
    assert ended.returncode == 3
    path = project / "plugins/host_device/passed.json"
    assert ended.stderr.startswith(f"matrix.py: error: {path}: not a list of passed versions (")
