"""run_batch.py on a screen that is there (screen_stub.py): what is run again, as its inputs changed, and what is not."""

import json
import time

import pytest


def names(rows):
    return [row["op"] for row in rows]


def test_a_complete_screen_is_not_run_again(stub):
    assert stub.run() == 0
    assert stub.run() == 0
    assert "resumed: 3 of 3 operators are complete" in stub.output()
    assert [stub.attempts(op) for op in ("abs", "add", "mm")] == [["1"]] * 3
    assert len(list(stub.runs.glob("screen-*"))) == 1


def test_every_knob_of_run_pytest_is_an_input(stub):
    assert stub.run("--ops", "abs", "--run", "mine") == 0
    for name in ("WARMUP_MS", "USE_FLAGTUNE", "PLUGINS", "SITE_PLUGINS", "DTYPES"):
        assert stub.run("--ops", "abs", "--run", "mine", "--dry-run", **{name: "bool" if name == "DTYPES" else "1"}) == 0
        assert "1 of 1 to run" in stub.output()
    for name in ("KILL_AFTER_S", "DEVICE", "ATTEMPT", "TIMEOUT", "RETRIES"):
        assert stub.run("--ops", "abs", "--run", "mine", "--dry-run", **{name: "1"}) == 0
        assert "0 of 1 to run" in stub.output()


@pytest.mark.parametrize("what", ["node", "shared", "tree", "stub", "knob", "marker"])
def test_a_stale_marker_is_run_again_and_said(stub, what):
    run = ["--run", str(stub.runs / "mine")]
    assert stub.run(*run) == 0
    variables = {}
    if what == "node":
        (stub.tree / "benchmark/test_abs.py").write_text("# changed\n")
    elif what == "shared":
        (stub.tree / "benchmark/core_shapes.yaml").write_text("BlasBenchmark:\nBenchmark:\n")
    elif what == "tree":
        (stub.tree / "src").mkdir()
        (stub.tree / "src/kernel.py").write_text("")
    elif what == "stub":
        with open(stub.stub, "a") as stream:
            stream.write("true\n")
    elif what == "knob":
        variables["LEVEL"] = "core"
    elif what == "marker":
        path = stub.latest / "main/abs/.complete"
        path.write_text(path.read_text()[:40])
    assert stub.run(*run, **variables) == 0
    again = {"node": "files", "shared": "shared", "tree": "tree", "stub": "runner", "knob": "knobs"}.get(what)
    one_op = what in ("node", "marker")
    assert [stub.attempts(op) for op in ("abs", "add")] == [["1", "2"], ["1"] if one_op else ["1", "2"]]
    if again:
        assert f"again (changed: {again})" in stub.output()
    if what == "knob":
        assert "changed since this screen was started last: LEVEL (unset -> core)" in stub.output()


def test_a_file_that_a_benchmark_imports_is_its_input_and_a_comment_of_the_runner_is_none(stub):
    run = ["--run", str(stub.runs / "mine")]
    (stub.tree / "benchmark/test_abs.py").write_text("import os\nfrom .test_base_of import (Base, Other)\n")
    (stub.tree / "benchmark/test_base_of.py").write_text("from benchmark.test_root import Root\n")
    (stub.tree / "benchmark/test_root.py").write_text("from .test_abs import again\n")
    assert stub.run(*run) == 0
    stub.stub.write_text(stub.stub.read_text() + "\n    # a comment\n")
    assert stub.run(*run) == 0 and "again (" not in stub.output()
    (stub.tree / "benchmark/test_root.py").write_text("# changed\n")
    assert stub.run(*run) == 0 and "1 complete operator again (changed: files)" in stub.output()
    assert [stub.attempts(op) for op in ("abs", "add")] == [["1", "2"], ["1"]]


def test_without_run_another_selection_is_another_screen(stub):
    assert stub.run() == 0
    first = stub.latest
    assert stub.run("--ops", "abs") == 0
    assert stub.latest != first
    assert f"{first.name} has another selection (OPS); RUN=runs/{first.name} goes on there" in stub.output()
    second = stub.latest
    assert stub.run("--ops", "abs", "--fresh") == 0
    assert stub.latest not in (first, second) and "(new: FRESH=1)" in stub.output()


def test_without_run_an_old_screen_is_not_continued(stub):
    assert stub.run() == 0
    facts_path = stub.latest / "screen.json"
    facts = json.loads(facts_path.read_text())
    facts["created"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 24 * 3600 + 60))   # cron came early
    facts_path.write_text(json.dumps(facts))
    first = stub.latest
    assert stub.run() == 0
    assert stub.latest != first and f"{first.name} complete and started 24 hours ago" in stub.output()


def test_fewer_ops_in_the_same_screen_lose_no_row(stub):
    run = ["--run", str(stub.runs / "mine")]
    assert stub.run(*run) == 0
    assert stub.run(*run, "--ops", "abs") == 0
    assert names(stub.read_csv("plan.csv")) == names(stub.read_csv("summary.csv")) == ["abs", "add", "mm"]
    stub.write_ops(["abs", "add"])
    assert stub.run(*run) == 1      # the exit status agrees with the summary that is shown
    assert [(row["op"], row["status"], row["reason"]) for row in stub.read_csv("plan.csv")][2] == (
        "mm", "not_found", "no longer in the inventory")


def test_versions_are_those_of_the_operators_processes_wherever_the_call_is_made(stub):
    for place in ("triton-8.8.dist-info", "shadow/flagtree-9.9.dist-info"):     # the first lies in the caller's folder
        (stub.folder / place).mkdir(parents=True)
        name, version = place.removesuffix(".dist-info").rpartition("/")[2].split("-")
        (stub.folder / place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    stub.behave("abs", 'echo "$PYTHONPATH" > "$RUN_DIR/path"')
    assert stub.run("--ops", "abs", PYTHONPATH="shadow") == 0
    facts = json.loads((stub.latest / "screen.json").read_text())
    assert (facts["versions"]["triton"], facts["versions"]["flagtree"]) == ("3.6.0", "9.9")
    shadow = f"{stub.folder}/shadow"
    assert facts["switches"]["PYTHONPATH"] == (stub.latest / "main/abs/attempts/1/path").read_text().strip() == shadow


def count_attempts(stub):
    return [len(stub.attempts(op)) for op in ("abs", "add", "mm")]


def test_another_compiler_switch_is_another_measurement(stub):
    assert stub.run(FLAGTREE_MUSA_RLC_ENHANCE="0") == 0
    assert stub.run(FLAGTREE_MUSA_RLC_ENHANCE="0") == 0 and count_attempts(stub) == [1, 1, 1]
    assert stub.run(FLAGTREE_MUSA_RLC_ENHANCE="1") == 0 and count_attempts(stub) == [2, 2, 2]
    assert "changed: switches" in stub.output()
    assert stub.run(FLAGTREE_MUSA_RLC_ENHANCE="1", DISABLE_LLVM_OPT="1", PTXAS_OPTIONS="-O 1", TRITON_HOME="/x",
                    NVIDIA_API_KEY="secret", TRITON_API_KEY="secret", FLAGTUNE_MODEL_BASE_URL="https://u:p@h/",
                    TRITON_DEBUG="", LD_PRELOAD="/lib/coreutils/libstdbuf.so", PYTORCH_VERSION="2.9",
                    PYTHONPATH="/caf\udce9::/caf\udce9:") == 0
    changed = (r"DISABLE_LLVM_OPT (unset -> 1), FLAGTUNE_MODEL_BASE_URL (unset -> sha256:5660881dae79), "
               r"PTXAS_OPTIONS (unset -> '-O 1'), PYTHONPATH (unset -> '/caf\xe9'), "
               "TRITON_API_KEY (unset -> sha256:2bb80d537b1d), TRITON_DEBUG (unset -> '')")
    assert f"changed since this screen was started last: {changed}\n" in stub.output()
    assert "changed: switches" in stub.output() and count_attempts(stub) == [3, 3, 3]
    switches = json.loads((stub.latest / "screen.json").read_text())["switches"]
    assert switches == {"DISABLE_LLVM_OPT": "1", "PTXAS_OPTIONS": "-O 1", "FLAGTREE_MUSA_RLC_ENHANCE": "1",
                        "FLAGTUNE_MODEL_BASE_URL": "sha256:5660881dae79", "PYTHONPATH": r"/caf\xe9",
                        "TRITON_API_KEY": "sha256:2bb80d537b1d", "TRITON_DEBUG": ""}
    page = (stub.latest / "report.html").read_text().replace("&#x27;", "'")
    assert "switches DISABLE_LLVM_OPT=1 FLAGTREE_MUSA_RLC_ENHANCE=1 FLAGTUNE_MODEL_BASE_URL=sha256:5660881dae79 PTXAS" in page


def test_a_rebuilt_compiler_of_the_same_version_is_another_one(stub):
    package = stub.folder / "site/triton"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "libtriton.so").write_bytes(b"one")
    site = {"PYTHONPATH": str(stub.folder / "site")}
    assert stub.run(**site) == 0
    assert stub.run(**site) == 0 and count_attempts(stub) == [1, 1, 1]
    (package / "libtriton.so").write_bytes(b"other")
    assert stub.run(**site) == 0 and count_attempts(stub) == [2, 2, 2]


@pytest.mark.parametrize("marker", [{"status": "bogus"}, {"attempt": "one"}, {"attempt": None}])
def test_a_damaged_marker_is_no_outcome(stub, marker):
    assert stub.run() == 0
    path = stub.latest / "main/abs/.complete"
    path.write_text(json.dumps(json.loads(path.read_text()) | marker))
    assert stub.run() == 0
    assert "its marker is damaged" in stub.output() and stub.marker("abs")["attempt"] == 2


def test_a_marker_without_its_log_is_no_outcome(stub):
    assert stub.run() == 0
    (stub.latest / "main/abs/attempts/1/run.log").unlink()
    assert stub.run() == 0
    assert "the run.log of its attempt is gone" in stub.output() and stub.marker("abs")["attempt"] == 2
