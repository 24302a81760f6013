"""run_pytest.sh through its command line, on a stub tree (fast), and once on the sample tree with the host device."""
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from common.runlog import parse_runlog
from stub_tree import PASSES, ROOT, add_benchmark, make_env, make_tree, read_log, run_script, script_command


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path / "tree")


# What a run leaves behind ---------------------------------------------------------------------------------------


def test_run_writes_banner_log_status_and_outcomes(tree):
    node = add_benchmark(tree, "one", PASSES) + "::test_one"
    ended = run_script(tree, "one", node, DTYPES="float16, float32", ATTEMPT=2, FALLBACK="subset")
    run = tree / "run"
    assert ended.returncode == 0, ended.stdout + ended.stderr
    first, rest = ended.stdout.split("\n", 1)
    assert first == f"run directory: {run}"
    assert rest == read_log(run)
    log = parse_runlog(run / "run.log")
    expected = {
        "schema": "1", "repo": "main", "op": "one", "tree": str(tree), "commit": "unknown", "nodes": node,
        "dtypes": "float16,float32", "level": "core", "mode": "kernel", "timer": "do_bench", "cache": "cold",
        "shapes": "", "seed": "0", "device": "0", "attempt": "2", "fallback": "subset", "use_flagtune": "0", "host_target": "",
        "warmup_ms": "1000", "iter_ms": "100",
    }  # fmt: skip
    assert {key: log.header.get(key) for key in expected} == expected
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", log.header["started"])
    assert log.footer["pytest_exit"] == "0" and log.footer["seconds"].isdigit() and log.footer["finished"]
    assert read_log(run).startswith("==== gemscreen begin ====\n") and read_log(run).endswith("\n====\n")
    assert json.loads((run / "exit.json").read_text()) == {"schema": 1, "pytest_exit": 0}
    (line,) = map(json.loads, (run / "tests.jsonl").read_text().splitlines())
    assert line == {"schema": 1, "node": node, "outcome": "passed", "when": "call", "seconds": line["seconds"],
                    "error": "", "reason": ""}  # fmt: skip
    assert [(row.dtype, row.status, row.latency_ms) for row in log.rows] == [
        (dtype, "SUCCESS", 0.005) for dtype in ("float16", "float32") for _ in range(3)
    ]


def test_bank_of_knobs_is_in_one_section_with_both_languages():
    text = (ROOT / "run_pytest.sh").read_text(encoding="utf-8")
    section = text.split("# ---- Config")[1].split("# ---- End of config")[0]
    knobs = [line for line in section.splitlines() if line.startswith(': "${')]
    assert len(knobs) >= 20
    assert not re.findall(r'^: "\$\{([A-Z_]+):=', text.replace(section, ""), re.M)
    for line in knobs:
        comment = line if "#" in line else section.split(line)[0].splitlines()[-1]
        assert re.search(r"# .*[a-z].* / .*[一-鿿]", comment), line


@pytest.mark.parametrize(
    "status, body, extra",
    [
        (0, "def test_one(): pass", ""),
        (0, "def test_one(): pytest.skip('no such hardware')", ""),
        (1, "def test_one(): assert False", ""),
        (2, "def test_one(): raise KeyboardInterrupt", ""),
        (2, "import no_such_module", ""),
        (3, "def test_one(): pytest.exit('stop', returncode=3)", ""),
        (4, "def test_one(): pass", "--no-such-option"),
        (4, "def test_other(): pass", ""),
        (5, "", "--deselect=benchmark/test_one.py"),
    ],
)
def test_exit_status_is_pytests_own_also_through_a_pipe(tree, status, body, extra):
    node = add_benchmark(tree, "one", body)
    node = node if status in (2, 5) else f"{node}::test_one"
    command = ["bash", "-c", '"$@" | tee copy >/dev/null; exit "${PIPESTATUS[0]}"', "-", *script_command("one", node)]
    env = make_env(tree, FLAGGEMS_DIR=tree, DEVICE="0", RUN_DIR=tree / "run", PYTEST_EXTRA=extra)
    ended = subprocess.run(command, env=env, cwd=tree, text=True, capture_output=True, timeout=60)
    assert ended.returncode == status, (tree / "copy").read_text() + ended.stderr
    assert json.loads((tree / "run/exit.json").read_text())["pytest_exit"] == status
    assert parse_runlog(tree / "run/run.log").footer["pytest_exit"] == str(status)
    assert (tree / "copy").read_text() == f"run directory: {tree}/run\n" + read_log(tree / "run")


def test_crash_of_the_interpreter_shows_as_signal_and_leaves_no_exit_json(tree):
    node = add_benchmark(tree, "one", "def test_one():\n    import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    ended = run_script(tree, "one", node)
    assert ended.returncode == 128 + signal.SIGSEGV
    assert not (tree / "run/exit.json").exists()
    assert parse_runlog(tree / "run/run.log").footer["pytest_exit"] == "139"


def test_nodes_are_exact(tree):
    node = add_benchmark(tree, "add", "def test_add(): print('ran add')\ndef test_add_(): print('ran add_')")
    add_benchmark(tree, "addmm", "def test_addmm(): print('ran addmm')")
    run_script(tree, "add", f"{node}::test_add")
    lines = read_log(tree / "run").splitlines()
    assert [line for line in lines if line.endswith(("ran add", "ran add_", "ran addmm"))] == [f"{node} ran add"]


def test_several_nodes_and_test_ids_with_brackets(tree):
    node = add_benchmark(tree, "one", "@pytest.mark.parametrize('k', ['a b', 'c'])\ndef test_one(k): print('k:', k)")
    run_script(tree, "one", f"{node}::test_one[a b]", f"{node}::test_one[c]")
    nodes = [json.loads(line)["node"] for line in (tree / "run/tests.jsonl").read_text().splitlines()]
    assert nodes == [f"{node}::test_one[a b]", f"{node}::test_one[c]"]


def test_collision_moves_to_the_next_number_and_touches_nothing(tree):
    node = add_benchmark(tree, "one", PASSES)
    (tree / "run").mkdir()
    (tree / "run/run.log").write_text("evidence")
    assert run_script(tree, "one", node).stdout.startswith(f"run directory: {tree}/run-2\n")
    assert run_script(tree, "one", node).stdout.startswith(f"run directory: {tree}/run-3\n")
    assert read_log(tree / "run") == "evidence" and os.listdir(tree / "run") == ["run.log"]
    assert parse_runlog(tree / "run-3/run.log").header["op"] == "one"


def test_runs_that_start_together_get_a_directory_each(tree):
    node = add_benchmark(tree, "one", PASSES)
    env = make_env(tree, FLAGGEMS_DIR=tree, DEVICE="0", RUN_DIR=tree / "run")
    starts = [subprocess.Popen(script_command("one", node), env=env, cwd=tree, stdout=subprocess.PIPE, text=True)
              for _ in range(4)]  # fmt: skip
    firsts = [start.communicate(timeout=60)[0].split("\n")[0] for start in starts]
    assert sorted(firsts) == [f"run directory: {tree}/run{suffix}" for suffix in ("", "-2", "-3", "-4")]
    assert all(read_log(Path(first.removeprefix("run directory: "))).count("gemscreen begin") == 1 for first in firsts)


@pytest.mark.parametrize("given", ["run", "./run/", "link/run", "new/er/run", "new/../run"])
def test_a_run_directory_may_be_written_in_any_way(tree, given):
    (tree / "link").symlink_to(tree)
    node = add_benchmark(tree, "one", PASSES)
    for path in (given, tree / given):
        ended = run_script(tree, "one", node, RUN_DIR=path)
        run = tree / ("new/er/run" if "er" in given else "run")
        run = run if path == given else run.with_name("run-2")
        assert ended.stdout.startswith(f"run directory: {run}\n") and (run / "exit.json").is_file(), ended.stderr


def test_the_commit_is_the_trees_own_however_git_keeps_it(tree):
    def git(*words, folder=tree):
        done = subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", folder, *words], check=True,
                              capture_output=True, text=True)
        return done.stdout.strip()

    node, runs = add_benchmark(tree, "one", PASSES), 0
    (tree.parent / "link").symlink_to(tree)
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"], ["pack-refs", "--all"],
                  ["commit", "-q", "--allow-empty", "-m", "two"], ["checkout", "-q", "--detach", "HEAD~1"], ["add", "."],
                  ["commit", "-q", "-m", "three"], ["worktree", "add", "-q", str(tree.parent / "other")]):
        git(*words)
        if words[0] not in ("init", "add", "worktree"):
            runs += 1
            run_script(tree, "one", node, RUN_DIR=tree.parent / f"run{runs}", REPO="main", FLAGGEMS_DIR=tree.parent / "link")
            header = parse_runlog(tree.parent / f"run{runs}" / "run.log").header
            assert (header["commit"], header["tree"]) == (git("rev-parse", "HEAD"), str(tree)), words
    other = tree.parent / "other"
    run_script(tree, "one", node, RUN_DIR=tree.parent / "run", REPO="main", FLAGGEMS_DIR=other)
    header = parse_runlog(tree.parent / "run" / "run.log").header
    assert (header["commit"], header["tree"]) == (git("rev-parse", "HEAD", folder=other), str(other))


def test_working_directory_is_the_run_directory(tree):
    node = add_benchmark(tree, "one", PASSES)
    run_script(tree, "one", node, PYTEST_EXTRA="--record json")
    assert (tree / "run/benchmark_result.json").is_file()
    assert not list(tree.glob("*.json"))


def test_paths_mean_the_callers_folder(tree):
    names = "PYTHONPATH", "TRITON_CACHE_DIR", "FLAGGEMS_CACHE_DIR", "TRITON_PTXAS_PATH"
    node = add_benchmark(tree, "one", f"def test_one():\n    import os; print('paths', *map(os.environ.get, {names}))")
    run_script(tree, "one", node, PYTHONPATH="stubs::/x/y:a b:/x/y:", TRITON_CACHE_DIR="cache", FLAGGEMS_CACHE_DIR="/gems",
               TRITON_PTXAS_PATH="./ptxas")
    assert f" paths {ROOT}/plugins:{tree}/stubs:/x/y:{tree}/a b {tree}/cache /gems {tree}/./ptxas\n" in read_log(tree / "run")


# What reaches pytest --------------------------------------------------------------------------------------------


def test_callers_pytest_settings_and_site_plugins_stay_out(tree, tmp_path):
    site = tmp_path / "site"
    (site / "owner-1.0.dist-info").mkdir(parents=True)
    (site / "owner-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: owner\nVersion: 1.0\n")
    (site / "owner-1.0.dist-info/entry_points.txt").write_text("[pytest11]\nowner = owner\n")
    (site / "owner.py").write_text("def pytest_addoption(parser):\n    parser.addoption('--mode')\n")
    node = add_benchmark(tree, "one", PASSES)
    path = f"{tree / 'stubs'}{os.pathsep}{site}"
    ended = run_script(tree, "one", node, PYTHONPATH=path, PYTEST_ADDOPTS="-k nothing", PYTEST_PLUGINS="no_such")
    assert ended.returncode == 0, ended.stdout
    clash = run_script(tree, "one", node, PYTHONPATH=path, SITE_PLUGINS=1)
    assert clash.returncode not in (0, 5) and "--mode" in clash.stdout


@pytest.mark.parametrize("mode, timer, cache", [("kernel", "do_bench", "cold"), ("operator", "wall", "warm")])
def test_knobs_reach_upstreams_options(tree, mode, timer, cache):
    shapes = tree / "my shapes.yaml"
    shapes.write_text("one: {shapes: [[2, 2]]}\n")
    node = add_benchmark(tree, "one", """
        def test_one(request):
            from .conftest import Config
            print(Config.mode.value, Config.bench_level.value, Config.warm_up, Config.repetition, Config.shape_file,
                  Config.user_desired_dtypes, sep="|")
        """)
    run_script(tree, "one", node, MODE=mode, LEVEL="comprehensive", WARMUP_MS=7, ITER_MS=5, SHAPES=shapes,
               DTYPES="float16,float32")  # fmt: skip
    assert f"{mode}|comprehensive|7|5|{shapes}|[torch.float16, torch.float32]" in read_log(tree / "run")
    header = parse_runlog(tree / "run/run.log").header
    assert (header["timer"], header["cache"]) == (timer, cache)


@pytest.mark.parametrize("knobs, seed", [
    ({}, "0"), ({"SEED": "7"}, "7"), ({"SEED": "none"}, "None"), ({"PYTHONHASHSEED": "3"}, "3")])
def test_sets_of_strings_have_one_order_in_every_process(tree, knobs, seed):
    node = add_benchmark(tree, "one", "def test_one():\n    import os; print('hash seed', os.environ.get('PYTHONHASHSEED'))")
    ended = run_script(tree, "one", node + "::test_one", **knobs)
    assert f"hash seed {seed}\n" in ended.stdout and f"\nseed: {knobs.get('SEED', '0')}\n" in ended.stdout


def test_tuner_is_plain_unless_asked(tree):
    node = add_benchmark(tree, "one", "def test_one():\n    import os; print('flagtune', os.environ['USE_FLAGTUNE'])")
    run_script(tree, "one", node)
    run_script(tree, "one", node, USE_FLAGTUNE=1)
    assert "flagtune 0" in read_log(tree / "run") and "flagtune 1" in read_log(tree / "run-2")


# The script itself --------------------------------------------------------------------------------------------------


def test_help_is_the_header():
    ended = subprocess.run([str(ROOT / "run_pytest.sh"), "--help"], text=True, capture_output=True, timeout=20)
    assert ended.returncode == 0
    assert ended.stdout.startswith("run_pytest.sh - run one operator's benchmark")
    assert "USAGE" in ended.stdout and "set -euo" not in ended.stdout


def test_script_passes_shellcheck():
    try:
        ended = subprocess.run(["shellcheck", "-x", "run_pytest.sh"], cwd=ROOT, text=True, capture_output=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("shellcheck is not installed")
    assert ended.returncode == 0, ended.stdout


def test_help_names_every_file(tree):
    text = run_script(tree, "--help").stdout
    for name in ("run.log", "exit.json", "tests.jsonl", "session.jsonl", "autotune.json", "samples.jsonl", "launches.json"):
        assert re.search(rf"^ {{11}}{name} ", text, re.M), name


# The real thing -------------------------------------------------------------------------------------------------


def test_sample_operator_on_the_host_device_by_hand(tmp_path):
    """No checkout, no card, no knob: the sample tree and the host device are found, said, and give a table."""
    env = {k: v for k, v in os.environ.items() if k not in ("GEMS_VENDOR", "FORCE_COLOR", "HOST_TARGET")}
    env.update(PYTHON=sys.executable, RUN_DIR=str(tmp_path / "run"), DTYPES="float16", CUDA_VISIBLE_DEVICES="",
               REPO="samples")  # fmt: skip
    ended = subprocess.run(script_command("abs"), env=env, text=True, capture_output=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "using the host device" in ended.stderr
    log = parse_runlog(tmp_path / "run/run.log")
    expected = {"repo": "samples", "op": "abs", "device": "host:0", "host_target": "cuda:90", "cache": "host",
                "warmup_ms": "1", "iter_ms": "1", "nodes": "benchmark/test_abs.py::test_abs"}  # fmt: skip
    assert {key: log.header.get(key) for key in expected} == expected
    assert log.rows and all(row.status == "SUCCESS" and row.latency_ms > 0 for row in log.rows)
    assert all((row.speedup, row.tflops, row.gbps) == (None, None, None) for row in log.rows)
    assert json.loads((tmp_path / "run/launches.json").read_text())["variants"]
