"""shared.py - what several test files look at is made once per test session, by whichever of its processes asks first.

    @make_once
    def run_small(folder): ...      run_small() is its value in every process; pickled, so that the others need not make it

Its folder is gone when the session ends, and so is every other file of the session in SHARED (conftest.py).
"""
import atexit
import fcntl
import functools
import os
import pickle
import shutil
import tempfile
from pathlib import Path

SHARED = "GEMSCREEN_TEST_SHARED"


@functools.cache
def find_folder():
    """The session's folder; of this process alone where pytest runs without conftest.py."""
    if SHARED not in os.environ:
        os.environ[SHARED] = tempfile.mkdtemp(prefix="gemscreen-test-")
        atexit.register(shutil.rmtree, os.environ[SHARED], ignore_errors=True)
    return Path(os.environ[SHARED])


def make_once(make):
    @functools.cache
    @functools.wraps(make)
    def get():
        folder = find_folder() / make.__name__
        with open(f"{folder}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            value = Path(f"{folder}.value")
            if not value.exists():
                shutil.rmtree(folder, ignore_errors=True)     # of one that failed
                folder.mkdir()
                value.with_suffix(".tmp").write_bytes(pickle.dumps(make(folder)))
                value.with_suffix(".tmp").rename(value)
            return pickle.loads(value.read_bytes())
    return get
