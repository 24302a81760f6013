"""test_aa_study.py - aa_study.py and common/noise.py: the order of the processes, the figures, the refusals.

The study is a copy of the real script beside a run_pytest.sh that measures nothing: it writes samples.jsonl as the
timer does, from the figures in figures.json. The machine is tests/test_devices.py's stand-in.
"""
import csv
import json
import math
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import stub_tree
from test_devices import TORCH

from common import noise
from common.errors import UserError

ROOT = Path(__file__).resolve().parent.parent

RUN_PYTEST = f'#!{sys.executable} -S' + '''
import json, os, sys
op, folder, root = sys.argv[1], os.environ["RUN_DIR"], os.path.dirname(os.path.abspath(__file__))
with open(root + "/calls.jsonl", "a") as file:
    names = ("TIMER", "REPLAY_FROM", "CUDA_VISIBLE_DEVICES", "DEVICE", "REPO")
    print(json.dumps({"op": op, "run": os.path.basename(folder), **{n: os.environ.get(n) for n in names}}), file=file)
figures = json.load(open(root + "/figures.json"))
if op == "refused":
    sys.exit("run_pytest.sh: error: OP: refused: no such operator")
os.mkdir(folder)
open(folder + "/run.log", "w").write("==== gemscreen begin ====\\ncache: cold\\n====\\n")
name = os.path.basename(folder)
if name == "record":
    json.dump({"meta": {"device": "NVIDIA H200"}}, open(folder + "/autotune.json", "w"))
else:
    number, timer = name.split("-")
    times = figures.get(timer, [])
    if int(number) <= len(times):
        time = times[int(number) - 1]
        line = {"schema": 1, "kind": "column", "op": op, "dtype": "float16", "detail": "[64]", "column": "gems", "timer": timer,
                "cache": "cold", "fault": "" if time else "no time", "latency_ms": time, "spread": 0.001}
        first = {**line, "latency_ms": 99.0}  # of a try that was repeated
        lines = (json.dumps(x) + "\\n" for x in (first, {"kind": "block"}, line))
        open(folder + "/samples.jsonl", "w").write("".join(lines) + '{"cut')
'''

GRAPH = [1.000, 1.002, 1.001, 1.003, 0.999, 1.000]
DO_BENCH = [1.0, 1.3, 0.8, 1.1, 1.4, 0.9]


@pytest.fixture
def study(tmp_path):
    """study(*words, figures={}, **environ) -> CompletedProcess of aa_study.py in a tree of its own."""
    for name in ("aa_study.py",):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "common", tmp_path / "common", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(stub_tree.SAMPLES / "benchmark", tmp_path / "samples/flaggems/benchmark")
    (tmp_path / "site").mkdir()
    (tmp_path / "site/torch.py").write_text(textwrap.dedent(TORCH))
    (tmp_path / "run_pytest.sh").write_text(RUN_PYTEST)
    (tmp_path / "run_pytest.sh").chmod(0o755)

    def run(*words, figures=None, **environ):
        (tmp_path / "figures.json").write_text(json.dumps({"graph": GRAPH, "do_bench": DO_BENCH} if figures is None else figures))
        env = stub_tree.make_env(tmp_path, PLUGINS=None, PYTHONPATH=tmp_path / "site", FAKE_UUIDS="GPU-0,GPU-1", **environ)
        return subprocess.run([sys.executable, "aa_study.py", *words], env=env, cwd=tmp_path, text=True, capture_output=True,
                              timeout=120, check=False)
    return run


def test_a_process_that_ended_early_gives_no_figure(study, tmp_path):
    assert study(OPS="abs", TIMERS="graph", RUN="aa").returncode == 0
    (tmp_path / "aa/samples/abs/2-graph/session.jsonl").write_text('{"event": "started"}\n')
    assert study("--read", "aa").returncode == 1
    with open(tmp_path / "aa/aa.csv", newline="") as stream:
        assert [row["times_ms"] for row in csv.DictReader(stream)] == ["1  1.001 1.003 0.999 1"]


def test_a_process_that_tuned_for_itself_gives_no_figure(study, tmp_path):
    """Its spread is the tuner's, not the timer's."""
    assert study(OPS="abs", TIMERS="graph", RUN="aa").returncode == 0
    folder = tmp_path / "aa/samples/abs/2-graph"
    (folder / "run.log").write_text("==== gemscreen begin ====\nreplay_from: record\n====\n"
                                   "AUTOTUNE_REPLAY libtuner: used=1 unused=0 missed=1 fallback=0 dropped=0 "
                                   "from=record/autotune.json\n")
    (folder / "autotune.json").write_text('{"entries": [{}]}')
    assert study("--read", "aa").returncode == 1
    with open(tmp_path / "aa/aa.csv", newline="") as stream:
        assert [row["times_ms"] for row in csv.DictReader(stream)] == ["1  1.001 1.003 0.999 1"]


def read_calls(path):
    return [json.loads(line) for line in (path / "calls.jsonl").read_text().splitlines()]


def test_processes_run_in_mirrored_order_and_replay_one_record(study, tmp_path):
    done = study(OPS="abs", PROCESSES="4", TIMERS="graph,do_bench", RUN=tmp_path / "aa", CUDA_VISIBLE_DEVICES="1,0")
    assert done.returncode == 0, done.stdout + done.stderr
    calls = read_calls(tmp_path)
    assert [c["run"] for c in calls] == ["record", "1-graph", "1-do_bench", "2-do_bench", "2-graph", "3-graph", "3-do_bench",
                                         "4-do_bench", "4-graph"]
    record = str(tmp_path / "aa/samples/abs/record")
    assert [c["REPLAY_FROM"] for c in calls] == [None] + [record] * 8
    assert {(c["CUDA_VISIBLE_DEVICES"], c["DEVICE"], c["REPO"]) for c in calls} == {("1", "1", "samples")}


def test_figures_noise_and_table(study, tmp_path):
    done = study(OPS="abs", TIMERS="graph,do_bench", RUN=tmp_path / "aa", BAND="0.01")
    assert done.returncode == 0, done.stdout + done.stderr
    with open(tmp_path / "aa/aa.csv", newline="") as file:
        graph, bench = csv.DictReader(file)
    assert (graph["timer"], graph["median_ms"], graph["processes"], graph["within"]) == ("graph", "1.0005", "6", "0.001")
    assert graph["times_ms"] == "1 1.002 1.001 1.003 0.999 1"
    assert float(graph["between"]) == pytest.approx(0.00147, abs=0.00001)
    assert float(graph["range"]) == pytest.approx(0.004, abs=1e-5)
    assert float(bench["between"]) == pytest.approx(0.2138, abs=0.0001)
    noise_file = json.loads((tmp_path / "aa/noise.json").read_text())
    assert (noise_file["schema"], noise_file["device"], noise_file["processes"]) == (1, "NVIDIA H200", 6)
    assert list(noise_file["timers"]) == ["do_bench cold", "graph cold"]
    assert noise_file["timers"]["graph cold"]["band"] == 0.002
    assert noise_file["timers"]["do_bench cold"]["band"] > 0.1
    assert "graph cold" in done.stdout and done.stdout.rstrip().endswith(f"{tmp_path}/aa/noise.json")
    again = study("--read", str(tmp_path / "aa"))
    assert again.returncode == 0 and "verdicts beyond a band of 1.0%" in again.stdout


def test_a_default_run_gets_a_link(study, tmp_path):
    assert study(OPS="abs", PROCESSES="2", TIMERS="graph").returncode == 0
    assert (tmp_path / "runs/latest-aa/noise.json").is_file()


@pytest.mark.parametrize("figures", [{"graph": GRAPH[:5]}, {"graph": [1.0, 1.0, None, 1.0, 1.0, 1.0]}])
def test_a_process_without_a_time_is_a_bad_result_and_named(study, tmp_path, figures):
    done = study(OPS="abs", TIMERS="graph", RUN=tmp_path / "aa", figures=figures)
    assert done.returncode == 1 and "1 figures, 1 of them missing in a process" in done.stdout
    with open(tmp_path / "aa/aa.csv", newline="") as file:
        row, = csv.DictReader(file)
    assert row["processes"] == "5"


def test_no_samples_at_all_is_refused(study, tmp_path):
    done = study(OPS="abs", TIMERS="graph", RUN=tmp_path / "aa", figures={})
    assert done.returncode == 3 and "no process wrote samples.jsonl" in done.stderr


@pytest.mark.parametrize("environ, status, message", [
    ({}, 2, "OPS: empty; name operators"),
    ({"OPS": "abs", "PROCESSES": "5"}, 2, "PROCESSES: 5: give an even number"),
    ({"OPS": "abs", "TIMERS": "graph,wall"}, 2, "TIMERS: wall: unknown"),
    ({"OPS": "abs,abs", "TIMERS": "graph,,graph,wall"}, 2, "TIMERS: wall: unknown"),
    ({"OPS": "abs", "CACHE": "warm"}, 2, "CACHE: warm: do_bench always flushes"),
    ({"OPS": "abs", "BAND": "2 %"}, 2, "BAND: 2 %: give a share"),
    ({"OPS": "abs", "RUN": "/tmp/none/a?b"}, 2, "RUN: /tmp/none/a?b: has a `?`"),
    ({"OPS": "refused"}, 2, "OP: refused: no such operator"),
    ({"OPS": "abs", "DEVICES": "host:0"}, 3, "DEVICES: host:0: the host device measures no time"),
    ({"OPS": "abs", "DEVICES": "5"}, 3, "5")])
def test_what_makes_no_sense_is_refused(study, environ, status, message):
    if environ.get("OPS") == "refused":
        status = 3  # run_pytest.sh's own status was 1: it never ran
    done = study(**environ)
    assert done.returncode == status and message in done.stderr and "Traceback" not in done.stderr


def test_an_interrupted_study_is_read_again_as_one_of_the_card(study, tmp_path):
    """The third process of six was not reached: aa.json names the device as it was selected, its record names the card."""
    figures = {"graph": GRAPH[:2]}
    assert study(OPS="abs", TIMERS="graph", RUN=tmp_path / "aa", figures=figures).returncode == 1
    (tmp_path / "aa/noise.json").unlink()
    for number in range(3, 7):
        shutil.rmtree(tmp_path / f"aa/samples/abs/{number}-graph")
    again = study("--read", str(tmp_path / "aa"))
    assert again.returncode == 1 and "1 of them missing in a process" in again.stdout
    found = json.loads((tmp_path / "aa/noise.json").read_text())
    assert found["device"] == "NVIDIA H200" and found["timers"]["graph cold"]["band"] is None
    with pytest.raises(UserError, match="too few processes for a band of timer graph with cold L2; make one of 4 or more"):
        noise.read_band(tmp_path / "aa", "NVIDIA H200", "graph", "cold")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"ops": ["abs"]}'])
def test_a_run_that_is_none_of_a_study_is_refused(study, tmp_path, text):
    (tmp_path / "aa.json").write_text(text)
    done = study("--read", str(tmp_path))
    assert done.returncode == 2 and f"{tmp_path}/aa.json: missing, cut, or not of this version" in done.stderr


def test_an_operator_that_is_named_twice_is_measured_once(study, tmp_path):
    assert study(OPS="abs, abs,", PROCESSES="2", TIMERS="graph,", RUN=tmp_path / "aa").returncode == 0
    assert [call["run"] for call in read_calls(tmp_path)] == ["record", "1-graph", "2-graph"]


def test_existing_run_is_refused(study, tmp_path):
    (tmp_path / "aa").mkdir()
    assert "aa: exists; name a new directory" in study(OPS="abs", RUN=tmp_path / "aa").stderr


# ---- common/noise.py

def series(times, spreads=()):
    return noise.Series("abs", "float16", "[64]", "gems", "graph", "cold", tuple(times), tuple(spreads))


def test_pairs_follow_the_mirrored_order():
    assert noise.list_pairs([1, 2, 3, 4, 5, 6]) == [(1, 2), (4, 3), (5, 6)]
    assert noise.list_pairs([1, None, 3, 4, math.nan, 6, 7]) == [(4, 3)]


def test_a_steady_drift_raises_no_alarm():
    # each process 1 % slower than the one before: in mirrored order a and b are slow by turns
    spread = noise.summarize_series(series([1.01 ** n for n in range(8)]), 0.005)
    assert spread.alarms <= 0.25 and spread.between > 0.02


def test_the_rate_of_alarms_is_the_nominal_one():
    import random
    rng = random.Random(20261130)
    rates = [noise.summarize_series(series([math.exp(rng.gauss(0, 0.01)) for _ in range(12)]), 0.02).alarms for _ in range(40)]
    assert sum(rates) / len(rates) == pytest.approx(0.05, abs=0.02)


def test_percentile_is_one_of_the_values():
    assert noise.find_percentile([4, 1, 3, 2], 0.5) == 2 and noise.find_percentile([5], 0.95) == 5
    assert noise.find_percentile(list(range(1, 101)), 0.95) == 95


def test_nothing_is_said_of_nothing():
    assert noise.summarize_series(series([None, None]), 0.02) == noise.Spread(None, 0)
    assert noise.summarize_series(series([2.0, None]), 0.02) == noise.Spread(2.0, 1, None)
    assert noise.summarize_methods([(series([1.0]), noise.Spread(1.0, 1))]) == {}


def test_the_band_of_one_process_against_one_grows_with_the_rows(tmp_path):
    path = tmp_path / "noise.json"
    timers = {"graph cold": {"between_p95": 0.0025, "band": 0.9}}
    path.write_text(json.dumps({"schema": 1, "device": "NVIDIA H200", "timers": timers}))
    bands = [noise.read_single_band(tmp_path, "NVIDIA H200", "graph", "cold", rows) for rows in (0, 1, 1000)]
    assert bands == [pytest.approx(0.00693, abs=1e-5), bands[0], pytest.approx(0.01434, abs=1e-5)]


def test_band_is_read_for_the_same_device_and_timer_only(tmp_path):
    path = tmp_path / "noise.json"
    path.write_text(json.dumps({"schema": 1, "device": "NVIDIA H200", "timers": {"graph cold": {"band": 0.004}}}))
    assert noise.read_band(tmp_path, "NVIDIA H200", "graph", "cold") == 0.004
    for device, timer, code, message in (
            ("NVIDIA H100", "graph", 3, "made on NVIDIA H200, this is NVIDIA H100"),
            ("NVIDIA H200", "event", 3, "says nothing of timer event with cold L2 [(]graph cold[)]")):
        with pytest.raises(UserError, match=message) as raised:
            noise.read_band(path, device, timer, "cold")
        assert raised.value.code == code
    path.write_text("{}")
    with pytest.raises(UserError, match="is no noise.json"):
        noise.read_band(path, "NVIDIA H200", "graph", "cold")
