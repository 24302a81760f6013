"""What campaign/run.py refuses to start on, each by its name; canaries that fail, clocks that prove nothing, a hot device."""
import json
import signal
import subprocess

import pytest

from harness import FEW, MiniCampaign, edit, wait_for


# Refusals -----------------------------------------------------------------------------------------------------------


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
    "device-single": (lambda mini: edit(mini.manifest, "vendor: nvidia", "vendor: mthreads"), {},
                      "the manifest wants 1 of mthreads"),
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


def test_an_unknown_value_of_warm_is_refused_before_anything_is_made(tmp_path):
    mini = MiniCampaign(tmp_path, ["gain"])
    done = mini.run(WARM="yes")
    assert (done.returncode, done.stderr) == (2, "run.py: error: WARM: yes: unknown; valid are 0, 1\n")
    assert not mini.run_dir.exists()


def test_a_run_directory_below_which_no_tuner_database_could_be_is_refused(tmp_path):
    mini = MiniCampaign(tmp_path, ["gain"])
    (tmp_path / "a?b").mkdir()
    (tmp_path / "link").symlink_to("a?b")
    for place in ("a?b", "link"):
        mini.run_dir = tmp_path / place / "mini"
        done = mini.run()
        assert (done.returncode, done.stderr) == (2, f"run.py: error: RUN: {tmp_path}/a?b/mini: has a `?`, at which the URL of "
                                                  "FlagGems' tuner database would end; name another place\n")
        assert not list((tmp_path / "a?b").iterdir()) and not (tmp_path / "frozen").exists()


def test_a_full_disk_is_no_outcome(tmp_path):
    mini, full = MiniCampaign(tmp_path, FEW), tmp_path / "full"
    full.write_text("#!/bin/sh\nmkdir -p $RUN_DIR\necho run.log: was not written to its end >&2\nexit 3\n")
    full.chmod(0o755)
    done = mini.run(RUN_PYTEST=full)
    assert done.returncode == 3 and "gain/tests/off: run_pytest.sh could not write " in done.stderr, done.stderr
    assert "/exit.json: run.log: was not written to its end; free some space" in done.stderr
    assert not list(mini.run_dir.glob("tasks/*/*/*/.complete")) and mini.run().returncode == 1     # sealed


def test_a_dirty_tree_is_refused(tmp_path):
    mini = MiniCampaign(tmp_path, FEW)
    make_commit(mini)
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


def make_commit(mini):
    """The mini tree as a checkout whose commit the manifest names."""
    git = ["git", "-C", str(mini.tree), "-c", "user.name=t", "-c", "user.email=t@t"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    edit(mini.manifest, "00000000000000000000000000000000000000aa", commit)


def test_a_tree_that_changes_meanwhile_is_not_sealed(tmp_path):
    mini = MiniCampaign(tmp_path, ["gain"])
    make_commit(mini)
    driver = mini.start(MINI_SLOW_S="0.2")
    wait_for(lambda: list(mini.run_dir.glob("tasks/*/*/*")))
    (mini.tree / "benchmark" / "base.py").write_text("# changed\n")
    (mini.tree / "accuracy_result.json").write_text("{}")  # what upstream's tests leave is no change
    assert driver.wait(timeout=60) == 3
    said = (tmp_path / "output").read_text()
    assert "check source-clean: " in said and "M benchmark/base.py and 0 more" in said
    assert not (mini.run_dir / "receipt.json").exists() and len(list(mini.run_dir.glob("tasks/*/*/*/.complete"))) == 10


def test_a_sealed_run_is_not_run_again(small):
    done = small.run()
    assert done.returncode == 3 and "check run-unsealed: " in done.stderr


def test_a_device_serves_one_campaign(tmp_path):
    mini = MiniCampaign(tmp_path, FEW)
    first = mini.start(MINI_SLOW_S="20")
    try:
        wait_for(lambda: list(mini.run_dir.glob("tasks/*/*/*")))
        other = MiniCampaign(tmp_path / "other", FEW)
        done = other.run()
        assert done.returncode == 3 and "check device-lock: device 0 is in use by process" in done.stderr
        done = mini.run()
        assert done.returncode == 3 and f"campaign {mini.run_dir} is in use by process {first.pid}" in done.stderr
    finally:
        first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=30) == 130
    assert not list(mini.run_dir.glob("tasks/*/*/*/.complete"))


# Canaries, noise, throttling ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("canaries, said", [
    ({"keeps_converts": "reduction"},
     "must show a reduction, and has 4 converts with off, 4 with the candidate: the switch did not engage"),
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
