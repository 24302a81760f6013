"""conftest.py - what every test may count on.

The caller's own knobs (OPS, DEVICES, FLAGGEMS_DIR, ...) never reach a test: they are removed before any fixture runs.
The list is the Makefile's, so that a new knob cannot be forgotten here. Locks of devices lie in a folder of the test run's own.
"""
import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest

from screen_stub import StubScreen

ROOT = Path(__file__).resolve().parent.parent


def list_knobs():
    """The names in the Makefile's KNOBS."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    return re.search(r"^KNOBS := (.*)$", text, re.M)[1].split()


def pytest_configure():
    for name in {*list_knobs(), "RUN_DIR", "DEVICE", "NODES", "MAKEFLAGS", "MAKELEVEL", "CUDA_VISIBLE_DEVICES"} - {"PYTHON"}:
        os.environ.pop(name, None)
    os.environ.pop("GEMSCREEN_HELD", None)
    os.environ["GEMSCREEN_LOCKS"] = tempfile.mkdtemp(prefix="gemscreen-test-locks-")   # never those of a real device


def pytest_unconfigure():
    shutil.rmtree(os.environ["GEMSCREEN_LOCKS"], ignore_errors=True)


@pytest.fixture
def stub(tmp_path):
    """A StubScreen; the test fails if it leaves processes."""
    screen = StubScreen(tmp_path)
    yield screen
    left = screen.list_processes()
    screen.end_processes()
    assert left == []
