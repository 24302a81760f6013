"""find_lacking.py - which lines of a requirements file does this Python not have, and what may pip not touch?

USAGE   python find_lacking.py REQUIREMENTS.txt      the lines that lack, one per line
        python find_lacking.py --installed           NAME==VERSION of all that is there: a pip constraints file
SAMPLE  $ python find_lacking.py core.txt
        rich==14.2.0
LIMITS  A module that can be found counts as there, in whatever version and wherever it came from (a source tree on
        PYTHONPATH, too): a vendor image's own build must never be replaced. No network, no torch import.
"""
import importlib.metadata
import importlib.util
import re
import sys

MODULE_OF = {"pyyaml": "yaml"}  # distributions whose module has another name


def has(name):
    """True if the distribution NAME, or a module of that name, is there."""
    try:
        importlib.metadata.version(name)
        return True
    except importlib.metadata.PackageNotFoundError:
        return importlib.util.find_spec(MODULE_OF.get(name.lower(), name.lower())) is not None


def list_lacking(path):
    """Requirement lines of PATH (`NAME==VERSION`) that are not there."""
    lines = (line.split("#")[0].strip() for line in open(path, encoding="utf-8"))
    return [line for line in lines if line and not has(re.split(r"[=<>!~\[; ]", line)[0])]


def list_installed():
    """`NAME==VERSION` of every distribution with a version that pip can read."""
    found = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions() if d.metadata["Name"]}
    return sorted(f"{n}=={v}" for n, v in found.items() if v and re.fullmatch(r"[0-9][0-9A-Za-z.+!]*", v))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for line in list_installed() if sys.argv[1] == "--installed" else list_lacking(sys.argv[1]):
        print(line)
