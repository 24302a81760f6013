"""run_batch.py on a directory that was worked on before: which one it takes, what it keeps, what it refuses."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from screen_stub import COLUMNS, ROOT

FAILS = "[ -e \"$BEHAVE/mended\" ] || { test_line failed 'RuntimeError: bad'; finish 1; }"
HANGS = "trap '' TERM; setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' & touch \"$RUN_DIR/ready\"; " \
        "while :; do sleep 1; done"


def commit(tree, message):
    """Make `tree` a git checkout with one more commit; its name."""
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@y", "-C", tree]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "--allow-empty", "-m", message]):
        subprocess.run([*git, *words], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def rows(stub, run=None):
    return {row["op"]: (row["status"], row["latency_ms"]) for row in stub.read_csv("summary.csv", run)}


def all_files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---- other trees and commits

def test_run_of_a_screen_of_another_tree_is_refused_and_nothing_changes(stub):
    assert stub.run("--run", "mine") == 0
    run = stub.folder / "mine"
    before = all_files(run)
    other = stub.folder / "other"
    shutil.copytree(stub.tree, other)
    assert stub.run("--run", "mine", FLAGGEMS_DIR=other) == 2
    assert (f"RUN: mine: is a screen of main {stub.tree} (commit unknown), asked for is main {other} (commit unknown); results "
            "of two trees do not go together: name another directory, or a new one by FRESH=1 without RUN") in stub.output()
    assert all_files(run) == before


def test_results_of_another_commit_are_never_shown_as_current(stub):
    first = commit(stub.tree, "one")
    assert stub.run("--run", "mine") == 0
    second = commit(stub.tree, "two")
    assert stub.run("--run", "mine", "--ops", "abs") == 1
    changed = f"OPS (unset -> abs), commit of main ({first} -> {second})"
    assert f"changed since this screen was started last: {changed}" in stub.output()
    assert "1 complete operator again (changed: tree)" in stub.output()
    run = stub.folder / "mine"
    assert rows(stub, run) == {"abs": ("ok", "0.02"), "add": ("interrupted", ""), "mm": ("interrupted", "")}
    assert stub.read_csv("summary.csv", run)[1]["reason"] == "not measured again: its last result is of another tree"
    assert stub.run("--run", "mine") == 0
    assert [stub.attempts(op, run) for op in ("abs", "add", "mm")] == [["1", "2"]] * 3


def test_run_and_fresh_exclude_each_other_where_there_is_a_screen(stub):
    assert stub.run("--run", "mine", "--fresh") == 0
    assert stub.run("--run", "mine", "--fresh") == 2
    assert "FRESH: 1: RUN=mine is there already; name a new directory, or unset FRESH" in stub.output()


def test_another_card_model_is_another_measurement_and_another_screen(stub):
    torch = ("import types\ncuda = types.SimpleNamespace(is_available=lambda: True, device_count=lambda: 1, "
             "get_device_name=lambda n: 'NVIDIA {}')\n")
    card = {"PYTHONPATH": stub.folder, "DEVICES": "0"}
    (stub.folder / "torch.py").write_text(torch.format("H100"))
    assert stub.run("--ops", "abs", **card) == 0
    first = stub.latest
    (stub.folder / "torch.py").write_text(torch.format("H200 of another size"))
    assert stub.run("--ops", "abs", **card) == 0
    assert stub.latest != first and f"{first.name} has another selection (on NVIDIA H100)" in stub.output()
    assert stub.run("--ops", "abs", "--run", str(first), **card) == 0
    assert "models (NVIDIA H100 -> NVIDIA H200 of another size)" in stub.output() and stub.attempts("abs", first) == ["1", "2"]
    assert "1 complete operator again (changed: device)" in stub.output()


# ---- which screen

def test_the_newest_screen_of_the_same_selection_goes_on_though_another_came_between(stub):
    assert stub.run() == 0
    first = stub.latest
    assert stub.run("--ops", "abs") == 0
    assert stub.latest != first
    assert stub.run() == 0
    assert stub.latest == first and "resumed: 3 of 3" in stub.output()


@pytest.mark.parametrize("hours, goes_on", [(1, True), (13, False)])
def test_an_unfinished_screen_counts_from_its_last_activity(stub, hours, goes_on):
    assert stub.run() == 0
    first = stub.latest
    facts = json.loads((first / "screen.json").read_text()) | {"created": "2026-11-01T00:00:00Z"}
    (first / "screen.json").write_text(json.dumps(facts))
    (first / "main/mm/.complete").unlink()
    then = time.time() - hours * 3600
    for path in (first / "screen.json", *first.glob("main/*/.complete"), *first.glob("main/*/attempts")):
        os.utime(path, (then, then))
    assert stub.run() == 0
    assert (stub.latest == first) == goes_on
    assert f"last worked on {'1.0' if goes_on else '13'} hours ago" in stub.output()


# ---- what failed

def test_retry_failed_runs_again_what_is_not_ok(stub):
    for op in ("abs", "mm"):
        stub.behave(op, FAILS)
    assert stub.run("--retries", "0") == 1
    assert stub.output().splitlines()[-1] == "the same call with RETRY_FAILED=1 runs what is failed once more"
    (stub.behaviour / "mended").touch()
    assert stub.run("--retries", "0") == 1 and "resumed: 3 of 3" in stub.output()
    assert stub.run("--retries", "0", RETRY_FAILED=1) == 0
    assert "2 complete operators again (RETRY_FAILED=1)" in stub.output()
    assert [stub.attempts(op) for op in ("abs", "add", "mm")] == [["1", "2"], ["1"], ["1", "2"]]
    assert "RETRY_FAILED" not in stub.output().splitlines()[-1]


def test_a_dtype_fallback_is_named_at_the_operator_and_at_the_end(stub):
    stub.behave("abs", "refuse_dtype int32")
    stub.behave("mm", "refuse_dtype int32 float16")
    assert stub.run("--dtypes", "int32,float16") == 0
    lines = stub.output().splitlines()
    assert any(" ok        main/abs " in line and "dtypes: float16 (fallback: subset)" in line for line in lines)
    assert any(" ok        main/mm " in line and "dtypes: its own (fallback: own)" in line for line in lines)
    assert "with other dtypes than asked for (column fallback): main/abs, main/mm" in lines


# ---- a screen that is aborted

def test_an_aborted_screen_leaves_no_old_summary(stub):
    assert stub.run("--run", "mine") == 0
    run = stub.folder / "mine"
    (stub.tree / "benchmark/test_mm.py").write_text("# changed\n")
    stub.behave("mm", HANGS)
    driver = stub.start("--run", "mine", GRACE_S="0.2")
    stub.wait_for(lambda: list(run.glob("main/mm/attempts/*/ready")))
    assert not (run / "summary.csv").exists()
    (run / "main/mm/attempts/2").rename(run / "main/mm/attempts/gone")       # an error in the middle of it
    (run / "main/mm/attempts").chmod(0)
    driver.terminate()
    assert driver.wait(30) == 130
    (run / "main/mm/attempts").chmod(0o755)
    assert rows(stub, run)["mm"][0] == "interrupted" and rows(stub, run)["abs"] == ("ok", "0.02")


def test_a_refused_environment_leaves_a_summary_of_what_there_is(stub):
    assert stub.run("--run", "mine", "--ops", "abs") == 0
    stub.stub.write_text("#!/bin/sh\n[ \"$1\" != --check ] || exit 0\n"
                         "echo 'run_pytest.sh: error: PYTHON: /x: has no pytest; give another' >&2\nexit 3\n")
    assert stub.run("--run", "mine") == 3
    assert stub.output().count("PYTHON: /x: has no pytest") == 1
    run = stub.folder / "mine"
    assert set(rows(stub, run)) == {"abs", "add", "mm"} and rows(stub, run)["add"] == ("interrupted", "")


def test_a_refusal_in_the_middle_ends_the_others_and_touches_no_other_marker(stub):
    assert stub.run("--run", "mine") == 0
    run = stub.folder / "mine"
    before = (run / "main/add/.complete").read_bytes()
    stub.behave("abs", HANGS)
    refusal = """case "$1" in add)
        while ! ls "${RUN_DIR%/main/*}"/main/abs/attempts/2/ready; do sleep 0.05; done > /dev/null 2>&1
        echo 'run_pytest.sh: error: TIMER: x: unknown' >&2; exit 2
    esac
    """
    stub.stub.write_text(stub.stub.read_text().replace("set -u\n", f"set -u\n{refusal}\n"))
    assert stub.run("--run", "mine", GRACE_S="0.2") == 2
    assert stub.output().count("TIMER: x: unknown") == 1 and "Traceback" not in stub.output()
    assert stub.list_processes() == []
    assert (run / "main/add/.complete").read_bytes() == before and "2" not in stub.attempts("add", run)
    assert rows(stub, run)["abs"][0] == "interrupted"


def test_the_next_start_ends_what_a_killed_driver_of_another_screen_left(stub):
    stub.behave("abs", HANGS)
    driver = stub.start("--ops", "abs")
    stub.wait_for_attempt("abs")
    first = stub.latest
    live = stub.start("--ops", "abs", "--fresh")
    stub.wait_for(lambda: len(list(stub.runs.glob("screen-*/main/abs/attempts/1/ready"))) == 2)
    driver.kill()
    driver.wait()
    assert stub.run("--ops", "add", GRACE_S="0.2") == 0
    assert f"left by an earlier driver of {first.name}, ended: " in stub.output()
    assert live.poll() is None and stub.list_processes()
    assert {path.parts[-5] for path in stub.runs.glob("*/main/abs/.complete")} == set()
    live.terminate()
    assert live.wait(30) == 130
    assert stub.list_processes() == []


# ---- shapes

def test_a_set_of_shapes_is_kept_in_the_screens_own_directory(stub):
    shapes = stub.folder / "my.yaml"
    shapes.write_text("BlasBenchmark:\n  shapes:\n  - [1, 2, 3, 4]\nBenchmark:\n  shapes:\n  - [64, 64]\n")
    stub.behave("abs", 'echo "$SHAPES" > "$RUN_DIR/shapes"; cat "$SHAPES" >> "$RUN_DIR/shapes"')
    assert stub.run("--ops", "abs", "--shapes", str(shapes), "--dry-run") == 0
    assert not stub.runs.exists()
    assert stub.run("--ops", "abs", "--shapes", str(shapes)) == 0
    path, _, text = (stub.latest / "main/abs/attempts/1/shapes").read_text().partition("\n")
    assert path.startswith(f"{stub.latest}/shapes/my-") and text == shapes.read_text()
    assert stub.run("--ops", "abs", "--shapes", "core") == 0
    merged = (stub.latest / "main/abs/attempts/1/shapes").read_text().partition("\n")[0]
    assert merged.startswith(f"{stub.latest}/shapes/core-main-") and not (stub.runs / "shapes").exists()


def test_another_driver_is_said(stub):
    """Results stay: a driver is no input, as it does not compile."""
    assert stub.run("--ops", "abs") == 0
    facts = json.loads((stub.latest / "screen.json").read_text())
    (stub.latest / "screen.json").write_text(json.dumps(facts | {"driver": "1.2.3"}))
    assert stub.run("--ops", "abs", "--run", str(stub.latest)) == 0
    assert f"changed since this screen was started last: driver (1.2.3 -> {facts['driver'] or 'unknown'})" in stub.output()


# ---- damage

@pytest.mark.parametrize("text", [
    "{", "[]", '{"run_id": 5, "created": "2026-11-30T00:00:00Z"}', '{"run_id": "a", "created": "now"}',
    '{"run_id": "a", "created": "2026-11-30T00:00:00Z", "repos": {"main": 1}}'])
def test_a_damaged_screen_json_is_said_and_nothing_is_lost(stub, text):
    assert stub.run("--ops", "abs") == 0
    first = stub.latest
    (first / "screen.json").write_text(text)
    before = all_files(first)
    assert stub.run("--ops", "abs", "--run", str(first)) == 4
    assert f"{first}/screen.json: is damaged; put back a copy" in stub.output() and "Traceback" not in stub.output()
    assert all_files(first) == before
    assert stub.run("--ops", "abs") == 0 and stub.latest != first


@pytest.mark.parametrize("text", [
    None, "", "schema,repo\n1,main\n", "schema,repo,op,status,device,nodes,reason\n1,main,ab", "\0\n", "\xff",
    "schema,repo,op,status,device,nodes,reason\n1,main,mm,great,0,x,\n"])
def test_a_damaged_plan_is_made_anew_and_no_result_is_lost(stub, text):
    assert stub.run("--run", "mine") == 0
    path = stub.folder / "mine/plan.csv"
    if text is None:
        path.unlink()
    else:
        path.write_bytes(text.encode("latin-1"))
    assert stub.run("--run", "mine", "--ops", "abs") == 0
    assert "Traceback" not in stub.output()
    assert rows(stub, stub.folder / "mine") == dict.fromkeys(["abs", "add", "mm"], ("ok", "0.02"))


@pytest.mark.parametrize("field, value", [
    ("inputs", [1]), ("status", ["ok"]), ("attempt", "1"), ("seconds", "long"), ("timeout", {}), ("reason", 5),
    ("inputs_sha256", None)])
def test_a_marker_with_a_field_of_another_type_is_no_outcome(stub, field, value):
    assert stub.run("--ops", "abs") == 0
    path = stub.latest / "main/abs/.complete"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    assert stub.run("--ops", "abs") == 0
    assert "1 complete operator again (its marker is damaged)" in stub.output() and stub.attempts("abs") == ["1", "2"]


@pytest.mark.parametrize("repo, op, message", [
    ("main", "../../evil", "line 5: op '../../evil': is no operator's name"),
    ("main", "..", "line 5: op '..': is no operator's name"),
    ("other", "abs", "line 5: repo 'other': valid are main, vllm, samples"),
    ("samples", "abs", "samples/abs: is no operator of main"),
])
def test_an_inventory_row_cannot_lead_elsewhere(stub, repo, op, message):
    row = f"1,{repo},{op},abs,abs,benchmark/test_abs.py::test_abs,benchmark/test_abs.py,Benchmark,abs,,,,,,ast,yes"
    lines = ["# repo: main", "# commit: stub", "# verified: yes", COLUMNS, row]
    (stub.ops_dir / "inventory_main.csv").write_text("\n".join(lines) + "\n")
    assert stub.run() == 2
    assert message in stub.output() and "Traceback" not in stub.output()
    assert not stub.runs.exists()


@pytest.mark.parametrize("name, is_input", [
    ("warm/server.py", True), ("warm/client.py", True), ("plugins/_device_guard_plugin.py", True),
    ("common/log_pipe.sh", True), ("common/check_knobs.sh", True), ("common/outcome.py", False)])
def test_what_makes_the_figures_is_an_input(tmp_path, name, is_input):
    for folder in ("common", "plugins", "warm"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "run_pytest.sh", tmp_path)
    ask = [sys.executable, "-c", "from common.inputs import digest_runner; print(digest_runner('run_pytest.sh'))"]
    before = subprocess.check_output(ask, cwd=tmp_path)
    with open(tmp_path / name, "a") as stream:
        stream.write("\n")
    assert (subprocess.check_output(ask, cwd=tmp_path) != before) == is_input


# ---- places and programs

def test_runs_in_odd_places(stub):
    (stub.folder / "file").write_text("")
    (stub.folder / "closed").mkdir(mode=0o555)
    for name, runs in (("file", "file"), ("file/below", "file/below")):
        assert stub.run(RUNS=runs) == 2
        assert f"RUNS: {stub.folder}/{name}: " in stub.output() and "is no directory" in stub.output()
        assert stub.run("--run", runs) == 2 and f"RUN: {stub.folder}/{name}: " in stub.output()
    if os.geteuid():
        assert stub.run(RUNS="closed/runs") == 3 and f"{stub.folder}/closed cannot be written to" in stub.output()
    assert stub.run("--ops", "abs", RUNS="a place/runs here") == 0
    assert stub.run("--ops", "abs", RUNS="a place/runs here") == 0 and "resumed: 1 of 1" in stub.output()
    assert len(list((stub.folder / "a place/runs here").glob("screen-*"))) == 1


def test_a_place_that_cannot_be_made_is_said(stub):
    for knob in ("RUN", "RUNS"):
        assert stub.run(**{knob: "/proc/x"}) == 3
        assert stub.output() == "run_batch.py: error: /proc/x: no such file or directory; name another\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_caller_that_closed_its_descriptors(stub, closed):
    command = [sys.executable, ROOT / "run_batch.py", "--ops", "abs"]
    done = subprocess.run(["bash", "-c", f'exec "$@" {closed}', "-", *command], env=stub.environ(), cwd=stub.folder,
                          capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and stub.marker("abs")["status"] == "ok"


def test_half_written_files_of_a_killed_driver_go(stub):
    assert stub.run("--ops", "abs") == 0
    left = [stub.latest / name for name in ("screen.json.0badf00d.tmp", "main/abs/.complete.0badf00d.tmp", ".warm/0-main/state",
                                            ".ahead/main/abs.log")]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{")
    assert stub.run("--ops", "abs") == 0 and not [path for path in left if path.exists()]


@pytest.mark.parametrize("variables, message", [
    ({"OPS": " "}, "OPS: ' ': names nothing"), ({"OPS": ","}, "OPS: ',': names nothing"),
    ({"DTYPES": ", "}, "DTYPES: ', ': names nothing"),
    ({"DEVICES": " ,"}, "DEVICES: ' ,': names nothing"), ({"FRESH": "no"}, "FRESH: no: unknown; valid are 0, 1"),
    ({"RETRY_FAILED": "false"}, "RETRY_FAILED: false: unknown; valid are 0, 1"),
    ({"WARM": "yes"}, "WARM: yes: unknown; valid are 0, 1"),
])
def test_a_knob_that_means_nothing_is_refused(stub, variables, message):
    assert stub.run(**variables) == 2
    assert message in stub.output() and not stub.runs.exists()


def test_an_empty_knob_has_its_default(stub):
    names = ("OPS MATCH DTYPES LEVEL MODE SUITE SHAPES ENGINE SHARD WARM FRESH RETRY_FAILED TIMEOUT RETRIES GRACE_S SETTLE_S "
             "RUN").split()
    assert stub.run("--dry-run", **dict.fromkeys(names, "")) == 0
    assert "3 of 3 to run on 3 devices" in stub.output()


def test_a_python_that_is_not_there_or_is_relative(stub):
    assert stub.run(PYTHON="/nope") == 3
    assert "PYTHON: /nope: not found; give another" in stub.output() and "Traceback" not in stub.output()
    (stub.folder / "bin").mkdir()
    (stub.folder / "bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (stub.folder / "bin/python").chmod(0o755)
    stub.behave("abs", 'echo "$PYTHON" > "$RUN_DIR/python"')
    assert stub.run("--ops", "abs", PYTHON="bin/python") == 0
    assert (stub.latest / "main/abs/attempts/1/python").read_text() == f"{stub.folder}/bin/python\n"


def test_operators_separated_by_blanks(stub):
    assert stub.run("--ops", "abs  mm") == 0
    assert stub.run("--ops", "abs,mm, abs") == 0            # the same selection
    assert "resumed: 2 of 2" in stub.output()
    assert subprocess.run([ROOT / "run_batch.py", "--help"], stdout=subprocess.DEVNULL, check=False).returncode == 0


# ---- suites and strict replay

def test_suite_tests_runs_the_operators_tests(stub):
    (stub.tree / "tests").mkdir()
    (stub.tree / "tests/test_abs.py").write_text("# tests of abs\n")
    path = stub.ops_dir / "inventory_main.csv"
    with_tests = ",Benchmark,abs,,,tests/test_abs.py,tests/test_abs.py::test_abs,"
    path.write_text(path.read_text().replace(",Benchmark,abs,,,,,", with_tests))
    assert stub.run(SUITE="benchmark") == 0
    stub.run(SUITE="tests")
    plan = {row["op"]: (row["status"], row["nodes"], row["reason"]) for row in stub.read_csv("plan.csv")}
    none = ("not_found", "", "the inventory has no tests of it (SUITE=tests)")
    assert plan == {"abs": ("planned", "tests/test_abs.py::test_abs", ""), "add": none, "mm": none}
    assert stub.log_facts("abs", 1)["nodes"] == "tests/test_abs.py::test_abs"
    assert stub.run(SUITE="test") == 2 and "SUITE: test: unknown; valid are benchmark, tests" in stub.output()


def test_a_strict_replay_runs_nothing_that_has_no_record(stub):
    stub.behave("abs", 'echo {} > "$RUN_DIR/autotune.json"')
    assert stub.run("--ops", "abs,add") == 0
    first = stub.latest
    assert stub.run("--ops", "abs,add", "--replay-root", str(first), REPLAY_STRICT=1) == 0
    assert f"no record in {first}, skipped: main/add" in stub.output()
    found = {row["op"]: (row["status"], row["reason"]) for row in stub.read_csv("summary.csv")}
    assert found == {"abs": ("ok", ""), "add": ("skipped", f"no autotune.json in {first} (REPLAY_STRICT=1)")}
    assert stub.run("--replay-root", str(first), "--replay-missing", "run", REPLAY_STRICT=1) == 2
    assert "REPLAY_MISSING: run: REPLAY_STRICT=1 allows no operator to be tuned live" in stub.output()
    assert stub.run(REPLAY_STRICT=1) == 2 and "REPLAY_STRICT: 1: nothing is replayed; say what: REPLAY_ROOT=" in stub.output()
