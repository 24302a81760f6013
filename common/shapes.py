"""shapes.py - what SHAPES means: the shape file for a tree, merged or checked before anything is launched.

    SHAPES=core            a set of ops/shapes/: merged over the tree's own into runs/shapes/core-main.yaml
    SHAPES=my/shapes.yaml  a file: refused if it would break benchmarks of the tree (it lacks a class key, say)

`python -m common.shapes VALUE REPO TREE FOLDER` prints that file's path. The work is ops/merge_shapes.py's, in a process of its
own: it reads the tree's sources.
"""
import subprocess
import sys
from pathlib import Path

from common.errors import USAGE, UserError, run_main
from common.trees import ROOT

MERGE = ROOT / "ops" / "merge_shapes.py"


def find_shapes(value, repo, tree, folder):
    """Absolute path of the shape file that SHAPES=`value` means for `tree`; merged files go to `folder`.

    UserError, with what merge_shapes.py says, for a name that is neither a set nor a file, and for an unfit file.
    """
    where = ["--repo", repo, "--tree", str(tree)]
    if Path(value).is_file():
        _run_merge("--check", value, *where)
        return str(Path(value).resolve())
    if "/" in value or value.endswith((".yaml", ".yml")):
        raise UserError(f"SHAPES: {value}: no such file; give a shape file, or a set: {', '.join(list_sets())}")
    if value not in list_sets():
        raise UserError(f"SHAPES: {value}: is neither a file nor a set of ops/shapes; sets are {', '.join(list_sets())}")
    merged = Path(folder).absolute() / f"{value}-{repo}.yaml"
    merged.parent.mkdir(parents=True, exist_ok=True)
    _run_merge("--set", value, "--out", str(merged), *where)
    return str(merged)


def list_sets():
    """Names of the sets in ops/shapes."""
    return sorted(path.stem for path in (ROOT / "ops" / "shapes").glob("*.yaml"))


def _run_merge(*arguments):
    done = subprocess.run([sys.executable, str(MERGE), *arguments], capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().removeprefix("merge_shapes.py: error: ") or f"merge_shapes.py ended with {done.returncode}"
        raise UserError(f"SHAPES: {said}", done.returncode if done.returncode in (2, 3, 4) else 2)


def main(argv):
    """Print the path; see the header."""
    if len(argv) != 4:
        print(__doc__, file=sys.stderr)
        return USAGE
    print(find_shapes(*argv))


if __name__ == "__main__":
    run_main(main)
