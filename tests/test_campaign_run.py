"""A campaign end to end through campaign/run.py, with planted outcomes (tests/minicampaign/): all classes and reasons, seal,
verify and rescope of it, refusals by name, canaries, kills and resumes."""
import csv
import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "minicampaign"))

from campaign.classify import REASONS
from harness import GOLDEN_TASKS, MiniCampaign

# Reasons that a whole run cannot end in, or not beside the others; each has its own test.
ELSEWHERE = {"cell-missing", "no-timing", "no-round-b", "noise-unusable"}
FEW = ["gain", "keeps_converts", "candidate_wrong", "inputs_only", "below_floor_only"]


@pytest.fixture(scope="module")
def mini(tmp_path_factory):
    """The sealed campaign of all planted outcomes."""
    campaign = MiniCampaign(tmp_path_factory.mktemp("mini"), GOLDEN_TASKS, candidate_hangs=3)
    campaign.done = campaign.run()
    assert campaign.done.returncode == 1, campaign.done.stdout + campaign.done.stderr  # sealed, with tasks in F and R
    return campaign


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A sealed campaign at floor 0, as the published one."""
    campaign = MiniCampaign(tmp_path_factory.mktemp("small"), FEW, floor=0)
    assert campaign.run().returncode == 1
    return campaign


# The planted outcomes ----------------------------------------------------------------------------------------------


def test_the_matrix_is_the_golden_one(mini):
    assert (mini.run_dir / "matrix.csv").read_text() == (HERE / "minicampaign" / "golden.csv").read_text()


def test_every_outcome_is_classed_as_it_was_planted(mini):
    """Written out, so that a refreshed golden file cannot carry an error in."""
    assert {task: f"{row['class']} {row['reason']}" for task, row in mini.matrix().items()} == {
        "gain": "G faster", "regression": "R slower", "converts_only": "C inside-noise", "drifting_clock": "C rounds-disagree",
        "one_round_only": "C rounds-disagree", "mixed_rows": "C rows-disagree", "small_gain": "G faster",
        "wild_rows": "C not-significant", "same_binary": "C identical-binaries", "nothing_to_remove": "B nothing-to-remove",
        "keeps_converts": "B identical-code", "other_code": "B changed-without-reduction",
        "slower_code": "R slower-without-reduction", "inputs_only": "B nothing-to-remove", "below_floor_only": "X no-launches",
        "candidate_wrong": "F candidate-incorrect", "mask0_wrong": "F mask0-incorrect", "off_wrong": "X off-incorrect",
        "tests_crash": "X correctness-missing", "tests_skipped": "X correctness-missing", "tests_elsewhere": "X correctness-missing",
        "off_fails": "X off-failed", "candidate_fails": "X cell-failed", "candidate_crashes": "X cell-crashed",
        "round_b_crashes": "X timing-invalid", "candidate_hangs": "X cell-timeout", "mask0_differs": "X placebo-differs",
        "dump_missing": "X dump-broken", "index_row_missing": "X dump-broken", "replay_fallback": "X record-broken",
        "other_launches": "X launches-differ", "switch_ignored": "X switch-not-in-key", "other_compiler": "X no-proof"}


def test_every_reason_is_planted_or_named_here(mini):
    assert {row["reason"] for row in mini.matrix().values()} == set(REASONS) - ELSEWHERE


def test_round_b_is_run_reversed_and_only_where_a_time_could_decide(mini):
    parts = {path.parent.name for path in mini.run_dir.glob("tasks/*/b1")}
    assert parts == {"gain", "regression", "converts_only", "drifting_clock", "one_round_only", "mixed_rows", "small_gain", "wild_rows",
                     "same_binary", "other_code", "slower_code", "round_b_crashes"}
    order = [line.split()[1] for line in mini.done.stdout.splitlines() if " gain/" in line]
    assert [name for name in order if "/tests/" not in name] == [
        "gain/a1/off:", "gain/a1/mask0:", "gain/a1/candidate:", "gain/b1/candidate:", "gain/b1/mask0:", "gain/b1/off:"]
    assert order.index("gain/a1/off:") >= 3  # after the canary's correctness


def test_replay_is_strict_and_from_off(mini):
    settings = {cell: json.loads((mini.run_dir / f"tasks/gain/a1/{cell}/.complete").read_text())["settings"] for cell in ("off", "candidate")}
    assert "REPLAY_FROM" not in settings["off"]
    assert settings["candidate"]["REPLAY_FROM"] == str(mini.run_dir / "tasks/gain/a1/off/attempts/1")
    assert settings["candidate"]["REPLAY_STRICT"] == "1" and settings["candidate"]["TUNER_CACHE"] == "isolated"
    differ = {name for name in settings["candidate"] if settings["off"].get(name) != settings["candidate"][name]}
    assert differ == {"SWITCH", "REPLAY_FROM", "REPLAY_STRICT"}


def test_the_receipt_says_what_was_run_and_its_noise(mini):
    receipt = json.loads((mini.run_dir / "receipt.json").read_text())
    assert receipt["headline"] == {"G": 2, "R": 2, "C": 6, "B": 4, "F": 2, "X": 17}
    assert receipt["device_start"]["uuid"] == receipt["device_end"]["uuid"] == "GPU-mini"
    assert receipt["production_default_policy"] == "unchanged-off" and receipt["measured_launch_floor"] == 1
    noise = receipt["noise"]
    assert (noise["null_rows"], noise["alarms"], noise["alarm_rate"], noise["is_usable"]) == (10, 0, 0.0, True)
    assert 0.0005 < noise["row_sigma"] < 0.004
    assert "run_pytest.sh" in receipt["tools"] and "campaign/classify.py" in receipt["tools"]


def test_status_and_explain(mini):
    status = mini.tool("report", "status", mini.run_dir).stdout
    assert "gain                 tests ok/ok/ok  a1 ok/ok/ok  b1 ok/ok/ok" in status
    assert "candidate_hangs      tests ok/ok/ok  a1 ok/ok/timeout" in status
    said = mini.tool("report", "explain", mini.run_dir, "--task", "gain").stdout
    assert said.startswith("gain: G (gain), faster: faster beyond the noise in both rounds\n  4 -> 1 converts; ratio 0.8015")
    assert "./run_pytest.sh gain benchmark/test_gain.py::test_gain" in said and "SWITCH=sw-e1-m15" in said
    wrong = mini.tool("report", "explain", mini.run_dir, "--task", "gian")
    assert wrong.returncode == 2 and "TASK: gian: is no task" in wrong.stderr


# Seal and verify ---------------------------------------------------------------------------------------------------


def test_sha256sum_alone_verifies_and_covers_every_file(mini):
    done = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=mini.run_dir, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    found = sorted(path.relative_to(mini.run_dir).as_posix() for path in mini.run_dir.rglob("*") if path.is_file())
    assert (mini.run_dir / "FILES").read_text().splitlines() == found
    assert [line[66:] for line in (mini.run_dir / "SHA256SUMS").read_text().splitlines()] == [name for name in found if name != "SHA256SUMS"]
    assert not any(path.stat().st_mode & 0o222 for path in [mini.run_dir, *mini.run_dir.rglob("*")])


def test_verify_holds(mini):
    done = mini.tool("verify", mini.run_dir)
    digest = hashlib.sha256((mini.run_dir / "SHA256SUMS").read_bytes()).hexdigest()
    assert (done.returncode, done.stdout) == (0, f"{mini.run_dir}: verified; SHA256SUMS {digest}\n")
    assert f"SHA256SUMS {digest}" in mini.done.stdout


def make_writable_copy(run, target):
    shutil.copytree(run, target)
    for path in [target, *target.rglob("*")]:
        path.chmod(path.stat().st_mode | 0o200)
    return target


def forge_sums(run):
    """What someone does who changes a file and its digest."""
    names = [line[66:] for line in (run / "SHA256SUMS").read_text().splitlines()]
    (run / "SHA256SUMS").write_text("".join(f"{hashlib.sha256((run / n).read_bytes()).hexdigest()}  {n}\n" for n in names))


def lock_again(run):
    for path in [*run.rglob("*"), run]:
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~0o222)


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


LOG = "tasks/gain/a1/candidate/attempts/1/run.log"
TAMPERS = {  # what is done, whether the digests are forged, what verify says first
    "a log is added": (lambda run: (run / "tasks/extra.log").write_text("x"), False, "added tasks/extra.log"),
    "a log changed": (lambda run: edit(run / LOG, "1.000000", "2.000000"), False, f"changed {LOG}"),
    "a log is gone": (lambda run: (run / LOG).unlink(), False, f"missing {LOG}"),
    "a log is a link": (lambda run: (run / LOG).rename(run.parent / "away") and (run / LOG).symlink_to(run.parent / "away"), False,
                        f"link {LOG}: is no plain file"),
    "the list lacks a file": (lambda run: edit(run / "FILES", LOG + "\n", ""), True, "changed FILES"),
    "a time changed": (lambda run: edit(run / LOG, "0.8", "0.7"), True, "matrix.csv: says other than the evidence: 'schema"),
    "the report changed": (lambda run: edit(run / "report.md", "| G gain | 1 |", "| G gain | 2 |"), True,
                           "report.md: says other than the evidence: '| G gain | 2 |' is sealed, '| G gain | 1 |' is right"),
    "a class changed": (lambda run: edit(run / "matrix.csv", "candidate_wrong,F", "candidate_wrong,C"), True, "matrix.csv: says other"),
    "the headline changed": (lambda run: edit(run / "receipt.json", '"G": 1', '"G": 3'), True, "receipt.json: headline: says"),
    "a marker changed": (lambda run: edit(run / "tasks/candidate_wrong/tests/candidate/.complete", '"failed"', '"ok"'), True, "matrix.csv: says"),
    "the policy changed": (lambda run: edit(run / "frozen/manifest.yaml", "Planted outcomes", "Other outcomes"), True,
                           "frozen/manifest.yaml: changed"),
    "a dump changed": (lambda run: edit(next((run / "tasks/gain/a1/off/attempts/1/ir").iterdir()), "#a>", "#c>"), True, "matrix.csv: says"),
}


@pytest.mark.parametrize("what", TAMPERS)
def test_verify_catches(small, tmp_path, what):
    tamper, is_forged, expected = TAMPERS[what]
    run = make_writable_copy(small.run_dir, tmp_path / "run")
    tamper(run)
    if is_forged:
        forge_sums(run)
    lock_again(run)
    done = small.tool("verify", run)
    assert done.returncode == 4, done.stdout + done.stderr
    if what != "a time changed":
        assert expected in done.stdout
    else:
        assert "says other than the evidence" in done.stdout
    if is_forged:
        right = hashlib.sha256((small.run_dir / "SHA256SUMS").read_bytes()).hexdigest()
        assert "changed SHA256SUMS" in small.tool("verify", run, "--expect", right).stdout


def test_a_writable_file_is_a_problem_and_an_unsealed_run_usage(small, tmp_path):
    run = make_writable_copy(small.run_dir, tmp_path / "run")
    assert "writable matrix.csv" in small.tool("verify", run).stdout
    (run / "SHA256SUMS").unlink()
    done = small.tool("verify", run)
    assert done.returncode == 2 and "is not sealed" in done.stderr


def test_a_run_that_is_still_written_is_not_sealed(tmp_path, small):
    run = make_writable_copy(small.run_dir, tmp_path / "run")
    (run / "SHA256SUMS").unlink()
    with open(run / LOG, "a"):
        done = small.tool("seal", run)
    assert done.returncode == 3 and f"{run / LOG}: process {os.getpid()} still writes it" in done.stderr
    assert not (run / "SHA256SUMS").exists()


# Rescope -----------------------------------------------------------------------------------------------------------


def read_classes(text):
    return {row["task"]: row["class"] for row in csv.DictReader(io.StringIO(text))}


def test_the_published_case(small, tmp_path):
    """The only reduction lies in five once-launched input kernels: C at floor 0, B at floor 1, and nothing else changes
    but the task that has nothing above the floor."""
    assert {t: (r["class"], r["converts_off"], r["converts_candidate"]) for t, r in small.matrix().items()} == {
        "gain": ("G", "4", "1"), "keeps_converts": ("B", "4", "4"), "candidate_wrong": ("F", "4", "1"),
        "inputs_only": ("C", "20", "5"), "below_floor_only": ("C", "4", "1")}
    done = small.tool("rescope", small.run_dir, "--floor", "1", "--out", tmp_path / "floor1")
    assert done.returncode == 0, done.stderr
    assert read_classes((tmp_path / "floor1" / "matrix.csv").read_text()) == {
        "gain": "G", "keeps_converts": "B", "candidate_wrong": "F", "inputs_only": "B", "below_floor_only": "X"}
    receipt = json.loads((tmp_path / "floor1" / "receipt.json").read_text())
    assert receipt["changed"] == {"inputs_only": "C -> B", "below_floor_only": "C -> X"}
    assert receipt["parent_sha256sums"] == hashlib.sha256((small.run_dir / "SHA256SUMS").read_bytes()).hexdigest()
    assert receipt["headline_all_planned"] == {"G": 1, "R": 0, "C": 0, "B": 2, "F": 1, "X": 1}
    assert receipt["headline_scoped"] == {"G": 1, "R": 0, "C": 0, "B": 2, "F": 1, "X": 0}


def test_the_sealed_floor_gives_the_sealed_matrix(mini, small, tmp_path):
    for campaign, floor in ((mini, "1"), (small, "0")):
        done = campaign.tool("rescope", campaign.run_dir, "--floor", floor, "--out", tmp_path / floor)
        assert "changed: none" in done.stdout, done.stderr
        assert (tmp_path / floor / "matrix.csv").read_bytes() == (campaign.run_dir / "matrix.csv").read_bytes()


def test_no_floor_promotes(mini, tmp_path):
    done = mini.tool("rescope", mini.run_dir, "--floor", "0", "--out", tmp_path / "floor0")
    assert "changed: inputs_only B -> X\n" in done.stdout
    lines = dict(line.split(maxsplit=1) for line in mini.tool("rescope", mini.run_dir, "--all-floors").stdout.splitlines())
    assert lines["gain"] == "0..1: G   4..6: X" and lines["inputs_only"] == "0: X   1: B   4..6: X"
    assert lines["below_floor_only"] == "0..6: X" and lines["candidate_wrong"] == "0..6: F"


def test_rescope_refuses(small, tmp_path):
    inside = small.tool("rescope", small.run_dir, "--floor", "1", "--out", small.run_dir / "tasks" / "new")
    assert inside.returncode == 2 and "lies in a sealed run" in inside.stderr
    nothing = small.tool("rescope", tmp_path, "--floor", "1")
    assert nothing.returncode == 2 and "has no receipt" in nothing.stderr
    run = make_writable_copy(small.run_dir, tmp_path / "run")
    edit(run / LOG, "1.000000", "2.000000")
    changed = small.tool("rescope", run, "--floor", "1")
    assert changed.returncode == 4 and "is not what was sealed" in changed.stderr


# Refusals ----------------------------------------------------------------------------------------------------------


def hold_busy(mini):
    (mini.folder / "users").write_text("4711\n")


def warm_cache(mini):
    (mini.folder / "cache").mkdir()
    (mini.folder / "cache" / "kernel").write_text("")


REFUSALS = {  # check: (what is done first, variables, what is said)
    "source-commit": (None, {"FLAGGEMS_COMMIT": "b" * 40}, "is at bbbb"),
    "switch-unset": (None, {"SWITCH": "sw-e0-m0"}, "SWITCH=sw-e0-m0: is set in the environment"),
    "caches-cold": (warm_cache, {"TRITON_CACHE_DIR": "{folder}/cache"}, "is not empty"),
    "device-free": (hold_busy, {}, "0: is in use by process 4711"),
    "versions": (lambda mini: edit(mini.manifest, "triton: 3.6.0", "triton: 3.7.0"), {}, "triton: 3.6.0 in"),
    "device-present": (lambda mini: edit(mini.manifest, "Mini Card", "H200"), {}, "0: is Mini Card, the manifest says H200"),
    "device-single": (lambda mini: edit(mini.manifest, "vendor: nvidia", "vendor: mthreads"), {}, "the manifest wants one device of mthreads"),
}


@pytest.mark.parametrize("check", REFUSALS)
def test_a_refusal_names_its_check(tmp_path, check):
    mini = MiniCampaign(tmp_path, FEW)
    prepare, variables, said = REFUSALS[check]
    if prepare:
        prepare(mini)
    done = mini.run(**{name: value.format(folder=tmp_path) for name, value in variables.items()})
    assert done.returncode == 3 and f"check {check}: " in done.stderr and said in done.stderr, done.stderr
    assert not (mini.run_dir / "tasks").exists()


def test_a_dirty_tree_is_refused(tmp_path):
    mini = MiniCampaign(tmp_path, FEW)
    git = ["git", "-C", str(mini.tree), "-c", "user.name=t", "-c", "user.email=t@t"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    edit(mini.manifest, "00000000000000000000000000000000000000aa", commit)
    (mini.tree / "benchmark" / "base.py").write_text("# changed\n")
    done = mini.run()
    assert done.returncode == 3 and "check source-clean: " in done.stderr and "M benchmark/base.py" in done.stderr


def test_a_changed_frozen_file_a_missing_target_and_changed_tools(tmp_path):
    """All of it on one campaign that was interrupted before its first step."""
    mini = MiniCampaign(tmp_path, FEW)
    hold_busy(mini)
    mini.run()
    frozen = next((tmp_path / "frozen").iterdir())
    (tmp_path / "users").unlink()
    text = (frozen / "tasks.json").read_text()
    (frozen / "tasks.json").write_text(text.replace("float16", "float32", 1))
    done = mini.run()
    assert done.returncode == 4 and "check frozen-unchanged: " in done.stderr and "tasks.json: changed" in done.stderr
    (frozen / "tasks.json").write_text(text)
    (mini.tree / "tests" / "test_gain.py").write_text("def test_other():\n    pass\n")
    done = mini.run()
    assert done.returncode == 2 and "gain: tests/test_gain.py::test_gain: is not in the tree" in done.stderr


def test_a_sealed_run_is_not_run_again(small):
    done = small.run()
    assert done.returncode == 3 and "check run-unsealed: " in done.stderr


def test_a_device_serves_one_campaign(tmp_path):
    mini = MiniCampaign(tmp_path, FEW)
    first = mini.start(MINI_SLOW_S="20")
    try:
        wait_for(lambda: list(mini.run_dir.glob("tasks/*/*/*")))
        other = MiniCampaign(tmp_path / "other", FEW)
        done = other.run(TMPDIR=tmp_path)
        assert done.returncode == 3 and "check device-lock: device 0 is in use by process" in done.stderr
        done = mini.run()
        assert done.returncode == 3 and f"campaign {mini.run_dir} is in use by process {first.pid}" in done.stderr
    finally:
        first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=30) == 130
    assert not list(mini.run_dir.glob("tasks/*/*/*/.complete"))


# Canaries, noise, throttling ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("canaries, said", [
    ({"keeps_converts": "reduction"}, "must show a reduction, and has 4 converts with off, 4 with the candidate: the switch did not engage"),
    ({"gain": "identical", "small_gain": "reduction"}, "must have the same code with the candidate"),
    ({"candidate_wrong": "reduction"}, "candidate-incorrect")])
def test_a_failed_canary_stops_the_campaign(tmp_path, canaries, said):
    mini = MiniCampaign(tmp_path, [*canaries, "other_code"], canaries=canaries)
    done = mini.run()
    assert done.returncode == 1 and f"canary {next(iter(canaries))}: " in done.stderr and said in done.stderr
    assert not (mini.run_dir / "tasks" / "other_code").exists() and not (mini.run_dir / "receipt.json").exists()


def test_false_alarms_on_identical_binaries_void_every_time(tmp_path):
    """Rows of the same machine code that differ by 20 %: this campaign's clock proves nothing."""
    mini = MiniCampaign(tmp_path, ["gain", "same_binary_faster", "keeps_converts"])
    assert mini.run().returncode == 0
    assert {task: row["reason"] for task, row in mini.matrix().items()} == {
        "gain": "noise-unusable", "same_binary_faster": "noise-unusable", "keeps_converts": "identical-code"}
    noise = json.loads((mini.run_dir / "receipt.json").read_text())["noise"]
    assert (noise["null_rows"], noise["alarms"], noise["is_usable"]) == (4, 2, False)


def test_a_throttled_device_is_tried_once_more_and_then_flagged(tmp_path):
    mini = MiniCampaign(tmp_path, ["gain"])
    (tmp_path / "throttle").write_text("0x40")
    assert mini.run().returncode == 0
    assert (mini.matrix()["gain"]["class"], mini.matrix()["gain"]["reason"]) == ("X", "timing-invalid")
    assert sorted(path.name for path in (mini.run_dir / "tasks/gain/a1/off/attempts").iterdir()) == ["1", "2"]
    assert "a1: off: the device was throttled" in (mini.run_dir / "receipt.json").read_text()


# Kills -------------------------------------------------------------------------------------------------------------


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.02)


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


def test_going_on_needs_the_same_manifest(tmp_path):
    mini = MiniCampaign(tmp_path, FEW)
    driver = mini.start(MINI_SLOW_S="20")
    wait_for(lambda: list(mini.run_dir.glob("tasks/*/*/*")))
    driver.send_signal(signal.SIGINT)
    assert driver.wait(timeout=30) == 130
    mini.write_manifest(floor=0)
    done = mini.run()
    assert done.returncode == 2 and "was started with another manifest, tree or tools" in done.stderr
