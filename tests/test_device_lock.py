"""common/device_lock.py: two users of one physical device at once are excluded, whatever each calls it."""

import json
import os
import stat
import subprocess
import sys

import pytest

from screen_stub import ROOT, StubScreen

# Two cards; a name of one may be cut, as CUDA allows it.
TORCH = """
import os, types
UUIDS = ["5f2c0a11-0000-4000-8000-000000000000", "77aa0b22-0000-4000-8000-000000000000"]
def find(name):
    name = name.strip().lower()
    found = [n for n, uuid in enumerate(UUIDS) if name == str(n) or name.startswith("gpu-") and uuid.startswith(name[4:])]
    return found[0] if found else None
seen = [find(name) for name in os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")]
cuda = types.SimpleNamespace(
    is_available=lambda: None not in seen, device_count=lambda: len(seen), get_device_name=lambda n: "NVIDIA H200",
    get_device_properties=lambda n: types.SimpleNamespace(uuid=UUIDS[seen[n]]))
"""
HOLD = 'touch "$RUN_DIR/ready"; while [ ! -e "$BEHAVE/go" ]; do sleep 0.05; done'
HELPER = [sys.executable, str(ROOT / "common/device_lock.py")]


@pytest.fixture
def stub(tmp_path):
    screen = StubScreen(tmp_path, ops=("abs",))
    (tmp_path / "torch.py").write_text(TORCH)
    yield screen
    screen.end_processes()


def card(stub, name, **more):
    return {"PYTHONPATH": stub.folder, "DEVICES": name, "GEMSCREEN_LOCKS": stub.folder, **more}


@pytest.fixture
def held(stub):
    """The driver of a screen that holds card 0."""
    stub.behave("abs", HOLD)
    driver = stub.start(**card(stub, "0"))
    stub.wait_for_attempt("abs")
    yield driver
    (stub.behaviour / "go").touch()
    assert driver.wait(30) == 0


def second_screen(stub, name):
    return subprocess.run([sys.executable, ROOT / "run_batch.py", "--run", stub.folder / "other"], text=True, capture_output=True,
                          env=stub.environ(**card(stub, name)), cwd=stub.folder, check=False)


@pytest.mark.parametrize("name", ["0", "00", "GPU-5f2c0a11", "1,0"])
def test_a_second_screen_on_the_same_card_is_refused(stub, held, name):
    done = second_screen(stub, name)
    assert done.returncode == 3
    last = {"00": "0", "1,0": "0"}.get(name, name)
    holder = f"process {held.pid} on host {os.uname().nodename}, directory {stub.latest} since "
    assert f"device {last} is in use by {holder}" in done.stderr
    assert "select other devices: DEVICES=" in done.stderr
    assert not (stub.folder / "other").exists()


def test_another_card_is_free_and_so_is_the_host_device(stub, held):
    lock = stub.folder / "gemscreen-device-5f2c0a11-0000-4000-8000-000000000000.lock"
    assert stat.S_IMODE(lock.stat().st_mode) == 0o666        # another user's process has to be able to ask
    assert json.loads(lock.read_text())["pid"] == held.pid
    (stub.behaviour / "go").touch()
    assert second_screen(stub, "1").returncode == 0
    assert second_screen(stub, "host:0").returncode == 0


def test_the_lock_goes_with_its_holder(stub):
    stub.behave("abs", HOLD)
    driver = stub.start(**card(stub, "0"))
    stub.wait_for_attempt("abs")
    driver.kill()
    driver.wait()
    (stub.behaviour / "go").touch()
    assert second_screen(stub, "0").returncode == 0


def run_command(stub, command, name="0", **more):
    return subprocess.run([*HELPER, *command], env=stub.environ(**card(stub, name, **more)), text=True, capture_output=True,
                          cwd=stub.folder, check=False)


def test_a_command_holds_one_device_and_sees_it_alone(stub):
    show = ["sh", "-c", 'echo "$DEVICE $DEVICES $CUDA_VISIBLE_DEVICES $GEMSCREEN_HELD"']
    done = run_command(stub, show, "1,0")
    assert done.stdout == "1 1 1 77aa0b22-0000-4000-8000-000000000000\n"
    nested = run_command(stub, [*HELPER, *show], "1,0")       # a child of the holder is not refused
    assert nested.stdout == done.stdout
    assert run_command(stub, ["sh", "-c", "exit 7"]).returncode == 7
    assert run_command(stub, show, "host:1").stdout == "host:1 host:1  \n"


def test_a_command_is_refused_where_a_screen_runs(stub, held):
    done = run_command(stub, ["echo", "ran"])
    assert (done.returncode, done.stdout) == (3, "") and f"device 0 is in use by process {held.pid}" in done.stderr


def test_one_card_by_two_names_is_refused(stub):
    for names, said in (("03,3", "DEVICES: 3: named twice"), ("0,GPU-5f2c0a11", "DEVICES: GPU-5f2c0a11: is the same card as 0")):
        done = second_screen(stub, names)
        assert done.returncode == 2 and said in done.stderr


def test_an_ab_test_is_refused_where_a_screen_runs(stub, held):
    env = stub.environ(**card(stub, "0", SWITCH="SW", OPS="abs", REPO="main", RUN=stub.folder / "ab"))
    done = subprocess.run([ROOT / "ab_test.sh"], env=env, text=True, capture_output=True, cwd=stub.folder, check=False)
    assert done.returncode == 3 and f"device 0 is in use by process {held.pid}" in done.stderr
    assert not (stub.folder / "ab").exists()


def test_an_aa_study_is_refused_where_a_screen_runs(stub, held):
    env = stub.environ(**card(stub, "0", OPS="abs", REPO="main", RUN=stub.folder / "aa"))
    done = subprocess.run([sys.executable, ROOT / "aa_study.py"], env=env, text=True, capture_output=True, cwd=stub.folder,
                          check=False)
    assert done.returncode == 3 and f"device 0 is in use by process {held.pid}" in done.stderr
    assert not (stub.folder / "aa").exists()
