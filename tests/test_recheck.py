"""ops/recheck_dismissed.py through the real run_batch.py, with a stub in place of run_pytest.sh (screen_stub.py)."""
import csv
import subprocess
import sys

import pytest

from common import dismissals
from screen_stub import ROOT, StubScreen

HEADER = "schema,repo,op,scope,reason,evidence,date,commit\n"
FAILS = 'test_line failed "RuntimeError: out of resources"; finish 1'


@pytest.fixture
def stub(tmp_path):
    return StubScreen(tmp_path, ops=("abs", "add", "mm"))


def dismiss(stub, *rows):
    (stub.ops_dir / "dismiss.csv").write_text(HEADER + "".join(f"{row}\n" for row in rows))


def row(op, scope="vendor=host", reason="fails", evidence="RuntimeError: out of resources", date="2026-11-30", commit="ed2508b",
        repo="main"):
    return f'1,{repo},{op},"{scope}",{reason},{evidence},{date},{commit}'


def recheck(stub, *words, **variables):
    variables = {"HOST_TARGET": "cuda:90", "RETRIES": 0, **variables}
    return subprocess.run([sys.executable, ROOT / "ops/recheck_dismissed.py", "--run", stub.folder / "recheck", *words],
                          env=stub.environ(**variables), cwd=stub.folder, capture_output=True, text=True)


def read_verdicts(stub):
    with open(stub.folder / "recheck/recheck.csv", newline="") as stream:
        return {each["op"]: (each["verdict"], each["status"]) for each in csv.DictReader(stream)}


def test_one_that_passes_now_is_stale(stub):
    dismiss(stub, row("mm"), row("abs"))
    stub.behave("mm", FAILS)
    done = recheck(stub)
    assert done.returncode == 1
    assert read_verdicts(stub) == {"mm": ("holds", "failed"), "abs": ("stale", "ok")}
    assert done.stdout.splitlines()[-3:] == [
        "holds            main/mm  [vendor=host]  failed RuntimeError: out of resources",
        "stale            main/abs  [vendor=host]  ok",
        f"{stub.folder}/recheck/recheck.csv: 1 of 2 entries are stale"]
    assert not (stub.folder / "recheck/all/main/add").exists()  # only what is dismissed is run


def test_all_hold(stub):
    dismiss(stub, row("mm"))
    stub.behave("mm", FAILS)
    assert recheck(stub).returncode == 0


def test_other_machines_and_unknown_operators_are_not_run(stub):
    dismiss(stub, row("mm", scope="vendor=mthreads"), row("abs", scope="vendor=host;versions=torch 0.1"), row("gone"))
    done = recheck(stub)
    assert done.returncode == 0
    assert read_verdicts(stub) == {"mm": ("other machine", ""), "abs": ("other machine", ""), "gone": ("no such operator", "")}
    assert not (stub.folder / "recheck/all").exists()


def test_all_machines_on_request(stub):
    dismiss(stub, row("mm", scope="vendor=mthreads"))
    assert recheck(stub, "--all").returncode == 1
    assert read_verdicts(stub) == {"mm": ("stale", "ok")}


def test_entry_of_one_dtype_is_run_with_it_alone(stub):
    dismiss(stub, row("mm", scope="vendor=host;dtype=bfloat16"), row("abs"))
    stub.behave("mm", '[ "$DTYPES" != bfloat16 ] || { ' + FAILS + "; }")
    assert recheck(stub).returncode == 1
    assert (stub.folder / "recheck/bfloat16/main/mm").is_dir() and not (stub.folder / "recheck/bfloat16/main/abs").exists()
    log = (stub.folder / "recheck/bfloat16/main/mm/attempts/1/run.log").read_text()
    assert "dtypes: bfloat16\n" in log
    assert read_verdicts(stub)["abs"] == ("stale", "ok")


def test_empty_list_runs_nothing(stub):
    dismiss(stub)
    done = recheck(stub)
    assert (done.returncode, done.stdout) == (0, f"{stub.ops_dir}/dismiss.csv: nothing is dismissed\n")


def test_existing_directory_is_refused(stub):
    dismiss(stub, row("mm"))
    (stub.folder / "recheck").mkdir()
    done = recheck(stub)
    assert done.returncode == 2
    assert f"RUN: {stub.folder}/recheck: is there already" in done.stderr


def test_refusal_of_the_screen_comes_through(stub):
    dismiss(stub, row("mm"))
    done = recheck(stub, LEVEL="deep")
    assert done.returncode == 2
    assert "LEVEL: deep: unknown" in done.stderr


@pytest.mark.parametrize("bad, fault", [
    (row("mm", scope=""), "main/mm: scope: empty: no vendor"),
    (row("mm", scope="arch=9.0"), "main/mm: scope: arch=9.0: no vendor; say on whose cards it holds"),
    (row("mm", scope="vendor=nvidia;chip=9"), "scope: vendor=nvidia;chip=9: chip=9: give key=value with a key of vendor, arch"),
    (row("mm", scope="vendor=nvidia;vendor=amd"), "vendor: is there twice"),
    (row("mm", scope="vendor=nvidia;versions=torch"), "torch: give a package and a version"),
    (row("mm", evidence=" "), "main/mm: evidence is empty; an operator is only left out for what a run has shown"),
    (row("mm", reason=""), "main/mm: reason is empty"),
    (row("mm", date="30.11.2026"), "main/mm: date: 30.11.2026: Invalid isoformat string"),
    (row("mm", commit="main"), "main/mm: commit: main: give the tree's commit, 7 to 40 hex digits"),
])
def test_bad_entry_is_refused(stub, bad, fault):
    dismiss(stub, row("abs"), bad)
    done = recheck(stub)
    assert done.returncode == 2
    assert "dismiss.csv: line 3: main/mm: " in done.stderr and fault in done.stderr


def test_same_scope_twice_is_refused_and_two_scopes_are_not(stub):
    dismiss(stub, row("mm"), row("mm"))
    assert "main/mm: is dismissed for the same scope in line 2; remove one" in recheck(stub).stderr
    dismiss(stub, row("mm", scope="vendor=host"), row("mm", scope="vendor=nvidia"))
    stub.behave("mm", FAILS)
    assert recheck(stub).returncode == 0


H200 = {"vendor": "nvidia", "arch": "9.0", "versions": {"torch": "2.11.0", "triton": "3.6.0"}, "dtypes": ("float16",)}


@pytest.mark.parametrize("scope, facts, holds", [
    ("vendor=nvidia", H200, True),
    ("vendor=amd", H200, False),
    ("vendor=nvidia;arch=9.0", H200, True),
    ("vendor=nvidia;arch=8.0", H200, False),
    ("vendor=nvidia;arch=9.0", {**H200, "arch": None}, False),
    ("vendor=nvidia;dtype=float16", H200, True),
    ("vendor=nvidia;dtype=float16,float32", H200, True),
    ("vendor=nvidia;dtype=float32", H200, False),
    ("vendor=nvidia;dtype=float16", {**H200, "dtypes": ()}, False),
    ("vendor=nvidia;dtype=float16", {**H200, "dtypes": ("float16", "float32")}, False),
    ("vendor=nvidia;versions=torch 2.11", H200, True),
    ("vendor=nvidia;versions=torch 2.1", H200, False),
    ("vendor=nvidia;versions=torch 2.11,triton 3.7", H200, False),
    ("vendor=nvidia;versions=flag_gems 5.0.2", H200, False),
])
def test_scope_says_where_an_entry_holds(scope, facts, holds):
    entry = dismissals.Dismissal("main", "mm", dismissals.parse_scope(scope), scope, "r", "e", "2026-11-30", "ed2508b", 2)
    assert dismissals.applies(entry, facts) is holds


def test_architecture_is_only_asked_for_where_a_row_needs_it(tmp_path):
    path, asked = tmp_path / "dismiss.csv", []

    def ask():
        asked.append(1)
        return "9.0"

    path.write_text(HEADER + row("mm", scope="vendor=nvidia") + "\n" + row("abs", scope="vendor=amd;arch=gfx942") + "\n")
    facts = {**H200, "arch": None}
    assert dismissals.list_dismissed(path, facts, ask) == {("main", "mm"): "fails"} and not asked
    path.write_text(path.read_text() + row("add", scope="vendor=nvidia;arch=9.0") + "\n")
    assert dismissals.list_dismissed(path, facts, ask) == {("main", "mm"): "fails", ("main", "add"): "fails"} and asked == [1]


@pytest.mark.parametrize("scope, statuses", [
    ("vendor=host", {"mm": "dismissed"}), ("vendor=nvidia", {"mm": "ok"}),
    ("vendor=host;dtype=float16", {"mm": "ok"}), ("vendor=host;dtype=float16,float32", {"mm": "ok"}),
])
def test_screen_leaves_out_what_is_dismissed_for_its_machine_alone(stub, scope, statuses):
    dismiss(stub, row("mm", scope=scope))
    assert stub.run("--ops", "mm") == 0
    assert {each["op"]: each["status"] for each in stub.read_csv("summary.csv")} == statuses


def test_screen_of_the_dismissed_dtype_alone_leaves_it_out(stub):
    dismiss(stub, row("mm", scope="vendor=host;dtype=float16"))
    assert stub.run("--ops", "mm", "--dtypes", "float16") == 0
    assert [each["status"] for each in stub.read_csv("summary.csv")] == ["dismissed"]


def test_bad_dismissal_stops_a_screen_before_it_starts(stub):
    dismiss(stub, row("mm", scope=""))
    assert stub.run("--ops", "abs") == 2
    assert "dismiss.csv: line 2: main/mm: scope: empty: no vendor" in stub.output()
    assert not stub.runs.exists()
