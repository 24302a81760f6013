"""doctor.py - what this machine has, and the one line that mends what lacks (`make doctor`).

USAGE   python doctor.py
INPUT   the Python that runs it, FLAGGEMS_DIR, FLAGGEMS_VLLM_DIR, RUNS, the caches' and the vendors' visible-device variables
OUTPUT  a table on stdout; exit 0 if a screen can run here, 3 if something that it needs lacks
SAMPLE  what       state  found
        torch      ok     2.13.0+cpu   .venv/lib/python3.11/site-packages/torch
        disk       ok     76 GB free in runs
        upstream   -      no checkout: the sample tree is used
        mend upstream: git clone the FlagGems repository into /workspace/dev/FlagGems, or set FLAGGEMS_DIR
LIMITS  Reads only. torch and triton are asked in a child process with a deadline, since a vendor's runtime can
        hang on import; no vendor command is ever spawned.
"""
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from common import devices, trees
from common.errors import DONE, REFUSED, USAGE, UserError, run_main
from common.inputs import check_cache_place

ROOT = Path(__file__).resolve().parent
LOW_DISK_GB = 5
DISTRIBUTIONS = {"yaml": "PyYAML"}  # modules that are distributed under another name


@dataclass
class Finding:
    """One line of the table: `state` is ok, lacks (a screen cannot run), or - (worth knowing)."""
    what: str
    state: str
    found: str
    mend: str = ""


def check_python():
    version = platform.python_version()
    if (3, 10) <= sys.version_info[:2] <= (3, 12):
        return Finding("python", "ok", f"{version}  {sys.executable}")
    return Finding("python", "lacks", f"{version}  {sys.executable}", "PYTHON=python3.11 make setup")


def check_package(name, needed=True):
    """Version and place of a package, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return Finding(name, "lacks" if needed else "-", "not installed", "make clean setup")
    place = Path(spec.origin).parent if spec.origin else Path(list(spec.submodule_search_locations)[0])
    return Finding(name, "ok", f"{find_version(name)}  {shorten(place)}")


def find_version(name):
    """Version of a package that is there; a tree on PYTHONPATH has none."""
    try:
        return importlib.metadata.version(DISTRIBUTIONS.get(name, name))
    except importlib.metadata.PackageNotFoundError:
        return "a source tree"


def check_devices():
    """The accelerators that a screen would use, or the host device."""
    try:
        selected = devices.select_devices(os.environ, sys.executable)
    except UserError as error:
        return Finding("devices", "lacks", str(error), "unset DEVICES, or name devices that are there")
    names = ", ".join(device.name for device in selected)
    if selected[0].is_host:
        return Finding("devices", "-", f"no accelerator that torch sees: the host device ({names})",
                       "call make with the Python of the vendor's image (PYTHON=...), whose torch sees the device")
    return Finding("devices", "ok", f"{selected[0].vendor}: {names}")


def check_host_device():
    """Whether this Triton and this flag_gems have passed the host device's matrix."""
    sys.path.append(str(ROOT / "plugins"))
    from host_device.versions import MEND, read_passed
    here = (find_version("triton"), find_version("flag_gems"))
    text = f"triton {here[0]} with flag_gems {here[1]}"
    if here in read_passed():
        return Finding("host device", "ok", f"{text}: passed")
    return Finding("host device", "-", f"{text}: not on the list of versions that passed", MEND)


def check_tree(repo, variable):
    """The upstream checkout: where, at which commit, clean or not."""
    try:
        tree = trees.find_tree(repo, os.environ)
    except UserError as error:
        return Finding(f"upstream {repo}", "lacks", str(error), f"unset {variable}, or name a checkout")
    if tree is None:
        use = "the sample tree is used" if repo == "main" else "left out"
        return Finding(f"upstream {repo}", "-", f"no checkout: {use}",
                       f"clone it into {trees.DEFAULTS[repo]}, or set {variable}")
    commit = trees.find_commit(tree, os.environ)[:12] or "an unknown commit"
    dirty = trees.run_git(tree, "status", "--porcelain", "--untracked-files=no")
    if dirty:
        return Finding(f"upstream {repo}", "-", f"{tree} at {commit}, {len(dirty.splitlines())} files changed",
                       f"git -C {tree} stash, if the figures are meant for upstream as it is")
    return Finding(f"upstream {repo}", "ok", f"{tree} at {commit}, clean")


def check_cache(name, variable, folder, default):
    """A cache makes a second run faster, and can make it stale: where screens and where runs by hand keep theirs."""
    if os.environ.get(variable):
        return Finding(name, "-", f"{variable}: {describe_folder(Path(os.environ[variable]))}")
    return Finding(name, "-", f"of screens {describe_folder(find_runs() / '.cache' / folder)}; "
                              f"by hand {describe_folder(Path(default).expanduser())}")


def describe_folder(place):
    """`place` and how much is in it."""
    size = sum(f.stat().st_size for f in place.rglob("*") if f.is_file())
    return f"{shorten(place)}: {size / 1e6:.0f} MB" if size else f"{shorten(place)}: empty"


def find_runs():
    """Where runs go."""
    return Path(os.environ.get("RUNS") or ROOT / "runs").absolute()


def check_disk():
    """Free space where runs go, and whether they can go there."""
    try:
        check_cache_place("RUNS", find_runs())
    except UserError as error:
        return Finding("disk", "lacks", str(error), "name another place: RUNS=/path/to/runs")
    place = next(p for p in (find_runs(), *find_runs().parents) if p.is_dir())
    free = shutil.disk_usage(place).free / 1e9
    state = "ok" if free >= LOW_DISK_GB else "lacks"
    return Finding("disk", state, f"{free:.0f} GB free in {place}", f"free some space: {LOW_DISK_GB} GB are needed")


def shorten(path):
    """`path` relative to the project where it lies inside."""
    try:
        return str(Path(path).relative_to(ROOT))
    except ValueError:
        return str(path)


def main(argv):
    """Print the table and the mends; see the header."""
    if argv:
        print(__doc__)
        return DONE if argv in (["-h"], ["--help"]) else USAGE
    findings = [check_python(), check_package("torch"), check_package("triton"),
                check_package("flag_gems", needed=False)]
    findings += [check_package(name) for name in ("pytest", "rich", "scipy", "tabulate", "yaml", "pydantic")]
    findings += [check_devices(), check_host_device(),
                 check_tree("main", "FLAGGEMS_DIR"), check_tree("vllm", "FLAGGEMS_VLLM_DIR"),
                 check_cache("triton cache", "TRITON_CACHE_DIR", "triton", "~/.triton/cache"),
                 check_cache("tuner cache", "FLAGGEMS_CACHE_DIR", "flaggems", "~/.flaggems"), check_disk()]
    print(tabulate([(f.what, f.state, f.found) for f in findings], headers=("what", "state", "found"), tablefmt="plain"))
    print()
    for finding in findings:
        if finding.state != "ok" and finding.mend:
            print(f"mend {finding.what}: {finding.mend}")
    return REFUSED if any(f.state == "lacks" for f in findings) else DONE


if __name__ == "__main__":
    run_main(main)
