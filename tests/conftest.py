"""conftest.py - what every test may count on.

The caller's own knobs (OPS, DEVICES, FLAGGEMS_DIR, ...) never reach a test: they are removed before any fixture runs.
The list is the Makefile's, so that a new knob cannot be forgotten here. Locks of devices lie in a folder of the process's own,
what is made once for all test files (shared.py) in one of the test run's.
"""
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.append(str(HERE / "minicampaign"))

from screen_stub import StubScreen
from shared import SHARED


# Those that take longest, before the others: a process of pytest-xdist takes whole files, and one that got such a file last would
# keep the other waiting. test_campaign_run.py makes what test_campaign_seal.py needs.
SLOW_FIRST = [f"test_{name}.py" for name in (
    "campaign_run", "resume", "ab", "setup_env", "warm_screen", "autotune_record", "samples", "campaign_seal", "cudagraph",
    "warm", "run_batch_again", "rlc_switch", "ir_meta", "campaign_host", "campaign_refusals", "run_batch_devices",
    "parallel_warmup", "ray_engine", "autotune_shared", "host_device", "host_device_check", "compile_ahead", "run_batch_kill",
    "attempts", "budget", "rebuild_inventory")]


def pytest_collection_modifyitems(items):
    places = {name: place for place, name in enumerate(SLOW_FIRST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


def list_knobs():
    """The names in the Makefile's KNOBS."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    return re.search(r"^KNOBS := (.*)$", text, re.M)[1].split()


def pytest_configure():
    for name in {*list_knobs(), "RUN_DIR", "DEVICE", "NODES", "MAKEFLAGS", "MAKELEVEL", "CUDA_VISIBLE_DEVICES"} - {"PYTHON"}:
        os.environ.pop(name, None)
    os.environ.pop("GEMSCREEN_HELD", None)
    os.environ["GEMSCREEN_LOCKS"] = tempfile.mkdtemp(prefix="gemscreen-test-locks-")   # never those of a real device
    if "PYTEST_XDIST_WORKER" not in os.environ:
        os.environ[SHARED] = tempfile.mkdtemp(prefix="gemscreen-test-shared-")


def pytest_unconfigure():
    shutil.rmtree(os.environ["GEMSCREEN_LOCKS"], ignore_errors=True)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        remove(Path(os.environ[SHARED]))


def remove(folder):
    """A folder with sealed campaigns in it, which are read-only."""
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def stub(tmp_path):
    """A StubScreen; the test fails if it leaves processes."""
    screen = StubScreen(tmp_path)
    yield screen
    left = screen.list_processes()
    screen.end_processes()
    assert left == []


@pytest.fixture(scope="session")
def mini():
    """The sealed campaign of all planted outcomes (minicampaign/harness.py)."""
    from harness import run_golden
    return run_golden()


@pytest.fixture(scope="session")
def small():
    """A sealed campaign of few tasks at floor 0."""
    from harness import run_small
    return run_small()
