"""trees.py - which upstream tree stands behind which repo.

repo      variable            default
main      FLAGGEMS_DIR        /workspace/dev/FlagGems, else the sample tree
vllm      FLAGGEMS_VLLM_DIR   /workspace/dev/FlagGems-vllm, else left out
samples   -                   samples/flaggems of this project

A tree is a directory with benchmark/conftest.py and benchmark/base.py. `python -m common.trees [REPO]` prints repo and
tree of one operator's run, tab-separated; without REPO: main where there is a checkout, else samples.
"""
import os
import subprocess
import sys
from pathlib import Path

from common.errors import UserError, run_main

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "samples" / "flaggems"
VARIABLES = {"main": "FLAGGEMS_DIR", "vllm": "FLAGGEMS_VLLM_DIR"}
DEFAULTS = {"main": Path("/workspace/dev/FlagGems"), "vllm": Path("/workspace/dev/FlagGems-vllm")}


def is_tree(path):
    """True if `path` holds upstream's benchmarks."""
    return all((Path(path) / "benchmark" / name).is_file() for name in ("conftest.py", "base.py"))


def find_tree(repo, environ):
    """The tree of `main` or `vllm` as an absolute Path, or None where there is none.

    A variable that is set and names no tree is the user's mistake: UserError.
    """
    variable = VARIABLES[repo]
    value = environ.get(variable)
    if value:
        if not is_tree(value):
            raise UserError(f"{variable}: {value}: is no checkout (no benchmark/conftest.py and benchmark/base.py in "
                            f"it); give one, or unset {variable} to use the sample tree")
        return check_path(Path(value).resolve(), variable)
    return DEFAULTS[repo].resolve() if is_tree(DEFAULTS[repo]) else None


def check_path(tree, variable="this project's directory"):
    """UserError for a path that pytest, which takes a `[` for a parameter's, or PYTHONPATH cannot be given."""
    if set("[:") & set(str(tree)):
        raise UserError(f"{variable}: {tree}: pytest can take no path with [ or : in it; give it another name")
    return tree


def find_trees(environ):
    """{repo: tree} of all that a screen covers: main or else samples, and vllm where it is there."""
    main, vllm = find_tree("main", environ), find_tree("vllm", environ)
    trees = {"samples": check_path(SAMPLES)} if main is None or main == SAMPLES else {"main": main}
    return trees if vllm is None else {**trees, "vllm": vllm}


def choose_tree(repo, environ):
    """(repo, tree) for one operator; `repo` may be empty. UserError where that repo has no tree."""
    if repo == "samples":
        return repo, check_path(SAMPLES)
    tree = find_tree(repo or "main", environ)
    if tree is None and repo:
        raise UserError(f"REPO: {repo}: no checkout; give one: {VARIABLES[repo]}=/path")
    if tree is None:
        print(f"no FlagGems checkout at {DEFAULTS['main']}; using the sample tree", file=sys.stderr)
    return ("samples", check_path(SAMPLES)) if tree in (None, SAMPLES) else (repo or "main", tree)


def find_commit(tree, environ):
    """The commit of a tree: git's, or FLAGGEMS_COMMIT for one that was copied without its .git; "" if unknown."""
    top = run_git(tree, "rev-parse", "--show-toplevel")
    if top and Path(top).resolve() == Path(tree).resolve():
        return run_git(tree, "rev-parse", "HEAD") or ""
    return environ.get("FLAGGEMS_COMMIT", "")


def run_git(tree, *words):
    """Output of a git command in `tree`, or None where it fails: no checkout, no git."""
    # An upstream tree in a container often belongs to another user, which git would refuse to read.
    command = ["git", "-c", "safe.directory=*", "-C", str(tree), *words]
    try:
        own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # a hook's GIT_DIR, say
        done = subprocess.run(command, env=own, capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


if __name__ == "__main__":
    run_main(lambda argv: print(*choose_tree(argv[0] if argv else "", os.environ), sep="\t"))
