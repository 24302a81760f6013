"""What a call of run_batch.py asks for: its options, the numbers and programs among its variables. All checked.

Requirements: the standard library.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

from common import inputs
from common.errors import REFUSED, UserError
from common.trees import ROOT
from screen.sharding import POLICIES

SWITCH = ("0", "1")
NUMBERS = {"TIMEOUT": 1800.0, "RETRIES": 2, "GRACE_S": 15.0, "RETRY_PAUSE_S": 10.0, "SETTLE_S": 60.0, "COMPILE_AHEAD": 0}

CHOICES = (("SHARD", "hash", POLICIES), ("WARM", "1", SWITCH), ("FRESH", "0", SWITCH), ("RETRY_FAILED", "0", SWITCH))


def read_options(argv, description):
    """(environment of this screen: the caller's with the options set into it, is it a dry run)."""
    parser = argparse.ArgumentParser(prog="run_batch.py", usage="run_batch.py [OPTION ...]", description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    options = {
        "run": "DIR: the screen to start or to continue", "ops": "a,b or repo/a: only these operators",
        "match": "REGEX: only operators whose name it finds", "devices": "6,7: devices, in the caller's own names",
        "dtypes": f"of {','.join(inputs.DTYPES)}; default: each operator's own",
        "level": "core or comprehensive", "mode": "kernel, operator, wrapper or cudagraph",
        "shapes": "a set of ops/shapes, or a FILE in place of upstream's core_shapes.yaml",
        "timeout": "seconds for one attempt (1800)", "retries": "repetitions after a failure that may pass (2)",
        "shard": "hash: an operator always meets the same device; balanced: by recorded durations; queue: an idle device "
                 "takes over",
        "engine": "local, or ray: the devices of a Ray cluster (docs/many-hosts.md)",
        "shard_index": "2/8: only the second of eight parts, into a directory of its own (Slurm arrays, many hosts)",
        "budget": "2h, 90m, 45s: what matters most first, and nothing that would end later",
        "replay_root": "RUN: replay the tuner's choices recorded in that screen",
        "replay_missing": "run (tuned live) or skip: operators that have no record there"}
    for name, text in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar=name.upper().rpartition("_")[2], help=text)
    parser.add_argument("--address", metavar="HOST:PORT", dest="ray_address",
                        help="of the Ray cluster (auto: the one on this host)")
    parser.add_argument("--fresh", action="store_const", const="1", help="start a new screen whatever there is")
    parser.add_argument("--retry-failed", action="store_const", const="1",
                        help="run what is failed, partial, crashed or timed out again, though no input changed")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and make nothing")
    given = vars(parser.parse_args(argv))
    dry_run = given.pop("dry_run")
    return {**os.environ, **{name.upper(): value for name, value in given.items() if value is not None}}, dry_run


def read_number(environ, name, default):
    """The non-negative number in variable `name`."""
    text = environ.get(name) or str(default)
    try:
        number = type(default)(text)
    except ValueError:
        number = -1
    if not 0 <= number < float("inf") or (name == "TIMEOUT" and number == 0):
        kind = "whole number" if isinstance(default, int) else "number of seconds"
        raise UserError(f"{name}: {text}: is no {kind}; give one, as {name}={default:.0f}")
    environ[name] = text
    return number


def is_on(environ, name):
    """True if the variable `name` switches something on."""
    return environ.get(name, "") not in ("", "0")


def find_python(environ):
    """The Python of the children: PYTHON, the environment beside this script, or this one."""
    own = ROOT / ".venv" / "bin" / "python"
    named = environ.get("PYTHON") or (str(own) if own.exists() else sys.executable)
    found = shutil.which(named)
    if found is None:
        raise UserError(f"PYTHON: {named}: not found; give another, or let `make setup` make one", REFUSED)
    return str(Path(found).absolute())


def find_runs(environ):
    """Where screens go, as an absolute path. It need not be there."""
    runs = Path(environ.get("RUNS") or ROOT / "runs").absolute()
    check_place("RUNS", runs)
    return runs


def check_place(variable, path):
    """UserError if the directory `path` can neither be made nor written to, or can hold no cache."""
    inputs.check_cache_place(variable, path)
    there = next(each for each in (path, *path.parents) if os.path.lexists(each))
    if not there.is_dir():
        raise UserError(f"{variable}: {path}: {'' if there == path else f'{there} '}is no directory; name another place")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"{variable}: {path}: {there} cannot be written to; name another place", REFUSED)


def find_run_pytest(environ):
    """run_pytest.sh, or the script that RUN_PYTEST names in its place."""
    path = Path(environ.get("RUN_PYTEST") or ROOT / "run_pytest.sh").absolute()
    if not os.access(path, os.X_OK) or not path.is_file():
        raise UserError(f"RUN_PYTEST: {path}: is no executable file; `chmod +x` it or name another")
    return str(path)
