"""test_fresh_tune.py - what `make fresh-tune` drops, and when it refuses to."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.state import hold_lock

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def caches(tmp_path):
    """Two devices' caches as a screen leaves them, and the user's."""
    for device in ("nvidia-0", "nvidia-1"):
        write(tmp_path / f"runs/.cache/flaggems/{device}/config_cache/TunedConfig_X_triton_3_6.db")
        write(tmp_path / f"runs/.cache/flaggems/{device}/code_cache/pointwise.py")
        write(tmp_path / f"runs/.cache/triton/{device}/ab12/mm.autotune.json")
        write(tmp_path / f"runs/.cache/triton/{device}/ab12/mm.cubin")
    write(tmp_path / "home/.flaggems/config_cache/TunedConfig_X_triton_3_6.db")
    write(tmp_path / "runs/screen-1/screen.lock")
    return tmp_path


def write(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x" * 1_200_000 if path.suffix == ".db" else "x")


def run(caches, *words, **environment):
    env = {**os.environ, "RUNS": str(caches / "runs"), "HOME": str(caches / "home"), **environment}
    return subprocess.run([sys.executable, ROOT / "fresh_tune.py", *words], env=env, cwd=caches, text=True, capture_output=True,
                          check=False)


def left(caches):
    kinds = (".db", ".json", ".cubin", ".py")
    return {str(p.relative_to(caches)) for p in caches.rglob("*") if p.is_file() and p.suffix in kinds}


def test_every_device_of_a_screen(caches):
    done = run(caches)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "dropped runs/.cache/flaggems/nvidia-0/config_cache/TunedConfig_X_triton_3_6.db (1.2 MB)",
        "dropped runs/.cache/flaggems/nvidia-1/config_cache/TunedConfig_X_triton_3_6.db (1.2 MB)",
        "dropped runs/.cache/triton/nvidia-0/ab12/mm.autotune.json (0.0 MB)",
        "dropped runs/.cache/triton/nvidia-1/ab12/mm.autotune.json (0.0 MB)", "fresh-tune: 4 files dropped"]
    assert left(caches) == {*(f"runs/.cache/{name}" for d in ("nvidia-0", "nvidia-1") for name in (
        f"flaggems/{d}/code_cache/pointwise.py", f"triton/{d}/ab12/mm.cubin")),
        "home/.flaggems/config_cache/TunedConfig_X_triton_3_6.db"}
    assert run(caches).stdout == "fresh-tune: 0 files dropped\n"


def test_one_device_and_the_users(caches):
    done = run(caches, "--user", DEVICES="1")
    assert done.stdout.count("\ndropped ") == 2 and done.stdout.endswith("fresh-tune: 3 files dropped of devices 1\n")
    databases = {name for name in left(caches) if name.endswith(".db")}
    assert databases == {"runs/.cache/flaggems/nvidia-0/config_cache/TunedConfig_X_triton_3_6.db"}


def test_a_database_that_all_devices_use(caches):
    write(caches / "mine.db")
    assert run(caches, FLAGGEMS_DB_URL=f"sqlite:///{caches}/mine.db").returncode == 0 and not (caches / "mine.db").exists()
    done = run(caches, FLAGGEMS_DB_URL="mysql://host/tuned")
    assert done.returncode == 3 and "FLAGGEMS_DB_URL: mysql://host/tuned: is no SQLite file" in done.stderr


def test_refused_while_a_screen_is_at_work(caches):
    before = left(caches)
    with hold_lock(caches / "runs/screen-1/screen.lock", "the screen"):
        done = run(caches)
    assert done.returncode == 3 and f"a screen's cache is in use by process {os.getpid()}" in done.stderr
    assert left(caches) == before


def test_refused_while_a_process_has_a_database_open(caches):
    before = left(caches)
    with open(caches / "runs/.cache/flaggems/nvidia-1/config_cache/TunedConfig_X_triton_3_6.db"):
        done = run(caches)
    assert done.returncode == 3 and f"is open in process {os.getpid()}; wait for it, or end it" in done.stderr
    assert left(caches) == before


def test_usage(caches):
    assert run(caches, "--all").returncode == 2 and run(caches, "--help").returncode == 0
