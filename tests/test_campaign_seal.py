"""seal.py, verify.py and rescope.py on sealed campaigns of planted outcomes: what holds, and every way to tamper."""
import csv
import hashlib
import io
import json
import os
import shutil
import subprocess

import pytest

from campaign.layout import read_frozen
from campaign.matrix import judge_run
from harness import edit


# Seal and verify ----------------------------------------------------------------------------------------------------


def test_sha256sum_alone_verifies_and_covers_every_file(mini):
    done = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=mini.run_dir, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    found = sorted(path.relative_to(mini.run_dir).as_posix() for path in mini.run_dir.rglob("*") if path.is_file())
    assert (mini.run_dir / "FILES").read_text().splitlines() == found
    sums = (mini.run_dir / "SHA256SUMS").read_text().splitlines()
    assert [line[66:] for line in sums] == [name for name in found if name != "SHA256SUMS"]
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
    lines = [f"{hashlib.sha256((run / n).read_bytes()).hexdigest()}  {n}\n" for n in names if (run / n).is_file()]
    (run / "SHA256SUMS").write_text("".join(lines))


def lock_again(run):
    for path in [*run.rglob("*"), run]:
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~0o222)


LOG = "tasks/gain/a1/candidate/attempts/1/run.log"
TAMPERS = {  # what is done, whether the digests are forged, what verify says first
    "a log is added": (lambda run: (run / "tasks/extra.log").write_text("x"), False, "added tasks/extra.log"),
    "a log changed": (lambda run: edit(run / LOG, "1.000000", "2.000000"), False, f"changed {LOG}"),
    "a log is gone": (lambda run: (run / LOG).unlink(), False, f"missing {LOG}"),
    "a log is a link": (lambda run: (run / LOG).rename(run.parent / "away") and (run / LOG).symlink_to(run.parent / "away"),
                        False, f"link {LOG}: is no plain file"),
    "an empty directory is added": (lambda run: (run / "tasks/gain/b2").mkdir(), False,
                                    "added tasks/gain/b2: is an empty directory"),
    "a hidden file": (lambda run: (run / ".hidden").mkdir() or (run / ".hidden/x").touch(), False, "added .hidden/x"),
    "a pipe": (lambda run: os.mkfifo(run / "pipe"), False, "link pipe: is no plain file"),
    "another case": (lambda run: (run / "report.md").rename(run / "Report.md"), False, "missing report.md\nadded Report.md"),
    "digests with line ends of Windows": (
        lambda run: (run / "SHA256SUMS").write_bytes((run / "SHA256SUMS").read_bytes().replace(b"\n", b"\r\n")),
        False, "SHA256SUMS: cannot be read (no line of sha256sum: "),
    "a digest twice": (lambda run: edit(run / "SHA256SUMS", "\n", "\n" + "0" * 64 + "  FILES\n"), False,
                       "SHA256SUMS: cannot be read (is cut, or"),
    "a table is gone": (lambda run: (run / "rows.csv").unlink() or edit(run / "FILES", "rows.csv\n", ""), True,
                        "missing rows.csv"),
    "the manifest is gone": (
        lambda run: (run / "frozen/manifest.yaml").unlink() or edit(run / "FILES", "frozen/manifest.yaml\n", ""), True,
        "missing frozen/manifest.yaml"),
    "the list lacks a file": (lambda run: edit(run / "FILES", LOG + "\n", ""), True, "changed FILES"),
    "a time changed": (lambda run: edit(run / LOG, "0.8", "0.7"), True, "says other than the evidence"),
    "the report changed": (lambda run: edit(run / "report.md", "| G gain | 1 |", "| G gain | 2 |"), True,
                           "report.md: says other than the evidence: '| G gain | 2 |' is sealed, '| G gain | 1 |' is right"),
    "a class changed": (lambda run: edit(run / "matrix.csv", "candidate_wrong,F", "candidate_wrong,C"), True,
                        "matrix.csv: says other"),
    "the headline changed": (lambda run: edit(run / "receipt.json", '"G": 1', '"G": 3'), True, "receipt.json: headline: says"),
    "the switches changed": (
        lambda run: edit(run / "receipt.json", '"switches": {', '"switches": {"DISABLE_LLVM_OPT": "1"}, "other": {'), True,
        "receipt.json: switches: says {'DISABLE_LLVM_OPT': '1'}, the evidence {"),
    "a marker changed": (lambda run: edit(run / "tasks/candidate_wrong/tests/candidate/.complete", '"failed"', '"ok"'), True,
                         "matrix.csv: says"),
    "the policy changed": (lambda run: edit(run / "frozen/manifest.yaml", "Planted outcomes", "Other outcomes"), True,
                           "frozen/manifest.yaml: changed"),
    "a dump changed": (lambda run: edit(next((run / "tasks/gain/a1/off/attempts/1/ir").iterdir()), "#a>", "#c>"), True,
                       "matrix.csv: says"),
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
    assert expected in done.stdout


def test_verify_catches_forged_digests_by_the_one_that_was_published(small, tmp_path):
    run = make_writable_copy(small.run_dir, tmp_path / "run")
    edit(run / LOG, "\n", "\n\n")     # which changes no verdict
    forge_sums(run)
    lock_again(run)
    assert small.tool("verify", run).returncode == 0
    done = small.tool("verify", run, "--expect", hashlib.sha256((small.run_dir / "SHA256SUMS").read_bytes()).hexdigest())
    assert done.returncode == 4 and "changed SHA256SUMS" in done.stdout


def test_a_run_that_was_sealed_before_switches_were_recorded_holds(small, tmp_path):
    run = make_writable_copy(small.run_dir, tmp_path / "run")
    for name in ("campaign.json", "receipt.json"):
        facts = json.loads((run / name).read_text())
        del facts["switches"]
        (run / name).write_text(json.dumps(facts))
    forge_sums(run)
    lock_again(run)
    assert small.tool("verify", run).returncode == 0
    assert small.tool("report", "status", run).returncode == 0


BROKEN = (b"", b"[]", b"1", b"\xff\xfe", b"[" * 100000,
          b'{"schema": 1, "status": "ok", "inputs_sha256": "x", "attempt": 1, "settings": []}',
          b'{"node": 1, "outcome": "passed"}', b'{"node": "x", "outcome": []}')


def test_broken_evidence_is_a_verdict_and_no_traceback(small, tmp_path):
    run = make_writable_copy(small.run_dir, tmp_path / "run")
    frozen, seen = read_frozen(run / "frozen"), set()
    steps = [run / "tasks/gain" / name for name in ("a1/candidate", "b1/candidate", "tests/candidate")]
    files = sorted(path for step in steps for path in step.rglob("*") if path.is_file())
    for path in (path for path in files if path.name not in ("command.txt", "driver.log")):
        whole = path.read_bytes()
        for content in (*BROKEN, None):
            path.unlink()
            path.mkdir() if content is None else path.write_bytes(content)
            verdict = judge_run(run, frozen, 0).verdicts["gain"]
            assert verdict.klass == "X" or path.name == "autotune.json", (path, content, verdict)
            seen.add(verdict.reason)
            path.rmdir() if content is None else path.unlink()
            path.write_bytes(whole)
    assert judge_run(run, frozen, 0).verdicts["gain"].klass == "G"
    assert {"cell-missing", "cell-crashed", "dump-broken", "record-broken", "correctness-missing", "timing-invalid"} <= seen


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


def test_a_seal_that_was_killed_before_its_last_step_is_made_again(tmp_path, small):
    """All is written and read-only, and SHA256SUMS has not got its name yet."""
    run = tmp_path / "run"
    shutil.copytree(small.run_dir, run)
    run.chmod(0o755)
    (run / "SHA256SUMS").rename(run / "SHA256SUMS.tmp")
    assert small.tool("verify", run).returncode == 2
    done = small.tool("seal", run)
    assert done.returncode == 0, done.stderr
    assert not (run / "SHA256SUMS.tmp").exists() and small.tool("verify", run).returncode == 0
    assert (run / "matrix.csv").read_bytes() == (small.run_dir / "matrix.csv").read_bytes()


def test_a_receipt_of_another_schema(tmp_path, small):
    run = make_writable_copy(small.run_dir, tmp_path / "run")
    edit(run / "receipt.json", '"schema": 1,', '"schema": 2,')
    forge_sums(run)
    lock_again(run)
    assert small.tool("verify", run).stdout.startswith("receipt.json: is no receipt of a sealed run of schema 1\n")
    done = small.tool("rescope", run, "--floor", "1")
    assert done.returncode == 2 and "its receipt is of schema 2, this tool reads 1" in done.stderr


def test_a_receipt_whose_noise_has_other_figures(tmp_path, small):
    """Of the same schema, sealed by tools that pooled sigma: these cannot judge by it."""
    run = make_writable_copy(small.run_dir, tmp_path / "run")
    edit(run / "receipt.json", '"row_freedom"', '"row_other"')
    forge_sums(run)
    lock_again(run)
    done = small.tool("rescope", run, "--floor", "1")
    assert done.returncode == 4
    assert "its receipt's noise has other figures than this tool's (row_freedom, row_other)" in done.stderr
    assert "Traceback" not in done.stderr


# Rescope ------------------------------------------------------------------------------------------------------------


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
    assert receipt["tools"] == json.loads((small.run_dir / "receipt.json").read_text())["tools"]
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
    assert lines["gain"] == "0..3: G   4..: X" and lines["inputs_only"] == "0: X   1..3: B   4..: X"
    assert lines["below_floor_only"] == "0..: X" and lines["candidate_wrong"] == "0..: F"


def test_rescope_refuses(small, tmp_path):
    inside = small.tool("rescope", small.run_dir, "--floor", "1", "--out", small.run_dir / "tasks" / "new")
    assert inside.returncode == 2 and "lies in a sealed run" in inside.stderr
    (tmp_path / "link").symlink_to(small.run_dir / "tasks")
    linked = small.tool("rescope", small.run_dir, "--floor", "1", "--out", tmp_path / "link" / "new")
    assert linked.returncode == 2 and "lies in a sealed run" in linked.stderr
    nothing = small.tool("rescope", tmp_path, "--floor", "1")
    assert nothing.returncode == 2 and "has no receipt" in nothing.stderr
    run = make_writable_copy(small.run_dir, tmp_path / "run")
    edit(run / LOG, "1.000000", "2.000000")
    changed = small.tool("rescope", run, "--floor", "1")
    assert changed.returncode == 4 and "is not what was sealed" in changed.stderr
    edit(run / "matrix.csv", "candidate_wrong,F", "candidate_wrong,C")
    forge_sums(run)
    lock_again(run)
    otherwise = small.tool("rescope", run, "--floor", "1")  # as with tools that count otherwise
    assert otherwise.returncode == 4 and "its own floor gives another matrix than the sealed one" in otherwise.stderr

