"""The repository itself: what a fresh clone gets, whatever the caller's git and Python are like."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "core.autocrlf=true"]


def git(cwd, *words):
    return subprocess.run([*GIT, *words], cwd=cwd, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("name", ["manifest.yaml", "matrix.csv", "receipt.json", "a.py", "a.sh", "Makefile", "index.tsv", "a.ttgir"])
def test_crlf_is_checked_out_as_lf(tmp_path, name):
    repository, clone = tmp_path / "r", tmp_path / "c"
    repository.mkdir()
    git(repository, "init", "-q")
    shutil.copy(ROOT / ".gitattributes", repository)
    (repository / name).write_bytes(b"one\r\ntwo\r\n")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "a file with CRLF")
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    assert (clone / name).read_bytes() == b"one\ntwo\n"


def make(*words, cwd=ROOT, **environment):
    return subprocess.run(["make", "--no-print-directory", *words], cwd=cwd, capture_output=True, text=True,
                          env={**os.environ, **environment})


def test_make_alone_prints_help():
    done = make()
    assert done.returncode == 0
    assert "make screen" in done.stdout and "make test" in done.stdout


def test_unknown_knob_is_an_error():
    done = make("screen", "OP=abs")
    assert done.returncode == 2
    assert "OP: no such knob" in done.stderr


@pytest.fixture
def project(tmp_path):
    """setup_env.sh with a package index that is one empty folder: fast, and every install fails."""
    for name in ("setup_env.sh", "requirements", "common"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    return tmp_path


def setup(project, **environment):
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(project), "PYTHON": sys.executable}
    return subprocess.run(["./setup_env.sh"], cwd=project, capture_output=True, text=True,
                          env={**os.environ, **offline, **environment})


def test_failed_setup_is_not_taken_for_a_finished_one(project):
    for _ in range(2):  # the second call starts anew instead of believing the half-made .venv
        done = setup(project)
        assert done.returncode == 3
        assert "not built" in done.stderr
        assert (project / ".venv/bin/python").exists() and not (project / ".venv/.complete").exists()


def test_finished_setup_is_kept_and_a_changed_pin_builds_anew(project):
    for name in ("core.txt", "host.txt", "test.txt", "torch.txt"):
        (project / "requirements" / name).write_text("# nothing\n")
    assert setup(project).returncode == 0
    built = (project / ".venv/.complete").read_text()
    (project / ".venv/mark").touch()
    assert setup(project).returncode == 0 and (project / ".venv/mark").exists()
    (project / "requirements/core.txt").write_text("# something else\n")
    assert setup(project).returncode == 0 and not (project / ".venv/mark").exists()
    assert (project / ".venv/.complete").read_text() != built


def test_wrong_python_is_named(project):
    done = setup(project, PYTHON="/no/such/python")
    assert done.returncode == 2
    assert done.stderr == "setup_env.sh: error: PYTHON: /no/such/python: is no Python 3.10 to 3.12; name one, as in PYTHON=python3.11\n"


STUB_TORCH = """
class cuda:
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    get_device_name = staticmethod(lambda number: "NVIDIA H200")
"""


def write_stub_torch(folder):
    """A site directory with a torch that sees an accelerator, and a rich: what a vendor image brings."""
    for name, text in {"torch": STUB_TORCH, "triton": "", "flag_gems": "", "rich": ""}.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(text)
    return str(folder)


def test_vendor_image_gets_only_what_lacks(project):
    (project / "requirements/core.txt").write_text("rich==14.2.0\n")
    done = setup(project, PYTHONPATH=write_stub_torch(project / "site"))
    assert done.returncode == 0, done.stderr
    assert "kind=vendor" in (project / ".venv/.complete").read_text()
    assert "include-system-site-packages = true" in (project / ".venv/pyvenv.cfg").read_text()
    assert "installing" not in done.stdout
    # This test's Python is a virtual environment, as on many images: what lies in it must be seen.
    place = subprocess.run([str(project / ".venv/bin/python"), "-c", "import pytest; print(pytest.__file__)"],
                           capture_output=True, text=True)
    assert place.stdout.strip() == pytest.__file__
    (project / "requirements/core.txt").write_text("rich==14.2.0\nno_such_package==1.0\n")
    done = setup(project, PYTHONPATH=str(project / "site"))
    assert done.returncode == 3
    assert "installing what lacks" in done.stdout and "no_such_package==1.0" in done.stdout
    assert "rich" not in done.stdout
