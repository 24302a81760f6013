"""A campaign end to end through campaign/run.py, with planted outcomes (tests/minicampaign/): all classes and reasons, their
order, and kills and resumes."""
import json
import os
import random
import shlex
import signal
import time
from pathlib import Path

from campaign.classify import REASONS
from harness import FEW, MiniCampaign, edit, wait_for

HERE = Path(__file__).resolve().parent

# Reasons that a whole run cannot end in, or not beside the others; each has its own test.
ELSEWHERE = {"cell-missing", "no-timing", "no-round-b", "noise-unusable"}


# The planted outcomes -----------------------------------------------------------------------------------------------


def test_the_matrix_is_the_golden_one(mini):
    assert (mini.run_dir / "matrix.csv").read_text() == (HERE / "minicampaign" / "golden.csv").read_text()


def test_every_outcome_is_classed_as_it_was_planted(mini):
    """Written out, so that a refreshed golden file cannot carry an error in."""
    assert {task: f"{row['class']} {row['reason']}" for task, row in mini.matrix().items()} == {
        "gain": "G faster", "regression": "R slower", "converts_only": "C inside-noise", "drifting_clock": "C inside-noise",
        "one_round_only": "C rounds-disagree", "mixed_rows": "C rows-disagree", "small_gain": "G faster",
        "wild_rows": "C not-significant", "same_binary": "C identical-binaries", "nothing_to_remove": "B nothing-to-remove",
        "keeps_converts": "B identical-code", "other_code": "B changed-without-reduction",
        "slower_code": "R slower-without-reduction", "inputs_only": "B nothing-to-remove", "below_floor_only": "X no-launches",
        "candidate_wrong": "F candidate-incorrect", "mask0_wrong": "F mask0-incorrect", "off_wrong": "X off-incorrect",
        "tests_crash": "X correctness-missing", "tests_skipped": "X correctness-missing",
        "tests_elsewhere": "X correctness-missing",
        "off_fails": "X off-failed", "candidate_fails": "X cell-failed", "candidate_crashes": "X cell-crashed",
        "round_b_crashes": "X timing-invalid", "candidate_hangs": "X cell-timeout", "mask0_differs": "X placebo-differs",
        "dump_missing": "X dump-broken", "index_row_missing": "X dump-broken", "replay_fallback": "X record-broken",
        "other_launches": "X launches-differ", "switch_ignored": "X switch-not-in-key", "other_compiler": "X no-proof"}


def test_every_reason_is_planted_or_named_here(mini):
    assert {row["reason"] for row in mini.matrix().values()} == set(REASONS) - ELSEWHERE


def test_round_b_is_run_reversed_and_only_where_a_time_could_decide(mini):
    parts = {path.parent.name for path in mini.run_dir.glob("tasks/*/b1")}
    assert parts == {"gain", "regression", "converts_only", "drifting_clock", "one_round_only", "mixed_rows", "small_gain",
                     "wild_rows", "same_binary", "other_code", "slower_code", "round_b_crashes"}
    order = [line.split()[1] for line in mini.done.stdout.splitlines() if " gain/" in line]
    assert [name for name in order if "/tests/" not in name] == [
        "gain/record/off:", "gain/a1/off:", "gain/a1/mask0:", "gain/a1/candidate:",
        "gain/b1/candidate:", "gain/b1/mask0:", "gain/b1/off:"]
    assert order.index("gain/a1/off:") >= 3  # after the canary's correctness


def test_replay_is_strict_and_from_off(mini):
    record, off, candidate = (json.loads((mini.run_dir / f"tasks/gain/{step}/.complete").read_text())["settings"]
                              for step in ("record/off", "a1/off", "a1/candidate"))
    assert "REPLAY_FROM" not in record and record["SWITCH"] == off["SWITCH"]
    assert off["REPLAY_FROM"] == str(mini.run_dir / "tasks/gain/record/off/attempts/1")
    assert off["REPLAY_STRICT"] == "1" and off["TUNER_CACHE"] == "isolated"
    assert {name for name in off if off[name] != candidate[name]} == {"SWITCH"} and off.keys() == candidate.keys()


def test_on_two_cards_each_task_stays_on_one(tmp_path):
    mini = MiniCampaign(tmp_path, ["gain", "keeps_converts", "converts_only", "regression"])
    edit(mini.manifest, "product: Mini Card", "product: Mini Card, count: 2")
    driver = mini.start(DEVICES="0,1", MINI_CARDS=2, MINI_SLOW_S="0.2")
    wait_for(lambda: list(mini.run_dir.glob("tasks/*/a1/off/.complete")))
    driver.send_signal(signal.SIGINT)
    assert driver.wait(timeout=30) == 130
    ended = {path: path.read_text() for path in mini.run_dir.glob("tasks/*/*/*/.complete")}
    done = mini.run(DEVICES="1,0", MINI_CARDS=2)  # in another order: what is done stays done
    assert done.returncode == 1, done.stderr
    assert all(path.read_text() == text for path, text in ended.items())
    used = {}
    for path in mini.run_dir.glob("tasks/*/*/*/.complete"):
        marker = json.loads(path.read_text())
        used.setdefault(path.parts[-4], set()).add((marker["settings"]["DEVICE"], marker["device_after"]["uuid"]))
    assert used == {"gain": {("0", "GPU-mini")}, "keeps_converts": {("1", "GPU-mini1")}, "converts_only": {("0", "GPU-mini")},
                    "regression": {("1", "GPU-mini1")}}
    assert {task: row["class"] for task, row in mini.matrix().items()} == {
        "gain": "G", "keeps_converts": "B", "converts_only": "C", "regression": "R"}
    assert mini.tool("verify", mini.run_dir).returncode == 0


def test_the_receipt_says_what_was_run_and_its_noise(mini):
    receipt = json.loads((mini.run_dir / "receipt.json").read_text())
    assert receipt["headline"] == {"G": 2, "R": 2, "C": 6, "B": 4, "F": 2, "X": 17}
    assert receipt["devices"]["0"]["uuid"] == receipt["devices_end"]["0"]["uuid"] == "GPU-mini"
    assert receipt["production_default_policy"] == "unchanged-off" and receipt["measured_launch_floor"] == 1
    noise = receipt["noise"]
    assert (noise["null_rows"], noise["alarms"], noise["alarm_rate"], noise["is_usable"]) == (10, 0, 0.0, True)
    assert 0.0005 < noise["row_sigma"] < 0.004
    assert receipt["source"]["commit"] == "00000000000000000000000000000000000000aa"
    assert receipt["project_commit"] == ""      # a copy without .git
    assert "run_pytest.sh" in receipt["tools"] and "campaign/classify.py" in receipt["tools"]


def test_status_and_explain(mini):
    status = mini.tool("report", "status", mini.run_dir).stdout
    assert "gain                 tests ok/ok/ok  record ok  a1 ok/ok/ok  b1 ok/ok/ok" in status
    assert "candidate_hangs      tests ok/ok/ok  record ok  a1 ok/ok/timeout" in status
    said = mini.tool("report", "explain", mini.run_dir, "--task", "gain").stdout
    assert said.startswith("gain: G (gain), faster: faster beyond the noise in both rounds\n  4 -> 1 converts; ratio 0.8015")
    assert "./run_pytest.sh gain benchmark/test_gain.py::test_gain" in said and "SWITCH=sw-e1-m15" in said
    wrong = mini.tool("report", "explain", mini.run_dir, "--task", "gian")
    assert wrong.returncode == 2 and "TASK: gian: is no task" in wrong.stderr


# Kills --------------------------------------------------------------------------------------------------------------


def test_killed_at_random_moments_and_resumed_it_is_the_same(tmp_path, small):
    """SIGKILL to the driver alone: what it started must end too, and the next call goes on."""
    mini = MiniCampaign(tmp_path, FEW, floor=0)
    kills = random.Random(6)
    for _ in range(6):
        driver = mini.start(MINI_SLOW_S="0.1")
        time.sleep(kills.uniform(0.8, 2.5))
        if driver.poll() is None:
            driver.kill()
        driver.wait()
    done = mini.run()
    assert done.returncode in (1, 3), done.stderr  # 3: one of the six came to the seal
    assert (mini.run_dir / "matrix.csv").read_text() == (small.run_dir / "matrix.csv").read_text()
    assert mini.tool("verify", mini.run_dir).returncode == 0


IN_A_FORK = """
import glob, os, signal, sys
told = []
def tell():
    if not told and glob.glob(os.environ["MINI_FOLDER"] + "/runs/mini/tasks/*/*/*"):
        told.append(os.kill(os.getpid(), signal.SIGINT))
if "campaign/run.py" in " ".join(sys.orig_argv):
    os.register_at_fork(after_in_parent=tell)
"""


def test_an_interrupt_that_arrives_while_a_step_is_started_is_not_lost(tmp_path):
    """Python forgets an exception that is raised in a hook of fork()."""
    mini = MiniCampaign(tmp_path, FEW)
    (tmp_path / "sitecustomize.py").write_text(IN_A_FORK)
    driver = mini.start(PYTHONPATH=tmp_path, MINI_SLOW_S="20")
    assert driver.wait(timeout=60) == 130, (tmp_path / "output").read_text()
    assert not list(mini.run_dir.glob("tasks/*/*/*/.complete"))


def test_the_callers_compiler_switches_are_sealed_and_it_goes_on_only_with_them(tmp_path):
    mini = MiniCampaign(tmp_path, ["gain"])
    edit(mini.manifest, "timing: {", "environment: {TRITON_DEBUG: '0'}\ntiming: {")
    mine = {"DISABLE_LLVM_OPT": 1, "PTXAS_OPTIONS": "-O 1", "TRITON_DEBUG": 1, "TRITON_CACHE_DIR": tmp_path / "none",
            "NVIDIA_API_KEY": "secret", "TRITON_API_KEY": "secret", "TRITON_REDIS_KEY_FORMAT": "a\nb", "PYTHONPATH": "/caf\udce9",
            "LD_PRELOAD": "", "CUBLAS_VERSION": "13"}
    said = (r"DISABLE_LLVM_OPT=1 PTXAS_OPTIONS='-O 1' PYTHONPATH='/caf\xe9' TRITON_API_KEY=sha256:2bb80d537b1d "
            r"TRITON_REDIS_KEY_FORMAT=$'a\nb'")
    driver = mini.start(MINI_SLOW_S="20", **mine)
    wait_for(lambda: list(mini.run_dir.glob("tasks/*/*/*")))
    driver.send_signal(signal.SIGINT)
    assert driver.wait(timeout=30) == 130
    assert f"run: {mini.run_dir}\nall cells: {said} (set by the caller)\n" in (tmp_path / "output").read_text()
    other = {"DISABLE_LLVM_OPT": None, "PTXAS_OPTIONS": "-O 2", "PYTHONPATH": "lib", "TRITON_API_KEY": "another",
             "TRITON_LONG": "x" * 100000, "USE_IR_LOC": ""}
    done = mini.run(**mine | other)
    assert done.returncode == 3 and done.stderr == (
        "run.py: error: check switches-same: DISABLE_LLVM_OPT (is unset, was 1), PTXAS_OPTIONS (is '-O 2', was '-O 1'), "
        fr"PYTHONPATH (is {shlex.quote(os.getcwd() + '/lib')}, was '/caf\xe9'), "
        "TRITON_API_KEY (is sha256:ae448ac86c4e, was sha256:2bb80d537b1d), "
        f"TRITON_LONG (is {'x' * 150}... (100000 characters, sha256 d69e68988157), was unset), USE_IR_LOC (is '', was unset): "
        "not as when the campaign was started, and all cells get it; set and unset as it was then\n")
    whole = (mini.run_dir / "campaign.json").read_text()
    for broken in ([], None, {"DISABLE_LLVM_OPT": 1}):
        (mini.run_dir / "campaign.json").write_text(json.dumps(json.loads(whole) | {"switches": broken}))
        assert "all cells" not in mini.tool("report", "status", mini.run_dir).stdout
    done = mini.run(**mine)
    assert done.returncode == 4 and f"same: {mini.run_dir}/campaign.json: its `switches` are no table of texts;" in done.stderr
    (mini.run_dir / "campaign.json").write_text(whole)
    done = mini.run(**mine)
    assert done.returncode == 0, done.stderr
    assert json.loads((mini.run_dir / "receipt.json").read_text())["switches"] == {
        "DISABLE_LLVM_OPT": "1", "PTXAS_OPTIONS": "-O 1", "TRITON_API_KEY": "sha256:2bb80d537b1d",
        "TRITON_REDIS_KEY_FORMAT": "a\nb", "PYTHONPATH": r"/caf\xe9"}
    command = (mini.run_dir / "tasks/gain/a1/candidate/command.txt").read_text()
    assert all(word in command for word in (" DISABLE_LLVM_OPT=1 ", " PTXAS_OPTIONS='-O 1' ", " TRITON_DEBUG=0 "))
    assert "API_KEY" not in command
    assert f"\nall cells: {said} (set by the caller)\n" in mini.tool("report", "status", mini.run_dir).stdout
    assert mini.tool("verify", mini.run_dir).returncode == 0


def test_going_on_needs_the_same_manifest(tmp_path):
    mini = MiniCampaign(tmp_path, FEW)
    (mini.run_dir / "frozen").mkdir(parents=True)
    (mini.run_dir / "campaign.json.0a1b2c3d.tmp").touch()  # a start that was killed in the middle hinders no other
    driver = mini.start(MINI_SLOW_S="20")
    wait_for(lambda: list(mini.run_dir.glob("tasks/*/*/*")))
    driver.send_signal(signal.SIGINT)
    assert driver.wait(timeout=30) == 130
    mini.write_manifest(floor=0)
    done = mini.run()
    assert done.returncode == 2 and "was started with another manifest, tree or tools" in done.stderr
