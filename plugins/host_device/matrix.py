#!/usr/bin/env python3
"""Which versions of Triton and flag_gems is the host device right on? (`make host-matrix`)

Purpose   The host device refuses versions that are not on passed.json. This script finds out which belong there: for
          each pair it makes a virtual environment, runs check.py and the sample tree's accuracy tests in it, and puts
          the pairs that pass on the list. A pair that was on the list and fails is taken off.
Usage     python plugins/host_device/matrix.py [--pair TRITON:FLAG_GEMS ...] [--tree DIR] [--work DIR]
Input     --pair 3.7.0:5.0.2   a pair to try, repeatable; default: the candidates below
          --tree DIR           also the first Triton with the flag_gems of a checkout, named by its commit;
                               default FLAGGEMS_DIR, where that is one (`make host-matrix FLAGGEMS_DIR=...`)
          --work DIR           where the environments and logs go, kept for the next time; default runs/host-matrix
          requirements/torch.txt and core.txt; pip's own settings (PIP_INDEX_URL, ...) are honoured
Output    one line per pair, and plugins/host_device/passed.json:
            triton   flag_gems                                  check   samples  verdict
            3.6.0    5.0.2                                      ok      ok       passed
            3.9.0    5.0.2                                      exit 1  exit 1  failed, see runs/host-matrix/3.9.0-5.0.2
Exit      0 done, 1 a pair that was on the list fails now, 2 usage, 3 an environment could not be made.
Needs     network for pip, about 1.5 GB of disk and 3 minutes per pair.
"""

import argparse
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "plugins"))

from host_device.errors import HostDeviceError  # noqa: E402
from host_device.versions import PASSED_FILE, SCHEMA, find_gems_version, read_passed  # noqa: E402

# 3.8 and 3.9 failed when this list was made: what flag_gems 5.0.2 generates with block pointers does not compile there.
CANDIDATES = (("3.6.0", "5.0.2"), ("3.7.0", "5.0.2"), ("3.8.0", "5.0.2"), ("3.9.0", "5.0.2"))
LIMIT_SECONDS = 1800


class EnvironmentFailed(Exception):
    """pip could not install a pair; the message names the log."""


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description="Find the versions that the host device is right on.")
    parser.add_argument("--pair", action="append", type=parse_pair, metavar="TRITON:FLAG_GEMS")
    parser.add_argument("--tree", type=Path, default=default_tree(), help="a FlagGems checkout")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "host-matrix")
    arguments = parser.parse_args(argv)
    if arguments.tree and not is_checkout(arguments.tree):
        parser.error(f"--tree: {arguments.tree}: no src/flag_gems in it; give the root of a FlagGems checkout")
    return arguments


def is_checkout(folder):
    return (folder / "src" / "flag_gems").is_dir()


def default_tree():
    folder = Path(os.environ.get("FLAGGEMS_DIR") or "/nowhere")
    return folder if is_checkout(folder) else None


def parse_pair(text):
    triton, separator, flag_gems = text.partition(":")
    if not (triton and separator and flag_gems):
        raise argparse.ArgumentTypeError(f"{text!r} is no TRITON:FLAG_GEMS, as 3.6.0:5.0.2")
    return triton, flag_gems


def list_pairs(arguments):
    """(triton, flag_gems, source folder or None) to try."""
    pairs = arguments.pair or list(CANDIDATES)
    runs = [(triton, flag_gems, None) for triton, flag_gems in pairs]
    if arguments.tree:
        source = arguments.tree.resolve() / "src"
        runs.append((pairs[0][0], find_gems_version(source / "flag_gems"), source))
    return runs


def make_environment(folder, triton, flag_gems):
    """The Python of a virtual environment with this pair; made once.

    torch comes first and Triton in a call of its own: where torch asks for another Triton, pip's resolver would refuse
    the two together. flag_gems comes without its dependencies, which core.txt holds.
    """
    python = folder / "venv" / "bin" / "python"
    if (folder / "installed").exists():
        return python
    folder.mkdir(parents=True, exist_ok=True)
    venv.create(folder / "venv", with_pip=True, clear=True)
    requirements = ROOT / "requirements"
    steps = [["-r", requirements / "torch.txt", "-c", requirements / "core.txt"], ["-r", requirements / "core.txt"]]
    steps.append(["--no-deps", f"triton=={triton}"])
    if flag_gems is not None:
        steps.append(["--no-deps", f"flag_gems=={flag_gems}"])
    for step in steps:
        if run_logged([python, "-m", "pip", "install", *step], folder / "pip.log") != 0:
            raise EnvironmentFailed(f"pip install {' '.join(map(str, step))}: failed; see {folder / 'pip.log'}")
    (folder / "installed").touch()
    return python


def run_logged(command, log, **options):
    """The exit status of a command whose output is appended to ``log``; 124 if it ran too long."""
    with open(log, "a", encoding="utf-8") as file:
        print("$", *command, file=file, flush=True)
        try:
            done = subprocess.run(
                list(map(str, command)), stdout=file, stderr=subprocess.STDOUT, timeout=LIMIT_SECONDS, **options
            )
        except subprocess.TimeoutExpired:
            return 124
    return done.returncode


def run_checks(python, folder, source):
    """(exit status of check.py, exit status of the sample tree's tests or None without that tree)."""
    environ = dict(os.environ, HOST_TARGET="cuda:90", HOST_MODE="execute", HOST_ANY_VERSION="1")
    environ["PYTHONPATH"] = os.pathsep.join(map(str, filter(None, [ROOT / "plugins", source])))
    environ["TRITON_CACHE_DIR"] = str(folder / "triton-cache")
    for log in ("check.log", "samples.log"):
        (folder / log).unlink(missing_ok=True)
    check = [python, ROOT / "plugins" / "host_device" / "check.py", "--any-version"]
    checked = run_logged(check, folder / "check.log", env=environ)
    tree = ROOT / "samples" / "flaggems"
    if not (tree / "tests").is_dir():
        return checked, None
    tests = [python, "-m", "pytest", "-q", "-p", "_host_device_plugin", "-p", "no:cacheprovider", "tests"]
    return checked, run_logged(tests, folder / "samples.log", env=environ, cwd=tree)


def write_passed(pairs, path=PASSED_FILE):
    """Replace passed.json by these pairs, sorted, one a line."""
    entries = [json.dumps({"triton": triton, "flag_gems": gems}) for triton, gems in sorted(pairs)]
    body = ",\n  ".join(entries)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(f'{{\n "schema": {SCHEMA},\n "passed": [\n  {body}\n ]\n}}\n', encoding="utf-8")
    os.replace(temporary, path)


def describe(status):
    return {0: "ok", None: "-", 124: "timeout"}.get(status, f"exit {status}")


def try_pair(triton, flag_gems, source, work):
    """Run one pair, print its line, return whether it passed."""
    folder = work / f"{triton}-{flag_gems.replace(':', '-')}"
    python = make_environment(folder, triton, None if source else flag_gems)
    results = run_checks(python, folder, source)
    passed = all(status in (0, None) for status in results)
    verdict = "passed" if passed else f"failed, see {folder}"
    print(f"{triton:<9}{flag_gems:<42} " + "".join(f"{describe(r):<8}" for r in results) + f" {verdict}", flush=True)
    return passed


def main(argv):
    arguments = parse_arguments(argv)
    try:
        before = read_passed()
    except HostDeviceError as error:
        print(f"matrix.py: error: {error}", file=sys.stderr)
        return error.code
    now, lost = set(before), False
    print(f"{'triton':<9}{'flag_gems':<42} {'check':<8}{'samples':<8} verdict")
    for triton, flag_gems, source in list_pairs(arguments):
        try:
            passed = try_pair(triton, flag_gems, source, arguments.work)
        except EnvironmentFailed as error:
            print(f"matrix.py: error: {error}", file=sys.stderr)
            return 3
        lost = lost or (not passed and (triton, flag_gems) in before)
        now = now | {(triton, flag_gems)} if passed else now - {(triton, flag_gems)}
        write_passed(now)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
