"""run_pytest.sh: what it refuses, before anything is made."""
import os
import subprocess
import sys

import pytest

from common.inputs import DTYPES
from stub_tree import PASSES, ROOT, add_benchmark, make_env, make_tree, run_script, script_command


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path / "tree")


@pytest.mark.parametrize(
    "changes, status, words",
    [
        ({"LEVEL": "cor"}, 2, ["LEVEL: cor: ", "core comprehensive"]),
        ({"MODE": "graph"}, 2, ["MODE: graph: ", "cudagraph"]),
        ({"TIMER": "cudagraph"}, 2, ["TIMER: cudagraph: ", "do_bench"]),
        ({"CACHE": "warm"}, 2, ["CACHE: warm: ", "cold"]),
        ({"TIMER": "graf", "PLUGINS": "_cudagraph_plugin"}, 2, ["TIMER: graf: ", "graph do_bench event"]),
        ({"TIMER": "do_bench", "CACHE": "warm", "PLUGINS": "_cudagraph_plugin"}, 2, ["CACHE: warm: ", "cold"]),
        ({"TIMER": "graph", "HOST_TARGET": "cuda:90"}, 2, ["TIMER: graph: ", "host"]),
        ({"TIMER": "graph", "MODE": "wrapper", "PLUGINS": "_cudagraph_plugin"}, 2, ["TIMER: graph: ", "wall"]),
        ({"USE_FLAGTUNE": "yes"}, 2, ["USE_FLAGTUNE: yes: ", "0 1"]),
        ({"HOST_TARGET": "cuda90"}, 2, ["HOST_TARGET: cuda90: ", "cuda:80 cuda:90"]),
        ({"HOST_MODE": "run"}, 2, ["HOST_MODE: run: ", "execute compile"]),
        ({"ITER_MS": "1.5"}, 2, ["ITER_MS: 1.5: "]),
        ({"SEED": "-1"}, 2, ["SEED: -1: is no whole number of at most 9 digits; give one, as SEED=0, or SEED=none"]),
        ({"DTYPES": "float16,flaot32"}, 2, ["DTYPES: flaot32: "]),
        ({"DTYPES": "float64"}, 2, ["DTYPES: float64: ", *DTYPES]),
        ({"SHAPES": "/no/such.yaml"}, 2, ["SHAPES: /no/such.yaml: no such file"]),
        ({"REPLAY_STRICT": "1"}, 2,  # stub_tree's PLUGINS
         ["PLUGINS: lacks _autotune_record_plugin, without which nothing is replayed"]),
        ({"PLUGINS": "_pretty_report_plugn"}, 2, ["PLUGINS: _pretty_report_plugn: ", "_pretty_report_plugin.py"]),
        ({"FLAGGEMS_DIR": "/"}, 2, ["FLAGGEMS_DIR: /: is no checkout"]),
        ({"REPO": "extra"}, 2, ["REPO: extra: ", "main vllm samples"]),
        ({"REPO": "vllm", "FLAGGEMS_VLLM_DIR": "/tmp"}, 2, ["FLAGGEMS_VLLM_DIR: /tmp: is no checkout"]),
        ({"PYTHON": "/no/python"}, 3, ["PYTHON: /no/python: not found"]),
        ({"RUN_DIR": "/proc/run"}, 3, ["RUN_DIR: /proc/run: cannot be made"]),
        ({"RUN_DIR": "/tmp/none/a?b"}, 2, ["RUN_DIR: /tmp/none/a?b: has a `?`, at which the URL of FlagGems' tuner database "
                                           "would end; name another place"]),
        ({"FLAGGEMS_CACHE_DIR": "/tmp/a?b"}, 2, ["FLAGGEMS_CACHE_DIR: /tmp/a?b: has a `?`"]),
        ({"HOME": "/tmp/a?b"}, 2, ["HOME: /tmp/a?b: has a `?`", "; set FLAGGEMS_CACHE_DIR"]),
    ],
)
def test_bad_knob_is_refused_before_anything_is_made(tree, changes, status, words):
    node = add_benchmark(tree, "one", PASSES)
    ended = run_script(tree, "one", node, **changes)
    assert ended.returncode == status, ended.stdout + ended.stderr
    errors = [line for line in ended.stderr.splitlines() if ": error: " in line]
    assert len(errors) == 1 and all(word in errors[0] for word in words), ended.stderr
    assert ended.stdout == "" and not (tree / "run").exists()


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], ["OP: missing", "usage"]),
        (["a/b"], ["OP: a/b: "]),
        (["one", "benchmark/test_none.py::test_none"], ["NODE: benchmark/test_none.py::test_none: no file"]),
    ],
)
def test_bad_arguments_are_refused(tree, arguments, words):
    env = make_env(tree, FLAGGEMS_DIR=tree, DEVICE="0", RUN_DIR=tree / "run")
    command = [str(ROOT / "run_pytest.sh"), *arguments]
    ended = subprocess.run(command, env=env, cwd=tree, text=True, capture_output=True, timeout=60)
    assert ended.returncode == 2 and all(word in ended.stderr for word in words), ended.stderr
    assert not (tree / "run").exists()


def test_python_without_pytest_is_refused(tree, tmp_path):
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -I "$@"\n')
    (tmp_path / "python").chmod(0o755)
    node = add_benchmark(tree, "one", PASSES)
    ended = run_script(tree, "one", node, PYTHON=tmp_path / "python")
    assert ended.returncode == 3 and "has no pytest" in ended.stderr
    assert not (tree / "run").exists()


def test_unknown_operator_without_nodes_is_refused(tmp_path):
    env = {**os.environ, "PYTHON": sys.executable, "RUN_DIR": str(tmp_path / "run"), "REPO": "samples"}
    ended = subprocess.run(script_command("abss"), env=env, text=True, capture_output=True, timeout=60)
    assert ended.returncode == 2 and "abss" in ended.stderr and "abs" in ended.stderr.replace("abss", "")
    assert not (tmp_path / "run").exists()


def test_check_judges_the_knobs_and_makes_nothing(tree):
    before = sorted(tree.rglob("*"))
    ended = run_script(tree, "--check", HOST_TARGET="cuda:90")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert run_script(tree, "--check", LEVEL="cor").returncode == 2
    assert sorted(tree.rglob("*")) == before
