#!/usr/bin/env python3
"""rebuild_inventory.py - rebuild ops/inventory_<repo>.csv from a tree: which operators there are, and their nodes.

PURPOSE  Joins (join_inventory.py), by node id, what the source of benchmark/ and tests/ says (scan_tests.py) with what
         pytest collects (collect_tests.py), and adds conf/operators.yaml. The format is described in common/inventory.py.
USAGE    make inventory [REPO=main] [TREE=/path]
         ops/rebuild_inventory.py [--repo main|vllm|samples] [--tree DIR] [--out FILE] [--collect auto|yes|no]
                                  [--python PYTHON] [--timeout SECONDS]
           --collect auto   on an accelerator; the sample tree always, on the host device; otherwise the source only
           --collect yes    also without an accelerator, on the host device
           --collect no     read the source only: verified=no
INPUT    The tree: --tree, else FLAGGEMS_DIR, FLAGGEMS_VLLM_DIR and their defaults, else the sample tree.
OUTPUT   The file, written whole or not at all. On stderr, per line, what differs: nodes that only one side sees, marks on
         which they disagree, operators without accuracy test, tests without benchmark. On stdout the sum:
           ops/inventory_main.csv: 1059 operators, 1126 rows of 703 files, verified=yes (1188 cases collected); source
           only 0, collected only 0, other mark 3, no mark 3, no accuracy test 17, no benchmark 23, no yaml id 36
EXIT     0 done, 1 a module could not be read or collected (each is named; the old file stays), 2 usage,
         3 a verified inventory would be replaced by an unverified one, or there is no such Python
NEEDS    PyYAML; to collect also pytest, torch, triton, flag_gems. FlagGems at ed2508b: 3 s to read, 40 s to collect.
LIMITS   What is collected can depend on the card: a case may exist on one and not on another.
"""

import argparse
import csv
import io
import os
import shutil
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common import ask_torch, devices  # noqa: E402
from common.errors import BAD_RESULT, DONE, REFUSED, UserError, run_main  # noqa: E402
from common.inventory import COLUMNS, REPOS, read_header  # noqa: E402
from common.state import write_text_atomic  # noqa: E402
from ops.reading.collect_tests import CollectError, collect_tests  # noqa: E402
from ops.reading.join_inventory import build_rows, compare, list_benchmarks, map_tests, read_yaml_ids  # noqa: E402
from ops.reading.scan_tests import find_test_files, scan_tests  # noqa: E402
from ops.reading.targets import FOLDERS, choose_targets, read_commit  # noqa: E402


# ---- the file

def format_inventory(header, rows):
    text = io.StringIO()
    text.writelines(f"# {key}: {value}\n" for key, value in header.items())
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def print_differences(found):
    for heading, lines in found.items():
        for line in lines:
            print(f"{heading}: {line}", file=sys.stderr)


# ---- the command

def choose_host(repo, how, python, environ):
    """Whether to collect, and whether on the host device."""
    if how == "no":
        return False, False
    if repo == "samples":
        return True, True
    has_accelerator = ask_torch.ask_count(python, environ)["count"] > 0
    return has_accelerator or how == "yes", not has_accelerator


def refuse_downgrade(target, how):
    """An inventory that pytest has verified is not replaced by one that was only read, unless that was asked for."""
    if how == "auto" and target.out.is_file() and read_header(target.out).get("verified") == "yes":
        raise UserError(f"{target.out}: is verified, and without an accelerator the tree can only be read; keep it, or "
                        f"replace it (--collect no), or collect on the host device (--collect yes; make: COLLECT=yes)", REFUSED)


def rebuild(target, args, environ):
    """Rebuild one inventory; returns an exit status."""
    collects, on_host = choose_host(target.repo, args.collect, args.python, environ)
    if not collects:
        refuse_downgrade(target, args.collect)
    try:
        sources = {folder: scan_tests(target.tree, folder) for folder in FOLDERS}
        folders = [folder for folder in FOLDERS if (target.tree / folder).is_dir()]
        collected = collect_tests(target.tree, folders, python=args.python, environ=environ, timeout=args.timeout,
                                  on_host=on_host) if collects else {}
    except SyntaxError as error:
        return report_failure(target, [f"{error.filename}: line {error.lineno}: {error.msg}"])
    except CollectError as error:
        return report_failure(target, error.problems)
    seen = {folder: collected[folder]["functions"] if folder in collected else {} for folder in FOLDERS}
    tests, ids = map_tests(sources["tests"], seen["tests"]), read_yaml_ids(target.tree)
    rows = build_rows(target.repo, list_benchmarks(sources["benchmark"], seen["benchmark"]), tests, ids)
    if not rows:
        return report_failure(target, [f"{target.tree}/benchmark: no test in it"])
    header = {"repo": target.repo, "commit": read_commit(target.tree, target.repo),
              "collected on": name_device(collected, on_host, environ), "verified": "yes" if collected else "no",
              "generator": "ops/rebuild_inventory.py"}
    write_text_atomic(target.out, format_inventory(header, rows))
    found = compare(sources, collected, rows, tests, ids)
    print_differences(found)
    print_sum(target, header, rows, collected, found)
    return DONE


def report_failure(target, problems):
    for problem in problems:
        print(f"not collected: {problem}", file=sys.stderr)
    stays = "the old file stays" if target.out.is_file() else "nothing is written"
    print(f"{target.out}: {len(problems)} failed, {stays}; mend or remove the modules named above", file=sys.stderr)
    return BAD_RESULT


def name_device(collected, on_host, environ):
    if not collected:
        return "nothing (source only)"
    if on_host:
        return f"host device {environ.get('HOST_TARGET') or devices.DEFAULT_TARGET}"
    return collected["benchmark"]["device"]


def print_sum(target, header, rows, collected, found):
    files = len(find_test_files(target.tree / "benchmark"))
    cases = f" ({collected['benchmark']['items']} cases collected)" if collected else ""
    counts = Counter({heading: len(lines) for heading, lines in found.items()})
    print(f"{target.out}: {len({row['op'] for row in rows})} operators, {len(rows)} rows of {files} files, "
          f"verified={header['verified']}{cases};", ", ".join(f"{name} {counts[name]}" for name in found))


def main(argv):
    parser = argparse.ArgumentParser(description="Rebuild ops/inventory_<repo>.csv from a tree.")
    parser.add_argument("--repo", choices=REPOS, help="default: every repo that has a tree")
    parser.add_argument("--tree", help="the checkout to read; default: FLAGGEMS_DIR, FLAGGEMS_VLLM_DIR or the sample tree")
    parser.add_argument("--out", type=Path, help="file to write; default: ops/inventory_<repo>.csv")
    parser.add_argument("--collect", choices=("auto", "yes", "no"), default="auto", help="ask pytest as well")
    parser.add_argument("--python", default=sys.executable, help="Python that collects; default: this one")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that collecting may take (default 300)")
    args = parser.parse_args(argv)
    found = shutil.which(args.python)
    if args.collect != "no" and not found:
        raise UserError(f"--python: {args.python}: no such program; give one that has torch, triton and flag_gems", REFUSED)
    if found:
        args.python = os.path.abspath(found)        # pytest runs in another directory
    return max(rebuild(target, args, os.environ) for target in choose_targets(args, os.environ))


if __name__ == "__main__":
    run_main(main)
