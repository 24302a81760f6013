#!/usr/bin/env python3
"""fresh_tune.py - drop what tuners remember, so that the next run tunes anew.

USAGE    fresh_tune.py [--user]            (make fresh-tune [DEVICES=6,7])
         Not passing REPLAY_FROM is not enough for a fresh tune: FlagGems keeps its winners in a database that outlives a
         run. (Or keep it and give a run one of its own: TUNER_CACHE=isolated.)
WHAT     Of the caches that a screen on this host uses, those of every device, or of DEVICES:
           RUNS/.cache/flaggems/<device>/     FlagGems' database (RUNS: runs; FLAGGEMS_CACHE_DIR in place of .cache/flaggems)
           RUNS/.cache/triton/<device>/       Triton's own *.autotune.json (TRITON_CACHE_DIR in place of .cache/triton)
           FLAGGEMS_DB_URL                    that database, where it is set: then all devices use it
         --user also ~/.flaggems/config_cache (what run_pytest.sh by hand uses). Compiled kernels stay: they depend on their
         source and options, not on what a tuner chose.
OUTPUT   One line per file dropped, and how many:
           dropped runs/.cache/flaggems/nvidia-0/config_cache/TunedConfig_NVIDIA_H200_triton_3_6.db (1.2 MB)
           fresh-tune: 1 file dropped
EXIT     0 done, also where there was nothing; 2 usage; 3 refused: a screen of RUNS is at work, or a process has a file open.
         Nothing is dropped then.
REQUIRES Linux, the standard library.       LIMITS  Sees the open files of one's own processes only; one host.
"""
import contextlib
import os
import re
import sys
from pathlib import Path

from common.errors import DONE, REFUSED, USAGE, UserError, run_main
from common.inputs import split_list
from common.state import hold_lock
from common.trees import ROOT

DATABASES = ("TunedConfig_*.db", "TunedConfig_*.db-journal", "TunedConfig_*.db-wal", "TunedConfig_*.db-shm")


def main(argv):
    """See the header."""
    if argv not in ([], ["--user"]):
        print(__doc__)
        return DONE if argv in (["-h"], ["--help"]) else USAGE
    runs = Path(os.environ.get("RUNS") or ROOT / "runs").absolute()
    with contextlib.ExitStack() as locks:
        for lock in sorted({path.resolve() for path in runs.glob("*/screen.lock")}):
            locks.enter_context(hold_lock(lock, "a screen's cache"))
        files = sorted(set(find_files(runs, os.environ, user="--user" in argv)))
        refuse_open_files(files)
        for path in files:
            size = path.stat().st_size
            path.unlink()
            print(f"dropped {shorten(path)} ({size / 1e6:.1f} MB)")
    print(f"fresh-tune: {len(files)} file{'' if len(files) == 1 else 's'} dropped"
          + (f" of devices {os.environ['DEVICES']}" if os.environ.get("DEVICES") else ""))
    return DONE


def find_files(runs, environ, user):
    """Every file in which a tuner of a screen keeps its choices."""
    tuners = Path(environ.get("FLAGGEMS_CACHE_DIR") or runs / ".cache" / "flaggems")
    compilers = Path(environ.get("TRITON_CACHE_DIR") or runs / ".cache" / "triton")
    for folder in list_device_folders(tuners, environ):
        yield from find_databases(folder)
    for folder in list_device_folders(compilers, environ):
        yield from folder.glob("*/*.autotune.json")
    if environ.get("FLAGGEMS_DB_URL"):
        yield from find_named_database(environ["FLAGGEMS_DB_URL"])
    if user:
        yield from find_databases(Path.home() / ".flaggems")


def find_databases(folder):
    """FlagGems' databases below one cache directory."""
    return [path for pattern in DATABASES for path in (folder / "config_cache").glob(pattern)]


def list_device_folders(base, environ):
    """The folders of DEVICES below `base` as a screen names them (<vendor>-<device>), or all there are."""
    wanted = {re.sub(r"[^\w.-]", "_", name) for name in split_list(environ.get("DEVICES"))}
    folders = [path for path in base.glob("*") if path.is_dir()]
    return [path for path in folders if not wanted or path.name.partition("-")[2] in wanted]


def find_named_database(url):
    """The file that FLAGGEMS_DB_URL names, if it is there. UserError for a database that is no file."""
    if not url.startswith("sqlite:///"):
        if url.rstrip("/") in ("sqlite:", "sqlite"):
            return []
        raise UserError(f"FLAGGEMS_DB_URL: {url}: is no SQLite file; empty that database by its own means, or unset the variable",
                        REFUSED)
    path = Path(url.removeprefix("sqlite:///"))
    return [p for p in (path, *(Path(f"{path}{end}") for end in ("-journal", "-wal", "-shm"))) if p.is_file()]


def refuse_open_files(files):
    """UserError naming the process that has one of `files` open."""
    wanted = {str(path.resolve()) for path in files}
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            target = os.readlink(link)
            if target in wanted:
                raise UserError(f"{target}: is open in process {link.parts[2]}; wait for it, or end it", REFUSED)


def shorten(path):
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    run_main(main)
