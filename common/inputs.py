"""What a screen's figures depend on, as digests: the same inputs need no second measurement.

A `.complete` marker holds the digest of these components; a component that differs names why it is stale:

    nodes     the pytest node ids            files     content of the benchmark files that hold them, and of those they import
    knobs     run_pytest.sh's own            shared    base.py, conftest.py, consts.py, core_shapes.yaml, ... of the tree
    shapes    content of SHAPES              tree      upstream commit, and what differs from it outside benchmark/, tests/
    versions  Python, torch, triton, ...; their builds
    switches  TRITON_*, FLAGTREE_*, ...      runner    run_pytest.sh (without comments), plugins/, warm/, common/*.sh, log_pipe.py
    device    host device, or vendor and model   replay    content of the record that is replayed

Requirements: the standard library, git. Limits: of files that git does not track only those with the suffixes
in SOURCES count.
"""

import contextlib
import json
import os
import re
from pathlib import Path

from common.ask_torch import IGNORE_CWD
from common.errors import REFUSED, USAGE, UserError
from common.process import start_bounded
from common.state import sha256_file, sha256_json, sha256_text, sha256_tree
from common.switches import list_switches
from common.trees import ROOT, find_commit, run_git

# Knobs of run_pytest.sh that do not change what is measured, or have a component of their own.
NOT_MEASURING = ("REPO", "FLAGGEMS_DIR", "FLAGGEMS_VLLM_DIR", "PYTHON", "RUN_DIR", "SHAPES", "DEVICE", "HOST_TARGET", "ATTEMPT",
                 "FALLBACK", "REPLAY_FROM", "KILL_AFTER_S", "TUNE_THREADS")
# benchmark/conftest.py: the choices of --dtypes (FLOAT_DTYPES + INT_DTYPES + BOOL_DTYPES + cfloat).
DTYPES = ("float16", "float32", "bfloat16", "int16", "int32", "bool", "complex64")
LEVELS = ("core", "comprehensive")
SUITES = ("benchmark", "tests")
MODES = ("kernel", "operator", "wrapper", "cudagraph")
PACKAGES = ("torch", "triton", "flagtree", "flag_gems", "flaggems_vllm")
SOURCES = (".py", ".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")

PATH_NAME = re.compile(r"TRITON_(\w+_)?(PATH|DIR|HOME)|FLAGGEMS_CACHE_DIR")
_KNOB = re.compile(r'^(: "\$\{\w+:=[^}]*\}") *#.*')     # a line of run_pytest.sh's config section
_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t].*$", re.M)
_ASK_VERSIONS = IGNORE_CWD + """
import importlib.util, json, os, pathlib, platform
from importlib.metadata import PackageNotFoundError, version
found = {"python": platform.python_version()}
def describe_build(name, pattern):  # a nightly compiler is rebuilt under the same version
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin:
        files = [os.stat(path) for path in pathlib.Path(spec.origin).parent.rglob(pattern)]
        found[f"{name} {pattern}"] = [len(files), sum(f.st_size for f in files), max((f.st_mtime_ns for f in files), default=0)]
for name, pattern in (("triton", "*.so"), ("triton", "*.py"), ("flag_gems", "*.py"), ("flaggems_vllm", "*.py")):
    describe_build(name, pattern)
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print("GEMSCREEN " + json.dumps(found))
"""


def list_knobs():
    """The variables that change what is measured: those of run_pytest.sh's config section, so that none is forgotten."""
    text = (ROOT / "run_pytest.sh").read_text(encoding="utf-8")
    return tuple(name for name in re.findall(r'^: "\$\{(\w+):=', text, re.M) if name not in NOT_MEASURING)


def check_knobs(environ):
    """UserError for a dtype, level, mode or suite that upstream does not know. OPS and DTYPES lose what they name twice.

    A list that names nothing, as OPS=' ' or OPS=',', is refused: it would mean all of them.
    """
    for name in ("OPS", "DTYPES", "DEVICES"):
        if environ.get(name) and not split_list(environ[name]):
            raise UserError(f"{name}: {environ[name]!r}: names nothing; give a comma list, or leave {name} empty for all", USAGE)
    for name in ("OPS", "DTYPES"):
        environ[name] = ",".join(dict.fromkeys(split_list(environ.get(name))))
    for name in split_list(environ.get("DTYPES")):
        check_choice("DTYPES", name, DTYPES)
    if environ.get("LEVEL"):
        check_choice("LEVEL", environ["LEVEL"], LEVELS)
    if environ.get("MODE"):
        check_choice("MODE", environ["MODE"], MODES)
    if environ.get("SUITE"):
        check_choice("SUITE", environ["SUITE"], SUITES)


def check_choice(variable, value, valid):
    """UserError unless `value` of the variable named is one of `valid`."""
    if value not in valid:
        raise UserError(f"{variable}: {value}: unknown; valid are {', '.join(valid)}", USAGE)


def check_cache_place(variable, place):
    """UserError if FlagGems could keep no tuner database below the directory `place`. It puts the path as it is into a URL, in
    which `?` begins the query: SQLAlchemy opens what stands before it. No other character does harm, and nothing undoes a
    %3F."""
    for path in (str(Path(place).absolute()), os.path.realpath(place)):    # run_pytest.sh resolves its run directory
        if "?" in path:
            raise UserError(f"{variable}: {path}: has a `?`, at which the URL of FlagGems' tuner database would end; "
                            "name another place", USAGE)


def make_paths_absolute(environ):
    """Let the paths in `environ` mean the caller's folder wherever a child runs: those of PYTHONPATH, which has each once and no
    empty one then (`export PYTHONPATH=/x:$PYTHONPATH` where it was unset leaves one), and what PATH_NAME finds, as
    TRITON_PTXAS_PATH."""
    entries = dict.fromkeys(str(Path(entry).absolute()) for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry)
    environ.pop("PYTHONPATH", None)
    if entries:
        environ["PYTHONPATH"] = os.pathsep.join(entries)
    for name, value in environ.items():
        if value and PATH_NAME.fullmatch(name):
            environ[name] = str(Path(value).absolute())


def read_versions(python, environ):
    """{package: version} in the Python of the children, without importing any of them."""
    with ask_versions(python, environ) as read:
        return read()


@contextlib.contextmanager
def ask_versions(python, environ):
    """A context that gives the function which waits for what read_versions says."""
    with start_bounded([python, "-c", _ASK_VERSIONS, *PACKAGES], env=environ, timeout=60) as wait:
        yield lambda: _parse_versions(python, *wait())


def _parse_versions(python, code, output):
    lines = [line for line in output.splitlines() if line.startswith("GEMSCREEN ")]
    if code != 0 or not lines:
        last = (output.strip().splitlines() or ["no answer"])[-1]
        raise UserError(f"PYTHON: {python}: does not run: {last}; see `make doctor`", REFUSED)
    return json.loads(lines[-1].partition(" ")[2])


def describe_tree(tree):
    """{"tree": path, "commit": hex or "", "changes": digest of what differs from the commit outside the benchmarks}.

    A tree that is no git checkout of its own has FLAGGEMS_COMMIT or "", and the digest of all its sources.
    """
    tree = Path(tree)
    top = run_git(tree, "rev-parse", "--show-toplevel")
    if top is None or Path(top.strip()).resolve() != tree.resolve():
        names = [path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.suffix in SOURCES]
        outside = sorted(name for name in names if not name.startswith(("benchmark/", "tests/")))
        return {"tree": str(tree), "commit": find_commit(tree, os.environ), "changes": sha256_tree(tree, outside)}
    scope = ("--", ".", ":(exclude)benchmark", ":(exclude)tests")
    difference = run_git(tree, "diff", "HEAD", "--binary", *scope) or ""
    untracked = (run_git(tree, "ls-files", "--others", "--exclude-standard", *scope) or "").splitlines()
    sources = sorted(name for name in untracked if name.endswith(SOURCES))
    changes = sha256_json([sha256_text(difference), sha256_tree(tree, sources)]) if difference or sources else ""
    return {"tree": str(tree), "commit": run_git(tree, "rev-parse", "HEAD") or "", "changes": changes}


def digest_shared(tree, folder):
    """Digest of what everything in `folder` (benchmark or tests) of `tree` shares: its sources but test_*.py, and pytest.ini."""
    tree = Path(tree)
    shared = [path.relative_to(tree).as_posix() for path in sorted((tree / folder).rglob("*"))
              if path.suffix in SOURCES and not path.name.startswith("test_")]
    return sha256_tree(tree, [*shared, "pytest.ini"])


def digest_runner(run_pytest):
    """Digest of what makes the figures: run_pytest.sh (or what stands in for it), the plugins, what forks
    a warm pytest, the checks of its knobs, the way to run.log."""
    names = [path.relative_to(ROOT).as_posix() for folder in ("plugins", "warm") for path in sorted((ROOT / folder).rglob("*"))
             if path.suffix in SOURCES]
    script = Path(run_pytest).read_text(encoding="latin-1")
    code = [_KNOB.sub(r"\1", line) for line in script.splitlines() if line.strip() and not re.match(r"\s*#(?!!)", line)]
    return sha256_json([code, sha256_tree(ROOT, [*names, "common/check_knobs.sh", "common/log_pipe.py", "common/log_pipe.sh"])])


def list_screen_inputs(environ, run_pytest, versions, vendor, models):
    """The components that all operators of a screen share, each as a digest. `models`: the kinds of cards."""
    host_target = environ.get("HOST_TARGET", "") if vendor == "host" else ""
    return {
        "knobs": sha256_json({name: environ.get(name, "") for name in list_knobs()}),
        "versions": sha256_json(versions),
        "switches": sha256_json(list_switches(environ)),
        "runner": digest_runner(run_pytest),
        "device": sha256_json([vendor, models, host_target]),
    }


def list_repo_inputs(screen_inputs, tree, tree_facts, suite):
    """Those that all operators of one tree share. `tree_facts` as describe_tree returns them."""
    return {**screen_inputs, "tree": sha256_json([tree_facts["commit"], tree_facts["changes"]]),
            "shared": digest_shared(tree, "tests" if suite == "tests" else "benchmark")}


def list_op_inputs(repo_inputs, tree, nodes, shapes, replay):
    """All components of one operator. `shapes`: a file or "", `replay`: a directory, a file or ""."""
    files = list_files(tree, {node.partition("::")[0] for node in nodes})
    return {
        **repo_inputs,
        "nodes": sha256_json(sorted(nodes)),
        "shapes": sha256_file(shapes) if shapes else "",
        "files": sha256_tree(tree, files),
        "replay": _digest_record(replay) if replay else "",
    }


def list_files(tree, files):
    """The benchmark files `files`, and those beside them that they import (base.py and its like are `shared`)."""
    found, waiting = set(), sorted(files)
    while waiting:
        name = waiting.pop()
        path = Path(tree) / name
        if name not in found and path.is_file():
            imports = " ".join(_IMPORT.findall(path.read_text(encoding="utf-8", errors="replace")))
            siblings = [path.with_name(f"{module}.py") for module in set(re.findall(r"\btest_\w+", imports))]
            waiting += [sibling.relative_to(tree).as_posix() for sibling in siblings if sibling.is_file()]
        found.add(name)
    return sorted(found)


def split_list(text):
    """The parts of a list; they are separated by commas, blanks or both."""
    return (text or "").replace(",", " ").split()


def _digest_record(replay):
    """Of a run directory its record alone: whatever else lies there (logs, caches) is not replayed."""
    path = Path(replay)
    return sha256_file(path) if path.is_file() else sha256_tree(path, ["autotune.json"])
