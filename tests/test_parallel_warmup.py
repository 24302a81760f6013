"""test_parallel_warmup.py - the sweep over several devices: its children, their end, the merged record, the serial run."""
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import stub_tree
from test_devices import TORCH

from common.runlog import parse_runlog

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "plugins"))


# ---- with a real tuner, on two slots of the host device

TUNED = '''
import os, pytest, torch, triton, triton.language as tl, flag_gems
from . import base

@triton.autotune(configs=[triton.Config({"BLOCK": b}) for b in (64, 128)], key=["n"])
@triton.jit
def double_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

def double(x):
    with open(os.environ["RUN_DIR"] + "/calls", "a") as file:
        print(x.numel(), file=file)
    y = torch.empty_like(x)
    double_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return y

def by_torch(x):
    assert "PARALLEL_WARMUP_SHARD" not in os.environ, "torch's column is nothing to tune"
    return x * 2

class Sizes(base.Benchmark):
    def set_shapes(self, path=None): self.shapes = [(n,) for n in (100, 200, 300, 400, 500)]
    def get_input_iter(self, dtype):
        for shape in self.shapes:
            yield torch.ones(shape, dtype=dtype, device=self.device),

@pytest.mark.double
def test_double():
    bench = Sizes("double", by_torch, dtypes=[torch.float32])
    bench.set_gems(double)
    bench.run()
'''


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    tree = tmp_path_factory.mktemp("warm") / "tree"
    (tree / "benchmark").mkdir(parents=True)
    for name in ("__init__.py", "conftest.py", "base.py", "consts.py", "utils.py", "core_shapes.yaml"):
        (tree / "benchmark" / name).write_text((stub_tree.SAMPLES / "benchmark" / name).read_text())
    (tree / "benchmark/test_double.py").write_text(TUNED)
    (tree / "pytest.ini").write_text("[pytest]\nmarkers =\n    double\n")
    return tree


@pytest.fixture(scope="module")
def ran(tree):
    """The operator tuned on two host slots and then measured: the CompletedProcess."""
    env = stub_tree.make_env(tree, PLUGINS=None, PYTHONPATH=None, FLAGGEMS_DIR=tree, RUN_DIR=tree / "run",
                             DEVICES="host:0,host:1", HOST_TARGET="cuda:90", PARALLEL_WARMUP_GPUS=2, TUNER_CACHE="isolated",
                             OMP_NUM_THREADS=1)
    command = [ROOT / "run_pytest.sh", "double", "benchmark/test_double.py::test_double"]
    return subprocess.run(command, env=env, cwd=tree, text=True, capture_output=True, timeout=300, check=False)


def read_calls(folder):
    return [int(line) for line in (folder / "calls").read_text().split()]


def read_keys(path):
    return {entry["key"]: entry for entry in json.loads(path.read_text())["entries"]}


def test_each_shard_tunes_its_share_and_the_first_input_is_the_control(tree, ran):
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr
    assert set(read_calls(tree / "run/warmup/0")) == {100, 300, 500}
    assert set(read_calls(tree / "run/warmup/1")) == {100, 200, 400}


def test_the_serial_run_measures_all_and_tunes_nothing(tree, ran):
    log = parse_runlog(tree / "run/run.log")
    assert [row.shape for row in log.rows] == [f"[torch.Size([{n}])]" for n in (100, 200, 300, 400, 500)]
    assert {row.status for row in log.rows} == {"SUCCESS"}
    record = f"{tree}/run/warmup/autotune.json"
    assert f"AUTOTUNE_REPLAY autotune: used=5 unused=0 missed=0 fallback=0 dropped=0 from={record}" in ran.stdout
    assert {e["origin"] for e in read_keys(tree / "run/autotune.json").values()} == {"replayed"}


def test_merged_winners_are_the_shards(tree, ran):
    merged = read_keys(tree / "run/warmup/autotune.json")
    shards = [read_keys(tree / f"run/warmup/{n}/autotune.json") for n in (0, 1)]
    assert set(merged) == set(shards[0]) | set(shards[1]) and len(set(shards[0]) & set(shards[1])) == 1
    assert all(entry["config"] == shards[key not in shards[0]][key]["config"] for key, entry in merged.items())
    assert "PARALLEL_WARMUP devices=host:0,host:1 keys=5 shared=1 disagreed=0 failed=0 sweep=" in ran.stdout
    assert "WARNING" not in ran.stdout


def test_each_shard_has_its_own_database_and_the_compile_cache_is_shared(tree, ran):
    for number in (0, 1):
        assert (tree / f"run/warmup/{number}/flaggems").is_dir()
        assert not (tree / f"run/warmup/{number}/cache").exists()
    assert list((tree / "run/cache/triton").glob("*/double_kernel.cubin"))


# ---- children without torch: what they are given, and how they end

STUB_TEST = '''
import json, os, signal, time
def test_it():
    run, shard = os.environ["RUN_DIR"], os.environ["PARALLEL_WARMUP_SHARD"]
    names = ("CUDA_VISIBLE_DEVICES", "PARALLEL_WARMUP_SHARD", "PARALLEL_WARMUP_GPUS", "FLAGGEMS_DB_URL", "FLAGGEMS_CACHE_DIR")
    with open(run + "/seen.json.tmp", "w") as file:
        json.dump({**{n: os.environ.get(n) for n in names}, "pid": os.getpid()}, file)
    os.rename(run + "/seen.json.tmp", run + "/seen.json")
    if os.environ.get("STUBBORN"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while os.environ.get("HANG"):
        time.sleep(0.1)
    if os.environ.get("DIE") == shard:
        os.kill(os.getpid(), signal.SIGKILL)
'''
SHARDING = "class Shard:\n    def __init__(self, number, count): pass\n"


@pytest.fixture
def stub(tmp_path):
    """start(**environ) -> Popen of pytest with the plugin, where neither torch nor a tuner is needed."""
    (tmp_path / "site/parallel_warmup").mkdir(parents=True)
    for path in (ROOT / "plugins/parallel_warmup").glob("*.py"):
        (tmp_path / "site/parallel_warmup" / path.name).write_text(path.read_text())
    (tmp_path / "site/parallel_warmup/sharding.py").write_text(SHARDING)
    (tmp_path / "site/autotune_record").mkdir()
    (tmp_path / "site/autotune_record/__init__.py").write_text("")
    (tmp_path / "site/autotune_record/record.py").write_text(
        "FILE_NAME = 'autotune.json'\nclass RecordError(ValueError): pass\nclass Record: pass\n")
    (tmp_path / "site/_autotune_record_plugin.py").write_text("")
    (tmp_path / "site/_parallel_warmup_plugin.py").write_text((ROOT / "plugins/_parallel_warmup_plugin.py").read_text())
    (tmp_path / "test_stub.py").write_text(STUB_TEST)
    devices = [{"device": n, "environ": {"CUDA_VISIBLE_DEVICES": n, "HOST_TARGET": None}} for n in ("6", "7")]

    def start(plugins=("_parallel_warmup_plugin", "_autotune_record_plugin"), **environ):
        (tmp_path / "run").mkdir(exist_ok=True)
        environ = {"PYTHONPATH": tmp_path / "site", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": 1, "RUN_DIR": tmp_path / "run",
                   "PARALLEL_WARMUP_GPUS": 2, "PARALLEL_WARMUP_DEVICES": json.dumps(devices), "CUDA_VISIBLE_DEVICES": "6",
                   **environ}
        env = stub_tree.make_env(tmp_path, PLUGINS=None, **environ)
        flags = [flag for name in plugins for flag in ("-p", name)]
        return subprocess.Popen([sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", *flags, "test_stub.py"], env=env,
                                cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    start.folder = tmp_path / "run/warmup"
    return start


def read_seen(stub, numbers=(0, 1)):
    stub_tree.wait_for(lambda: all((stub.folder / str(n) / "seen.json").exists() for n in numbers))
    return [json.loads((stub.folder / str(n) / "seen.json").read_text()) for n in numbers]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_children_see_the_callers_devices_and_databases_of_their_own(stub, tmp_path):
    (tmp_path / "shared.db").write_text("tuned before")
    process = stub(FLAGGEMS_DB_URL=f"sqlite:///{tmp_path}/shared.db")
    output, _ = process.communicate(timeout=60)
    seen = read_seen(stub)
    assert [s["CUDA_VISIBLE_DEVICES"] for s in seen] == ["6", "7"]
    assert [s["PARALLEL_WARMUP_SHARD"] for s in seen] == ["0/2", "1/2"]
    assert {s["PARALLEL_WARMUP_GPUS"] for s in seen} == {None}
    assert [s["FLAGGEMS_DB_URL"] for s in seen] == [f"sqlite:///{stub.folder}/{n}/flaggems/tuned.db" for n in (0, 1)]
    assert (stub.folder / "1/flaggems/tuned.db").read_text() == "tuned before"
    assert "PARALLEL_WARMUP devices=6,7 keys=0 shared=0 disagreed=0 failed=2" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stubborn", [{}, {"STUBBORN": "1"}])
def test_interrupted_while_it_waits_the_children_are_ended_first(stub, number, stubborn):
    shards = (stub.folder.parent.parent / "site/parallel_warmup/shards.py")
    shards.write_text(shards.read_text().replace("GRACE_SECONDS = 10", "GRACE_SECONDS = 1"))
    process = stub(HANG="1", **stubborn)
    pids = [s["pid"] for s in read_seen(stub)]
    process.send_signal(number)
    process.communicate(timeout=60)
    assert not any(is_alive(pid) for pid in pids)
    assert process.returncode not in (0, 5)


def test_a_child_that_no_signal_reaches_does_not_keep_the_others(monkeypatch, capsys):
    """A process that hangs in the driver cannot be made here: the first of these stands for one."""
    from parallel_warmup import shards
    monkeypatch.setattr(shards, "GRACE_SECONDS", 0.2)

    class Hung(subprocess.Popen):
        def send_signal(self, number): pass

    hung, other = (kind(["sleep", "60"]) for kind in (Hung, subprocess.Popen))
    shards.end_children([shards.Child(0, "6", Path(), hung), shards.Child(1, "7", Path(), other)])
    assert f"shard 0 (device 6), process {hung.pid}, does not end: it hangs in the driver" in capsys.readouterr().err
    assert hung.poll() is None and other.returncode == -signal.SIGTERM
    os.kill(hung.pid, signal.SIGKILL)
    hung.wait()


def test_children_do_not_outlive_a_killed_parent(stub):
    process = stub(HANG="1")
    pids = [s["pid"] for s in read_seen(stub)]
    process.kill()
    process.communicate(timeout=60)
    stub_tree.wait_for(lambda: not any(is_alive(pid) for pid in pids))


def test_a_shard_that_dies_is_named_and_the_run_goes_on(stub):
    process = stub(DIE="1/2")
    output, _ = process.communicate(timeout=60)
    assert f"WARNING: PARALLEL_WARMUP: shard 1 (device 7) ended with -9: see {stub.folder}/1/output.log" in output
    assert "1 failed" in output  # the serial run's own test, which has no PARALLEL_WARMUP_SHARD to read


@pytest.mark.parametrize("changes, message", [
    ({"PARALLEL_WARMUP_GPUS": "two"}, "PARALLEL_WARMUP_GPUS: two: is no number of devices"),
    ({"PARALLEL_WARMUP_GPUS": "3"}, "PARALLEL_WARMUP_GPUS: 3: 2 devices are named (6, 7)"),
    ({"PARALLEL_WARMUP_DEVICES": ""}, "PARALLEL_WARMUP_DEVICES: empty; run through run_pytest.sh"),
    ({"PARALLEL_WARMUP_DEVICES": "6,7"}, "PARALLEL_WARMUP_DEVICES: 6,7: is not what"),
    ({"PARALLEL_WARMUP_DEVICES": json.dumps([{"device": "6", "environ": {}}] * 2)}, "6: named twice"),
    ({"RUN_DIR": ""}, "needs RUN_DIR")])
def test_what_makes_no_sense_is_refused_before_a_child_starts(stub, tmp_path, changes, message):
    env = stub_tree.make_env(tmp_path, PLUGINS=None, PYTHONPATH=tmp_path / "site", RUN_DIR=tmp_path, PARALLEL_WARMUP_GPUS=2,
                             PARALLEL_WARMUP_DEVICES=json.dumps([{"device": n, "environ": {}} for n in "67"]))
    done = subprocess.run([sys.executable, "-m", "pytest", "-p", "_parallel_warmup_plugin", "test_stub.py"],
                          env={**env, **changes}, cwd=tmp_path, text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "warmup").exists()


def test_without_the_recorder_it_is_refused_and_nothing_is_left(stub):
    process = stub(plugins=["_parallel_warmup_plugin"], HANG="1")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 4 and "add -p _autotune_record_plugin" in errors


def test_unset_it_does_nothing(stub):
    process = stub(PARALLEL_WARMUP_GPUS="")
    output, _ = process.communicate(timeout=60)
    assert "PARALLEL_WARMUP devices" not in output and not stub.folder.exists()


# ---- which devices

@pytest.fixture
def machine(tmp_path):
    (tmp_path / "torch.py").write_text(textwrap.dedent(TORCH))

    def ask(*words, **variables):
        env = stub_tree.make_env(tmp_path, PLUGINS=None, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}",
                                 FAKE_UUIDS=",".join(f"GPU-{n}" for n in range(8)), **variables)
        return subprocess.run([sys.executable, "-m", "common.devices", *words], env=env, cwd=ROOT, text=True, capture_output=True,
                              timeout=60, check=False)
    return ask


def test_devices_keep_the_callers_names(machine):
    done = machine("warmup", "2", CUDA_VISIBLE_DEVICES="6,7,3")
    shell = subprocess.run(["bash", "-c", f"{done.stdout}\necho \"$CUDA_VISIBLE_DEVICES $DEVICE $PARALLEL_WARMUP_DEVICES\""],
                           text=True, capture_output=True, check=True).stdout
    first, device, devices = shell.split(" ", 2)
    assert (first, device) == ("6", "6")
    assert [(d["device"], d["environ"]["CUDA_VISIBLE_DEVICES"]) for d in json.loads(devices)] == [("6", "6"), ("7", "7")]


def test_run_pytest_takes_the_first_of_several_cards(tmp_path):
    """Their environment has no HOST_TARGET: the script must not read one (on two H200s it did, and ended)."""
    tree = stub_tree.make_tree(tmp_path / "tree")
    (tree / "stubs/cards.py").write_text(TORCH)
    with open(tree / "stubs/torch.py", "a") as stub:
        stub.write("from cards import cuda\n")
    node = stub_tree.add_benchmark(tree, "one", "def test_one():\n    pass\n") + "::test_one"
    ended = stub_tree.run_script(tree, "one", node, DEVICE="", PARALLEL_WARMUP_GPUS="1", CUDA_VISIBLE_DEVICES="3",
                                 FAKE_UUIDS="GPU-0,GPU-1,GPU-2,GPU-3")
    assert ended.stderr == "" and ended.returncode == 0, ended.stderr
    assert parse_runlog(tree / "run/run.log").header["device"] == "3"


@pytest.mark.parametrize("count, variables, message", [
    ("4", {"CUDA_VISIBLE_DEVICES": "6,7"}, "PARALLEL_WARMUP_GPUS: 4: only 2 can be used here (6, 7)"),
    ("x", {}, "PARALLEL_WARMUP_GPUS: x: is no number of devices"),
    ("2", {"DEVICES": "6,6"}, "DEVICES: 6: named twice")])
def test_too_few_or_doubled_devices_are_refused(machine, count, variables, message):
    done = machine("warmup", count, **variables)
    assert done.returncode == 2 and message in done.stderr


# ---- merging

def make_record(number, entries, **meta):
    from autotune_record.record import Record
    record = Record(meta={"use_flagtune": "0", "device": "NVIDIA H200", "triton_minor": "3.6", **meta})
    for key, block, best in entries:
        config = {"kwargs": {"BLOCK": ["int", block]}, "fields": {}, "pre_hook": False}
        record.put(("libtuner", "mm_kernel", "src", "cfg"), key, config, "tuned" if best else "cached", best)
    return record


def test_keys_of_several_shards_are_counted_and_the_faster_winner_is_kept():
    from parallel_warmup.merge import merge_records
    merged = merge_records([make_record(0, [("a", 64, 0.20), ("b", 64, 0.5)]), make_record(1, [("a", 128, 0.19), ("c", 32, 0.1)]),
                            make_record(2, [("a", 64, 0.21), ("c", 32, None)])])
    blocks = {key[-1]: entry["config"]["kwargs"]["BLOCK"][1] for key, entry in merged.record.entries.items()}
    assert blocks == {"a": 128, "b": 64, "c": 32}
    assert merged.shared == 1
    assert merged.disagreed == [("mm_kernel", "a", [{"BLOCK": ["int", 64]}, {"BLOCK": ["int", 128]}, {"BLOCK": ["int", 64]}])]


def test_a_record_that_was_replayed_stays_in_the_merged_one():
    from parallel_warmup.merge import merge_records
    merged = merge_records([make_record(0, [("a", 64, 0.2)])], base=make_record(9, [("a", 32, 0.3), ("z", 16, 0.1)]))
    blocks = {key[-1]: entry["config"]["kwargs"]["BLOCK"][1] for key, entry in merged.record.entries.items()}
    assert blocks == {"a": 64, "z": 16}


def test_devices_of_two_kinds_are_not_merged():
    from autotune_record.record import RecordError
    from parallel_warmup.merge import merge_records
    with pytest.raises(RecordError, match="shard 2: device: recorded with NVIDIA H100, this run has NVIDIA H200"):
        merge_records([make_record(0, []), make_record(1, [], device="NVIDIA H100")])


# ---- what a shard does to a tuner

def test_shards_begin_at_different_configs_and_try_them_all():
    from parallel_warmup.sharding import Shard
    prune = lambda tuner: ["a", "b", "c", "d", "e"]  # noqa: E731
    assert [Shard(n, 2).rotate_configs(prune)(None) for n in (0, 1)] == [["a", "b", "c", "d", "e"], ["c", "d", "e", "a", "b"]]


def test_a_tuners_trials_keep_their_timer_and_upstreams_call_once():
    from parallel_warmup.sharding import Shard
    shard, calls = Shard(0, 2), []
    timer = shard.replace_timer(lambda fn, **options: "timed")
    assert timer(lambda: calls.append("setup")) == "timed"  # nobody's column
    shard.in_latency = 1
    assert timer(lambda: calls.append("column"), warmup=1000) == 1.0 and calls == ["column"]
    trial = shard.count_trials(lambda tuner: timer(lambda: None))
    assert trial(None) == "timed"
