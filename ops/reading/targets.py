"""targets.py - which trees a script of ops/ reads, and at which commit they are: what --repo, --tree and --out mean."""
import os
from collections import namedtuple
from pathlib import Path

from common import trees
from common.errors import UserError
from common.inventory import inventory_path

FOLDERS = ("benchmark", "tests")
Target = namedtuple("Target", "repo tree out")


def choose_targets(args, environ):
    """The trees to read. UserError for one that is none."""
    if args.tree:
        if not trees.is_tree(args.tree):
            raise UserError(f"--tree: {args.tree}: is no checkout (no benchmark/conftest.py and benchmark/base.py in it)")
        tree = Path(args.tree).resolve()
        found = {args.repo or ("samples" if tree == trees.SAMPLES else "main"): tree}
    elif args.repo == "samples":
        found = {"samples": trees.SAMPLES}
    elif args.repo:
        found = {args.repo: trees.find_tree(args.repo, environ)}
        if found[args.repo] is None:
            raise UserError(f"--repo: {args.repo}: no checkout of it; give one: {trees.VARIABLES[args.repo]}=/path")
    else:
        found = trees.find_trees(environ)
    if args.out and not args.out.absolute().parent.is_dir():
        raise UserError(f"--out: {args.out}: there is no such directory; make it")
    if args.out and len(found) > 1:
        raise UserError(f"--out: {args.out}: there are {len(found)} trees; choose one with --repo")
    return [Target(repo, tree, args.out or inventory_path(trees.ROOT, repo)) for repo, tree in found.items()]


def read_commit(tree, repo):
    """The tree's commit, with `-dirty` if what is read here was changed; `unknown` outside Git."""
    if repo == "samples":
        return "part of this project"
    commit = trees.find_commit(tree, os.environ)
    changed = commit and trees.run_git(tree, "status", "--porcelain", *FOLDERS, "conf")
    return (commit or "unknown") + ("-dirty" if changed else "")
