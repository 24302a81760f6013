"""The versions that the host device was shown to be right on: passed.json, written by ``make host-matrix``.

    {"schema": 1, "triton": ["3.6.0"], "flag_gems": ["5.0.2", "git:ed2508b..."], ...}

The interpreter is a private part of Triton and was silently wrong before; a version that has not passed is refused.
"""

import json
import re
import subprocess
from pathlib import Path

from .errors import HostDeviceError

PASSED_FILE = Path(__file__).with_name("passed.json")
SCHEMA = 1
MEND = "run `make host-matrix` to check other versions and put those that pass on the list"


def read_passed(path=PASSED_FILE):
    """Pairs (triton version, flag_gems version) that passed. HostDeviceError on a missing or foreign file."""
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
        pairs = {(entry["triton"], entry["flag_gems"]) for entry in record["passed"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HostDeviceError(f"{path}: not a list of passed versions ({error}); {MEND}") from None
    if record.get("schema") != SCHEMA:
        raise HostDeviceError(f"{path}: schema {record.get('schema')!r}, expected {SCHEMA}; {MEND}")
    return pairs


def check_triton(version, passed):
    """Refuse a Triton that passed with no flag_gems at all."""
    known = sorted({triton for triton, _ in passed})
    if version not in known:
        raise HostDeviceError(f"host device: triton {version} found, wanted {' or '.join(known)}; {MEND}")


def check_pair(triton, flag_gems, passed):
    """Refuse a pair that is not on the list."""
    if (triton, flag_gems) not in passed:
        known = sorted(gems for found, gems in passed if found == triton)
        raise HostDeviceError(
            f"host device: flag_gems {flag_gems} found with triton {triton}, wanted {' or '.join(known)}; {MEND}"
        )


def find_gems_version(package_dir):
    """The version of the flag_gems in ``package_dir``, without importing it.

    A release says its own version in its source. A checkout has no version file, and the metadata of a release that
    may be installed beside it would be a lie: it is named ``git:<commit>``.
    """
    for name in ("_version.py", "__init__.py"):
        source = Path(package_dir, name)
        found = source.is_file() and re.search(
            r"^(?:__version__|version)(?:\s*=\s*version)?\s*=\s*['\"]([^'\"]+)", source.read_text("utf-8"), re.MULTILINE
        )
        if found:
            return found.group(1)
    return find_commit(package_dir)


def find_commit(directory):
    """``git:<commit>`` of the checkout that holds ``directory``, or ``unknown``."""
    command = ["git", "-C", str(directory), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return f"git:{done.stdout.strip()}" if done.returncode == 0 else "unknown"
