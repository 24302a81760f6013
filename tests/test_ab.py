"""test_ab.py - ab_summary.py on run directories made here, ab_test.sh on a stub tree, and both once on the host device."""
import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import stub_tree

ROOT = Path(__file__).resolve().parent.parent
STEADY = (1.000, 1.001, 0.999, 1.000, 1.001)
TTGIR = 'module attributes {"ttg.num-warps" = 4 : i32} {\n%s  tt.return\n}\n'
CONVERT = "  %1 = ttg.convert_layout %0 : tensor<64xf32, #blocked> -> tensor<64xf32, #blocked1>\n"


# ---- ab_summary.py on literal files

class Runs:
    """RUN of an ab_test.sh that is over; each operator as `add` says."""

    def __init__(self, path, **settings):
        self.path, self.ops = path, []
        self.settings = {"schema": 1, "switch": "SW", "off": "0", "on": "1", "rounds": "5", "band": "0.02", "noise": "",
                         "repo": "main", "device": "0", **settings}

    def add(self, op, on=STEADY, off=STEADY, tests=(0, 0), change=lambda log, side, number: log, outcome="passed", **header):
        self.ops.append(op)
        folder = self.path / "main" / op
        for side, status in zip(("off", "on"), tests):
            make_process(folder / f"tests-{side}", "", status, f'{{"outcome": "{outcome}"}}\n')
        for side, times in (("off", off), ("on", on)):
            for number, ms in enumerate(times, 1):
                log = format_log(op, [("float16", "[torch.Size([64, 64])]", ms)], **header)
                make_process(folder / f"round-{number}-{side}", change(log, side, number), 0)
                (folder / f"round-{number}-{side}/autotune.json").write_text('{"schema": 1, "meta": {}, "entries": []}')
        return folder

    def summarize(self, **environment):
        """(exit status, rows of ab.csv, stdout + stderr)."""
        (self.path / "ab.json").write_text(json.dumps({**self.settings, "ops": ",".join(self.ops)}))
        done = subprocess.run([sys.executable, ROOT / "ab_summary.py", self.path], text=True, capture_output=True, check=False,
                              env={**os.environ, **environment})
        rows = list(csv.DictReader(open(self.path / "ab.csv"))) if (self.path / "ab.csv").exists() else []
        return done.returncode, {row["op"]: row for row in rows}, done.stdout + done.stderr


def make_process(folder, log, status, tests=""):
    folder.mkdir(parents=True)
    (folder / "run.log").write_text(log)
    (folder / "tests.jsonl").write_text(tests)
    (folder / "exit.json").write_text(json.dumps({"schema": 1, "pytest_exit": status}))


def format_log(op, rows, **header):
    header = {"repo": "main", "op": op, "timer": "graph", "cache": "cold", **header}
    lines = ["==== gemscreen begin ====", *(f"{k}: {v}" for k, v in header.items()), "===="]
    for dtype, shape, ms in rows:
        lines += [f"Operator: {op}  Performance Test (dtype=torch.{dtype}, mode=kernel,level=core)",
                  "Status      Torch Latency (ms)    Gems Latency (ms)         Gems Speedup         Size Detail", "-" * 90,
                  f"SUCCESS     {'0.500000':>20}{ms:>20.6f}{'1.000':>20}          {shape}"]
    return "\n".join([*lines, "==== gemscreen end ====", "pytest_exit: 0", "====", ""])


def add_kernels(folder, number, **ttgir):
    """A compiled kernel in the cache of both sides' round `number`."""
    for side, text in ttgir.items():
        for name in ("mm_kernel", "gemscreen_clear"):
            place = folder / f"round-{number}-{side}/cache/triton/{name}"
            place.mkdir(parents=True)
            (place / f"{name}.json").write_text(json.dumps({"name": name, "shared": 0, "num_warps": 4}))
            # The timer's own kernel differs as well: it is no operator's.
            (place / f"{name}.ttgir").write_text(TTGIR % (text if name == "mm_kernel" else CONVERT * (side == "on")))


def test_verdicts(tmp_path):
    runs = Runs(tmp_path)
    runs.add("faster", on=[0.9 * t for t in (1, 1.001, 0.999, 1, 1)])
    runs.add("slower", on=[1.1, 1.1, 1.101, 1.1, 1.099])
    runs.add("same", on=[1.001, 1.000, 1.000, 0.999, 1.001])
    runs.add("noisy", on=[1.2, 0.8, 1.1, 0.9, 1.05])
    status, rows, text = runs.summarize()
    assert status == 1
    assert {op: row["verdict"] for op, row in rows.items()} == {
        "faster": "faster", "slower": "slower", "same": "same", "noisy": "ambiguous"}
    faster = rows["faster"]
    assert (faster["off_ms"], faster["on_ms"], faster["rounds"], faster["band"]) == ("1", "0.9", "5", "0.02")
    assert float(faster["ratio"]) == pytest.approx(0.8999, abs=1e-3)
    assert 0.895 < float(faster["ci_low"]) < float(faster["ci_high"]) < 0.905
    assert faster["reason"].startswith("p=") and rows["same"]["reason"] == "interval inside 2.0%"
    assert rows["noisy"]["reason"].startswith("effects below ") and rows["noisy"]["reason"].endswith("cannot be seen in 5 rounds")
    assert (faster["timer"], faster["cache"], faster["correctness_off"], faster["code"]) == ("graph", "cold", "passed", "unknown")
    assert "SW: on=1 against off=0, 5 rounds, 4 rows: 1 faster, 1 slower, 1 same, 1 ambiguous" in text


@pytest.mark.parametrize("remark, verdict, reason", [
    ("gems: throttled: sw_power_cap", "ambiguous", "round 4 on: gems: throttled: sw_power_cap"),
    ("columns and more; shared with process 7", "ambiguous", "round 4 on: shared with process 7"),
    ("torch: throttled: sw_power_cap", "faster", None)])
def test_a_figure_that_its_own_row_doubts_gives_no_verdict(remark, verdict, reason, tmp_path):
    """The card was disturbed while it was taken, in each of three tries."""
    def change(log, side, number):
        line = f"TIMER: Operator=op dtype=torch.float16 row=1 timer=graph cache=cold reason=<<<{remark}>>>\n"
        return log.replace("==== gemscreen end", line + "==== gemscreen end") if (side, number) == ("on", 4) else log
    runs = Runs(tmp_path)
    runs.add("op", on=[0.9 * t for t in (1, 1.001, 0.999, 1, 1)], change=change)
    status, rows, _ = runs.summarize()
    assert (status, rows["op"]["verdict"]) == (0, verdict)
    assert reason in (None, rows["op"]["reason"])
    assert rows["op"]["ratio"] == "0.89982"


def test_a_faster_row_alone_is_a_good_result(tmp_path):
    runs = Runs(tmp_path)
    runs.add("faster", on=[0.9] * 5)
    assert runs.summarize()[0] == 0


def test_many_rows_make_a_single_small_p_ambiguous(tmp_path):
    """p = 0.032 alone is faster; as one of four rows its corrected value is 0.13."""
    one = dict(on=[0.85, 0.95, 0.90, 0.99, 0.92])
    alone, among = Runs(tmp_path / "alone"), Runs(tmp_path / "among")
    alone.add("op", **one)
    for op in ("a", "b", "c"):
        among.add(op, on=[1.2, 0.8, 1.1, 0.9, 1.05])
    among.add("op", **one)
    assert alone.summarize()[1]["op"]["verdict"] == "faster"
    row = among.summarize()[1]["op"]
    assert row["verdict"] == "ambiguous" and row["reason"] == "p=0.032 alone, 0.13 as one of 4 rows"
    assert float(row["p_adjusted"]) == pytest.approx(4 * float(alone.summarize()[1]["op"]["p_adjusted"]), rel=1e-3)


def miss(log, side, number):
    line = "AUTOTUNE_REPLAY libtuner: used=3 unused=0 missed=0 fallback=2 dropped=0 from=/x\n"
    return log + line if (side, number) == ("on", 3) else log


def fall_back(log, side, number):
    line = "TIMER: Operator=event dtype=torch.float16 row=1 timer=event cache=cold reason=<<<capture failed>>>\n"
    return log.replace("==== gemscreen end", line + "==== gemscreen end") if (side, number) == ("off", 2) else log


def move_gap(log, side, number):
    gap = 0.85 if side == "off" else 1.03
    line = f"TIMER: Operator=chain dtype=torch.float16 row=1 timer=graph cache=cold gap_us={gap} nodes=3 reason=<<<>>>\n"
    return log.replace("==== gemscreen end", line + "==== gemscreen end")


def fail_row(log, side, number):
    return log.replace("SUCCESS ", "FAILED  ") if (side, number) == ("on", 4) else log


def test_what_a_moved_launch_gap_may_have_done_is_no_effect(tmp_path):
    """Three launches of 0.18 us more are 10 % of 5.4 us."""
    runs, off = Runs(tmp_path), [0.0054 * t for t in STEADY]
    runs.add("chain", off=off, on=[1.1 * t for t in off], change=move_gap)
    runs.add("plain", off=off, on=[1.1 * t for t in off])
    rows = runs.summarize()[1]
    assert {op: row["verdict"] for op, row in rows.items()} == {"chain": "ambiguous", "plain": "slower"}
    assert rows["chain"]["reason"].endswith("10.0% of it for a launch gap that moved")


def test_rows_that_nothing_can_be_said_of(tmp_path):
    runs = Runs(tmp_path)
    runs.add("wrong", tests=(0, 1), on=[0.5] * 5)
    runs.add("crashing", tests=(None, 0))
    runs.add("tuned", change=miss)
    runs.add("unplugged")
    for number in range(1, 6):  # PLUGINS without _autotune_record_plugin: each side tuned by itself
        for side in ("off", "on"):
            (tmp_path / f"main/unplugged/round-{number}-{side}/autotune.json").unlink()
    (runs.add("killed") / "round-4-on/autotune.json").write_text('{"schema": 1, "meta": {}, "entries": [{}]}')
    (runs.add("crashed") / "round-2-on/exit.json").unlink()
    (runs.add("half") / "round-5-on/exit.json").write_text('{"schema": 1, "pytest_exit": 1}')
    for folder in runs.add("alike").glob("round-*"):  # what fails on both sides alike leaves the other rows comparable
        (folder / "exit.json").write_text('{"schema": 1, "pytest_exit": 1}')
    runs.add("event", change=fall_back)
    runs.add("failing", change=fail_row)
    runs.add("host", cache="host")
    runs.add("forced", replay=" forced", replay_from="/x")
    runs.add("short", on=STEADY[:4])
    started = '{"event": "started"}\n'
    table = '{"event": "table", "op": "lost", "dtype": "torch.float16", "rows": ["0.400000"]}\n'
    (runs.add("early") / "round-3-off/session.jsonl").write_text(started)
    (runs.add("lost") / "round-3-on/session.jsonl").write_text(started + table + '{"event": "finished", "exit": 0}\n')
    runs.add("unrecorded", record="session.jsonl")
    runs.ops.append("never")
    status, rows, _ = runs.summarize()
    assert rows.pop("alike")["verdict"] == "same"
    assert status == 1 and {row["verdict"] for row in rows.values()} == {"invalid"}
    assert {op: row["reason"] for op, row in rows.items()} == {
        "wrong": "correctness failed with on", "crashing": "correctness crashed with off",
        "crashed": "round 2 on: crashed", "half": "round 5 on: pytest ended with 1, that of round 1 off with 0",
        "tuned": "round 3 on: libtuner: fallback=2: not the recorded configs",
        "unplugged": "round 1 off: autotune.json is missing or broken: not the recorded configs",
        "killed": "round 4 on: run.log says nothing of the replay: not the recorded configs",
        "event": "timed differently: event cold, graph cold",
        "early": "round 3 off: pytest did not end by itself", "unrecorded": "round 1 off: pytest did not start",
        "lost": "round 3 on: 1 of 1 printed rows lack in run.log, or have another figure there",
        "failing": "no figure in round 4 on (FAILED)", "host": "the host device measures no time",
        "forced": "a record was replayed by force (REPLAY_FORCE)", "short": "no figure in round 5 on",
        "never": "correctness not run with off"}
    assert rows["wrong"]["ratio"] == "" and rows["wrong"]["on_ms"] == "0.5"
    assert rows["host"]["on_ms"] == rows["host"]["off_ms"] == ""


def test_skipped_tests_are_said_and_no_fault(tmp_path):
    runs = Runs(tmp_path)
    runs.add("same", outcome="skipped")
    _, rows, text = runs.summarize()
    assert (rows["same"]["correctness_off"], rows["same"]["verdict"]) == ("skipped", "same")
    assert "correctness not shown, no test ran: same (skipped)" in text


def test_tests_that_one_side_alone_skips_show_nothing(tmp_path):
    runs = Runs(tmp_path)
    folder = runs.add("faster", on=[0.9] * 5)
    (folder / "tests-on/tests.jsonl").write_text('{"outcome": "skipped"}\n')
    row = runs.summarize()[1]["faster"]
    assert (row["verdict"], row["reason"]) == ("invalid", "correctness passed with off, but skipped with on")


def test_code_and_converts_are_those_of_the_last_round(tmp_path):
    runs = Runs(tmp_path)
    add_kernels(runs.add("other"), 5, off=CONVERT * 3, on=CONVERT)
    add_kernels(runs.add("equal"), 5, off=CONVERT, on=CONVERT)
    _, rows, text = runs.summarize()
    assert "different  3->1" in text and "identical  1->1" in text
    assert [rows[op]["code"] for op in ("other", "equal")] == ["different", "identical"]
    assert (rows["other"]["converts_off"], rows["other"]["converts_on"]) == ("3", "1")


def test_equal_shapes_of_one_table_stay_apart(tmp_path):
    runs = Runs(tmp_path)
    folder = runs.add("twice")
    for number, side in ((n, s) for n in range(1, 6) for s in ("off", "on")):
        rows = [("float16", "[torch.Size([8])]", 1.0), ("float16", "[torch.Size([8])]", 2.0)]
        (folder / f"round-{number}-{side}/run.log").write_text(format_log("twice", rows))
    runs.summarize()
    found = [(r["shape"], r["off_ms"]) for r in csv.DictReader(open(tmp_path / "ab.csv"))]
    assert found == [("[torch.Size([8])]", "1"), ("[torch.Size([8])] #2", "2")]


NOISE = {"schema": 1, "device": "NVIDIA H200", "timers": {"graph cold": {"band": 0.3}, "event cold": {"band": 0.004}}}


def test_the_band_of_a_noise_study(tmp_path):
    (tmp_path / "noise.json").write_text(json.dumps(NOISE))
    runs = Runs(tmp_path / "run", band="", noise=str(tmp_path / "noise.json"), device="NVIDIA H200")
    runs.add("op", on=[0.9] * 5)
    row = runs.summarize()[1]["op"]
    assert (row["band"], row["verdict"], row["reason"]) == ("0.3", "same", "interval inside 30.0%")
    status, rows, _ = runs.summarize(BAND="0.05")
    assert (status, rows["op"]["verdict"]) == (0, "faster")
    (tmp_path / "noise.json").write_text(json.dumps({**NOISE, "device": "NVIDIA H100"}))
    status, _, text = runs.summarize()
    assert status == 3 and "made on NVIDIA H100, this is NVIDIA H200" in text


@pytest.mark.parametrize("text", [None, "[1]", '{"schema": 1, "ops": "mm"}'])
def test_no_run_of_ab_test(tmp_path, text):
    if text:
        (tmp_path / "ab.json").write_text(text)
    done = subprocess.run([sys.executable, ROOT / "ab_summary.py", tmp_path], text=True, capture_output=True, check=False)
    assert done.returncode == 2 and f"{tmp_path}/ab.json: missing or cut; name a run directory of ab_test.sh" in done.stderr


def test_a_band_that_is_no_share(tmp_path):
    runs = Runs(tmp_path)
    runs.add("op")
    for band in ("x", "-1", "nan"):
        status, _, text = runs.summarize(BAND=band)
        assert status == 2 and f"BAND: {band}: give a share, as BAND=0.02" in text


# ---- ab_test.sh: what it refuses

@pytest.mark.parametrize("code, said, environment", [
    (2, "SWITCH: : is no variable's name", {}),
    (2, "SWITCH: USE_FLAGTUNE: changes what is searched for; both sides must use the same", {"SWITCH": "USE_FLAGTUNE"}),
    (2, "SWITCH: USE_FLAGTUNE_COST_MODEL: changes what is searched for", {"SWITCH": "USE_FLAGTUNE_COST_MODEL"}),
    (2, "SWITCH: TRITON_CACHE_DIR: run_pytest.sh gives every process its own; both sides would be alike",
     {"SWITCH": "TRITON_CACHE_DIR"}),
    (2, "SWITCH: TUNER_CACHE: is a knob of run_pytest.sh", {"SWITCH": "TUNER_CACHE"}),
    (2, "SWITCH: TEST_ARGS: is a knob of run_pytest.sh or of this script", {"SWITCH": "TEST_ARGS"}),
    (3, "SW: 1: is set already and would reach both sides; unset it", {"SW": "1"}),
    (3, "SW: : is set already", {"SW": ""}),
    (2, "VALUES: 1: give two values", {"VALUES": "1"}), (2, "VALUES: 1,1: are the same", {"VALUES": "1,1"}),
    (2, "OPS: : name operators", {"OPS": ""}), (2, "OPS: abs: named twice", {"OPS": "abs,add,abs"}),
    (2, "ROUNDS: 1: give 2 or more", {"ROUNDS": "1"}), (2, "BAND: 2: give a share", {"BAND": "2"}),
    (2, "BAND: 0.0: give a share", {"BAND": "0.0"}), (2, "NOISE: /no/noise: does not exist", {"NOISE": "/no/noise"}),
    (2, "RUN: /: exists; name a new directory", {"RUN": "/"}), (2, "RUN: /tmp/none/a?b: has a `?`", {"RUN": "/tmp/none/a?b"}),
    (2, "OP: abss: not in ", {"OPS": "abs,abss"})])
def test_refusals(code, said, environment, tmp_path):
    env = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, "SWITCH": "SW", "OPS": "abs", "REPO": "samples",
           "HOST_TARGET": "cuda:90", **({} if environment else {"SWITCH": ""}), **environment}
    done = subprocess.run([ROOT / "ab_test.sh"], env=env, cwd=tmp_path, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (code, "") and said in done.stderr
    assert not list(tmp_path.iterdir())


# ---- ab_test.sh on a tree without torch: the operator takes the time that the switch says

BENCHMARK = """
    import os, time
    @pytest.mark.abs
    def test_abs():
        with open("autotune.json", "w") as file:  # as _autotune_record_plugin does, which needs a real Triton
            file.write('{"schema": 1, "meta": {}, "entries": []}')
        if os.environ.get("HANG") == os.environ["SW"]:
            print("HANGING", flush=True)
            time.sleep(600)
        make("abs", gems=lambda *inputs, **options: 0.010 if os.environ["SW"] == "0" else 0.008, dtypes=(torch.float16,)).run()
"""


@pytest.fixture
def tree(tmp_path):
    tree = stub_tree.make_tree(tmp_path / "tree")
    stub_tree.add_benchmark(tree, "abs", BENCHMARK)
    (tree / "tests").mkdir()
    (tree / "tests/conftest.py").write_text("def pytest_addoption(parser):\n"
                                            "    parser.addoption('--quick', action='store_true')\n")
    (tree / "tests/test_abs.py").write_text("import os\ndef test_abs(request):\n    assert request.config.getoption('--quick')\n"
                                            "    assert os.environ['SW'] != os.environ.get('WRONG')\n")
    with open(tree / "stubs/torch.py", "a") as file:
        file.write("\ncuda.device_count = staticmethod(lambda: 1)\n"
                   "cuda.get_device_name = staticmethod(lambda index=0: 'NVIDIA Stub')\n")
    return tree


def make_call(tree, **environment):
    env = stub_tree.make_env(tree, FLAGGEMS_DIR=tree, REPO="main", DEVICES="0", SWITCH="SW", OPS="abs", RUN=tree / "ab",
                             **environment)
    return {"args": [str(ROOT / "ab_test.sh")], "env": env, "cwd": tree, "text": True}


def run_ab(tree, **environment):
    done = subprocess.run(**make_call(tree, **environment), capture_output=True, timeout=120, check=False)
    return done, list(csv.DictReader(open(tree / "ab/ab.csv"))) if (tree / "ab/ab.csv").exists() else []


def test_two_sides_from_end_to_end(tree):
    done, rows = run_ab(tree, ROUNDS=3)
    assert done.returncode == 0, done.stdout + done.stderr
    columns = ("verdict", "off_ms", "on_ms", "rounds", "correctness_on")
    assert [tuple(row[name] for name in columns) for row in rows] == [("faster", "0.01", "0.008", "3", "passed")] * 3
    order = [line.split(" abs ") for line in done.stdout.splitlines() if line.startswith("ab_test.sh: ")]
    assert [start for start, _ in order] == [f"ab_test.sh: [{n}/8]" for n in range(1, 9)] and "host" not in done.stderr
    assert [what for _, what in order] == [
        "tests-off (SW=0)", "tests-on (SW=1)", "round-1-off (SW=0)", "round-1-on (SW=1)", "round-2-on (SW=1)",
        "round-2-off (SW=0)", "round-3-off (SW=0)", "round-3-on (SW=1)"]
    logs = {p.parent.name: p.read_text() for p in tree.glob("ab/main/abs/*/run.log")}
    assert "suite: tests" in logs["tests-on"] and "tuner_cache: isolated" in logs["round-2-on"]
    assert "replay_from: \n" in logs["round-1-off"]
    replays = [log for name, log in logs.items() if name.startswith("round") and name != "round-1-off"]
    assert all(f"replay_from: {tree}/ab/main/abs/round-1-off\n" in log for log in replays)


def test_a_side_that_computes_wrong_is_invalid(tree):
    done, rows = run_ab(tree, WRONG="1")
    assert done.returncode == 1 and {(r["verdict"], r["reason"]) for r in rows} == {("invalid", "correctness failed with on")}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_children_and_leaves_files_that_can_be_read(tree, number):
    process = subprocess.Popen(**make_call(tree, HANG="1"), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               start_new_session=True)
    log = tree / "ab/main/abs/round-1-on/run.log"
    stub_tree.wait_for(lambda: log.exists() and "HANGING" in log.read_text(), seconds=60)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number and "ab_test.sh: interrupted;" in errors
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # nothing of its session is left
    done = subprocess.run([sys.executable, ROOT / "ab_summary.py", tree / "ab"], text=True, capture_output=True, check=False)
    assert done.returncode == 1 and "no figure in round 1 on" in done.stdout


# ---- both on the host device, with a switch that changes the compiler

def test_a_compiler_switch_on_the_host_device(tmp_path):
    """Times mean nothing there; code and converts are real."""
    env = {**os.environ, "PYTHON": sys.executable, "REPO": "samples", "HOST_TARGET": "cuda:90", "HOST_MODE": "compile",
           "DTYPES": "float16", "SWITCH": "RLC_STOCK_ENHANCE", "OPS": "rand", "RUN": str(tmp_path / "ab")}
    done = subprocess.run([ROOT / "ab_test.sh"], env=env, cwd=tmp_path, text=True, capture_output=True, timeout=600, check=False)
    assert "ab_test.sh: host:0: the host device measures no time: every row will be invalid" in done.stderr
    rows = list(csv.DictReader(open(tmp_path / "ab/ab.csv")))
    assert done.returncode == 1
    assert {(r["verdict"], r["reason"]) for r in rows} == {("invalid", "the host device measures no time")}
    assert {(r["correctness_off"], r["correctness_on"], r["code"]) for r in rows} == {("passed", "passed", "different")}
    assert int(rows[0]["converts_off"]) > int(rows[0]["converts_on"]) >= 0
    log = (tmp_path / "ab/samples/rand/round-2-on/run.log").read_text()
    assert f"replay_from: {tmp_path}/ab/samples/rand/round-1-off\n" in log and "RLC_SWITCH cell=candidate" in log
