"""_seed_plugin: a test's random inputs are the same in every process, whatever ran before it."""
import subprocess
import sys

import pytest

from stub_tree import ROOT

BENCHMARK = """
import random
import numpy, torch

AT_IMPORT = random.random()

def show(name):
    print(f"DREW {name} {random.random()} {numpy.random.rand()} {torch.rand(1).item()}")

def test_one(): show("one")
def test_two(): show("two"), print(f"DREW import {AT_IMPORT}")
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    path = tmp_path_factory.mktemp("tree")
    (path / "test_it.py").write_text(BENCHMARK)
    return path


def draw(tree, *nodes, seed):
    command = [sys.executable, "-m", "pytest", "-s", "-q", "-p", "no:cacheprovider", "-p", "_seed_plugin", *nodes]
    done = subprocess.run(command, cwd=tree, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "plugins"), "SEED": seed},
                          capture_output=True, text=True, timeout=100)
    lines = [line.partition("DREW ")[2].split() for line in done.stdout.splitlines() if "DREW " in line]
    return {name: values for name, *values in lines}, done


def test_inputs_depend_on_the_seed_and_the_test_alone(tree):
    both, done = draw(tree, "test_it.py", seed="0")
    alone, _ = draw(tree, "test_it.py::test_two", seed="0")
    other, _ = draw(tree, "test_it.py::test_two", seed="1")
    assert done.returncode == 0, done.stdout
    assert both["one"][0] == "0.8295148840843091"
    assert alone == {"two": both["two"], "import": both["import"]}
    for place in range(3):  # random, numpy, torch
        assert len({both["one"][place], both["two"][place], other["two"][place]}) == 3
    assert other["import"] != alone["import"]


def test_none_leaves_them_as_they_are(tree):
    first, second = (draw(tree, "test_it.py::test_two", seed="none")[0]["import"] for _ in range(2))
    assert first != second


def test_what_is_no_seed_is_refused(tree):
    _, done = draw(tree, "test_it.py", seed="1e3")
    assert done.returncode == 4
    assert "SEED: 1e3: is no whole number; give one, as SEED=0, or SEED=none" in done.stderr
