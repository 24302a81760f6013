"""setup_env.sh, and how make calls it and hands on knobs: when the environment is built, when it stays, when neither."""
import fcntl
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ("core.txt", "host.txt", "test.txt", "torch.txt")
STUB = """#!{python}
import json, os, sys
print(json.dumps([dict(os.environ), sys.argv[1:]]))
"""


def copy_project(folder):
    """The parts of this project that setting up needs, in a folder with an awkward name."""
    project = folder / "a b&[c]'d"
    project.mkdir()
    for name in ("Makefile", "setup_env.sh", "requirements", "common"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, project / name)
    return project


@pytest.fixture
def project(tmp_path):
    return copy_project(tmp_path)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A project whose environment is finished; nothing is required, so that it is quickly made. Tests leave it as it is."""
    project = copy_project(tmp_path_factory.mktemp("built"))
    for name in REQUIREMENTS:
        (project / "requirements" / name).write_text("# nothing\n")
    (project / "run_batch.py").write_text(STUB.format(python=sys.executable))
    assert setup(project).returncode == 0
    return project


@pytest.fixture
def changed(built):
    """`built`, where requirements/core.txt is another one than when the environment was made."""
    path = built / "requirements/core.txt"
    path.write_text("# something else\n")
    yield built
    path.write_text("# nothing\n")


def offline(project, environment):
    """A package index that is one empty folder: fast, and every install fails."""
    return {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(project), "PYTHON": sys.executable, **environment}


def setup(project, *words, **environment):
    return subprocess.run(["./setup_env.sh", *words], cwd=project, capture_output=True, text=True,
                          env=offline(project, environment))


def make(project, *words, **environment):
    return subprocess.run(["make", "--no-print-directory", *words], cwd=project, capture_output=True, text=True,
                          env=offline(project, environment))


def read_marker(project):
    return dict(line.split("=", 1) for line in (project / ".venv/.complete").read_text().splitlines())


# ---- knobs on their way through make

@pytest.mark.parametrize("value", ["(^add$|mm)", "^add$", "$$x$(HOME)${HOME}", "a  b", """it's "so" `ls` \\ ; #""", "$"])
def test_a_knob_is_what_was_typed(built, value):

    for done in (make(built, "screen", f"MATCH={value}"), make(built, "screen", MATCH=value)):
        assert done.returncode == 0, done.stderr
        environ, _ = json.loads(done.stdout)
        assert environ["MATCH"] == value
        assert environ["PYTHON"] == f"{built}/.venv/bin/python"     # of the children: not the one it was built on


def test_paths_in_knobs_reach_scripts_whole(built):
    (built / "batch_summary.py").write_text("import sys; print(sys.argv[1:])")
    done = make(built, "summarize", "RUN=my run", "OUT=$x's")
    assert done.stdout == """['my run', '--out', "$x's"]\n"""


def test_what_lacks_is_named(built):
    done = make(built, "inventory-diff", "OLD=a")
    assert done.returncode == 2 and done.stderr.startswith("make: NEW: missing; give a checkout or an inventory: OLD=")


# ---- the environment

def test_failed_setup_is_not_taken_for_a_finished_one(project):
    venv.create(project / ".venv", with_pip=False)      # what a killed call left
    done = setup(project)
    assert done.returncode == 3
    assert "again: there is no finished one" in done.stdout and "installing torch" in done.stdout and "not built" in done.stderr
    assert not (project / ".venv/.complete").exists()


def test_finished_setup_is_kept_by_whatever_python_is_called(built, tmp_path):
    marker = (built / ".venv/.complete").stat()
    venv.create(tmp_path / "other", with_pip=False)     # another environment of the same Python
    calls = [{}, {"PYTHON": ""}, {"PYTHON": f"{built}/.venv/bin/python"}, {"PYTHON": f"{tmp_path}/other/bin/python"},
             {"PYTHON": "", "PATH": f"{built}/.venv/bin:{os.environ['PATH']}"}]
    for environment in calls:
        done = setup(built, **environment)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), environment
    assert (built / ".venv/.complete").stat() == marker
    assert read_marker(built)["kind"] == "host"


def test_a_changed_requirement_builds_anew_and_says_so(built, project):
    for name in (".venv", "requirements"):
        shutil.copytree(built / name, project / name, symlinks=True, dirs_exist_ok=True)
    before = read_marker(project)
    (project / ".venv/mark").touch()
    (project / "requirements/extras.txt").write_text("# not a part of it\n")
    assert setup(project).stdout == ""
    (project / "requirements/core.txt").write_text("# something else\n")
    # Called with its own Python (an activated shell): that stands for the one it was made with.
    done = setup(project, PYTHON=f"{project}/.venv/bin/python")
    assert done.returncode == 0, done.stderr
    assert f"building {project}/.venv again: requirements/core.txt changed since" in done.stdout
    assert not (project / ".venv/mark").exists() and not (project / ".venv.old").exists()
    after = read_marker(project)
    assert {key for key in before if before[key] != after[key]} == {"core.txt"}


def write_fake_python(path, version):
    """What setup_env.sh asks of a Python, answered by a script that can do nothing else."""
    path.write_text(f"#!/bin/sh\n[ $1 = -c ] && printf '%s\\n' {path} /opt/py /opt/py {path} {version} none\n")
    path.chmod(0o755)
    return str(path)


def test_another_python_builds_anew_and_a_failure_puts_the_old_one_back(built, tmp_path):
    python = write_fake_python(tmp_path / "python3.12", "3.12.1")
    before = read_marker(built)
    done = make(built, "screen", f"PYTHON={python}")
    assert done.returncode == 2 and done.stderr.endswith("Error 3\n")
    version = sys.version.split()[0]
    assert f"again: made with another Python: {before['python']} ({version}), now {python} (3.12.1)" in done.stdout
    assert "not built" in done.stderr and read_marker(built) == before
    assert subprocess.run([built / ".venv/bin/python", "-c", ""]).returncode == 0


@pytest.fixture(params=["by its path", "by a name that is relative"])
def user(built, request):
    """A process that runs from the environment."""
    python = f"{built}/.venv/bin/python" if request.param == "by its path" else ".venv/bin/python"
    code = "import time; print(flush=True); time.sleep(600)"
    process = subprocess.Popen([python, "-c", code], stdout=subprocess.PIPE, cwd=built)
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_a_process_that_runs_from_another_clones_environment_is_no_hindrance(built, tmp_path):
    """Both call it .venv/bin/python. That the building is begun is enough: it fails, as this Python can do nothing."""
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    with subprocess.Popen([".venv/bin/python", "-c", "input()"], stdin=subprocess.PIPE, cwd=tmp_path) as other:
        done = setup(built, PYTHON=write_fake_python(tmp_path / "python3.12", "3.12.1"))
        other.communicate(b"\n")
    assert "runs from it" not in done.stderr and "not built" in done.stderr
    assert f"building {built}/.venv again: made with another Python" in done.stdout


def test_an_environment_in_use_is_neither_built_anew_nor_removed(changed, user, tmp_path):
    link = tmp_path / "link"      # another clone's .venv, say
    link.symlink_to(changed / ".venv")
    for done in (setup(changed), setup(changed, str(link)), setup(changed, "--clean")):
        assert done.returncode == 3
        assert f"process {user.pid} runs from it" in done.stderr
    assert "is to be built again (requirements/core.txt changed since)" in setup(changed).stderr
    assert read_marker(changed)


def test_two_names_of_one_environment_exclude_each_other(changed):
    link = changed.parent / "clone"
    link.symlink_to(changed / ".venv")
    with open(changed / ".venv.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(subprocess.TimeoutExpired):      # it waits
            subprocess.run([changed / "setup_env.sh", link], env=offline(changed, {}), timeout=2)
    assert read_marker(changed)


def test_wrong_calls_are_named(project):
    done = setup(project, PYTHON="/no/such/python")
    assert done.returncode == 2
    assert done.stderr == ("setup_env.sh: error: PYTHON: /no/such/python: is no Python 3.10 to 3.12; "
                           "name one, as in PYTHON=python3.11\n")
    done = setup(project, "--help")
    assert done.returncode == 0 and done.stdout.startswith("setup_env.sh - make the Python environment")
    assert setup(project, "--fresh").returncode == 2
    for words in (["common"], ["--clean", "common"]):   # what is there is no environment, and stays
        done = setup(project, *words)
        assert done.returncode == 2 and f"VENV: {project}/common: is no virtual environment" in done.stderr
    assert (project / "common/errors.py").exists() and not (project / ".venv").exists()


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
    assert read_marker(project)["kind"] == "vendor"
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


def test_a_python_that_sees_an_accelerator_takes_over(built, tmp_path):
    venv.create(tmp_path / "image", with_pip=False)
    write_stub_torch(next((tmp_path / "image/lib").glob("python3*")) / "site-packages/stubs")
    (next((tmp_path / "image/lib").glob("python3*")) / "site-packages/stubs.pth").write_text("stubs\n")
    own = tmp_path / "own"
    shutil.copytree(built / ".venv", own, symlinks=True)
    path = f"{tmp_path}/image/bin:{os.environ['PATH']}"
    done = setup(built, str(own), PYTHON="", PATH=path)
    assert f"building {own} again: made with " in done.stdout
    assert f"and now {tmp_path}/image/bin/python3 sees an accelerator" in done.stdout
    assert done.returncode == 0 and "kind=vendor" in (own / ".complete").read_text()
    done = setup(built, str(own), PYTHON="")     # the nightly's PATH names another Python, which sees none: no reason
    assert (done.returncode, done.stdout) == (0, "")
