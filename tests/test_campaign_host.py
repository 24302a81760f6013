"""A real campaign on the host device: rand of the sample tree, really compiled in three cells, killed once, once with a parent
killed, sealed, verified."""
import json
import os
import subprocess
import sys

import pytest

from harness import FOREIGN, copy_project, wait_for

ONE_TASK = """  - task: rand
    op: rand
    dtypes: [float16]
    canary: reduction
    correctness: {nodes: ["tests/test_rand.py::test_accuracy_rand[dtype0]"], reason: float16 is what is measured}
"""

# off's parent is killed while it runs pytest in a fork
SITE = """
import os, runpy, sys, time
def run_module(*_, **__):
    print("hash seed", os.environ["PYTHONHASHSEED"], flush=True)
    os.kill(os.getppid(), 9)
    time.sleep(100)
if "MINI_BREAK_OFF" in os.environ and "server.py" in " ".join(sys.orig_argv) and os.environ["WARM_SERVE"].endswith("-off"):
    runpy.run_module = run_module
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The sealed run; its driver was killed while round a's first step ran, and off's parent when that ran again."""
    folder, project = tmp_path_factory.mktemp("host"), copy_project()
    text = (project / "campaign" / "manifests" / "host_rlc.yaml").read_text()
    (folder / "m.yaml").write_text(text[:text.index("  - task: rand")] + ONE_TASK)
    environ = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)} | {
        "PYTHON": sys.executable, "PYTHONHASHSEED": "7", "PYTHONPATH": str(folder)}
    (folder / "sitecustomize.py").write_text(SITE)
    command = [sys.executable, project / "campaign" / "run.py", folder / "m.yaml", "--run", folder / "run",
               "--frozen", folder / "frozen"]
    driver = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, start_new_session=True)
    wait_for(lambda: (folder / "run/tasks/rand/a1/off/attempts/1/run.log").exists() or driver.poll() is not None, seconds=300)
    driver.kill()       # at once: a warm step takes a second
    driver.wait()
    done = subprocess.run(command, env=environ | {"MINI_BREAK_OFF": "1"}, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("rand/a1/off: its warm parent ended; once more, as a plain process\n") == 1
    return folder / "run"


def test_the_reduction_is_real_and_without_times_untrusted(run):
    assert (run / "matrix.csv").read_text().splitlines()[1] == (
        "1,rand,X,no-timing,rand,float16,reduction,4,4,0,4,0,0,,,,,,passed,passed,passed")


def test_killed_attempts_are_kept_and_another_one_counts(run):
    assert sorted(path.name for path in (run / "tasks/rand/a1/off/attempts").iterdir()) == ["1", "2", "3"]
    assert not any((run / f"tasks/rand/a1/off/attempts/{number}/exit.json").exists() for number in (1, 2))
    assert '"attempt": 3' in (run / "tasks/rand/a1/off/.complete").read_text()
    assert not list(run.rglob("cache"))


def test_every_step_was_warm_but_for_the_one_whose_parent_was_killed(run):
    markers = run.glob("tasks/*/*/*/.complete")
    warm = {str(path.parent.relative_to(run / "tasks")): json.loads(path.read_text())["warm"] for path in markers}
    assert warm == {
        "rand/record/off": True, "rand/tests/off": True, "rand/tests/mask0": True, "rand/tests/candidate": True,
        "rand/a1/off": False, "rand/a1/mask0": True, "rand/a1/candidate": True}
    assert "warm: the parent of this process ended" in (run / "tasks/rand/a1/off/attempts/2/run.log").read_text()
    assert not (run / ".warm").exists()


def test_the_callers_hash_seed_reaches_no_step(run):
    assert "\nhash seed 0\n" in (run / "tasks/rand/a1/off/attempts/2/run.log").read_text()


def test_it_verifies(run):
    tool = copy_project() / "campaign" / "verify.py"
    done = subprocess.run([sys.executable, tool, run], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_command_of_a_step_runs_that_cell_again(run, tmp_path):
    command = (run / "tasks/rand/a1/candidate/command.txt").read_text().replace("/tmp/one-cell", str(tmp_path / "cell"))
    done = subprocess.run(["bash", "-c", command], cwd=copy_project(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    first = next((run / "tasks/rand/a1/candidate/attempts").iterdir())
    assert (tmp_path / "cell" / "index.tsv").read_text() == (first / "index.tsv").read_text()
