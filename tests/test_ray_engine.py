"""ENGINE=ray through run_batch.py, on a Ray cluster of two nodes on this machine with two host slots each; stubs in place of
run_pytest.sh (screen_stub.py). Needs ray (requirements/ray.txt)."""
import json
import subprocess
import sys
import time

import pytest
from screen_stub import ROOT, StubScreen

ray = pytest.importorskip("ray", reason="ray is not installed: python -m pip install -r requirements/ray.txt")
from ray.cluster_utils import Cluster  # noqa: E402

from screen.ray_engine import Calls  # noqa: E402

OPS = tuple(f"op{number}" for number in range(8))
SLOTS = ["node1/host:0", "node1/host:1", "node2/host:0", "node2/host:1"]
NODE = {"num_cpus": 0, "object_store_memory": 80 << 20, "include_dashboard": False}
# A dead node refuses five checks in 2.5 s; one that is only slow, on a machine that is busy, has 15 s to answer them.
QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_timeout_ms": 3000,
         "health_check_failure_threshold": 5}


@pytest.fixture(scope="module")
def cluster():
    """A head without devices, and what adds a node with two."""
    made = Cluster(initialize_head=True, head_node_args={**NODE, "node_name": "head", "_system_config": QUICK})
    made.add = lambda name: made.add_node(**NODE, node_name=name, resources={"gemscreen_device": 2})
    made.first, made.second = made.add("node1"), made.add("node2")
    yield made
    made.shutdown()


@pytest.fixture
def clustered(stub, cluster):
    """The arguments of run_batch.py, and its variables."""
    stub.write_ops(OPS)
    return ["--engine", "ray", "--address", cluster.address], {"DEVICES": None, "HOST_TARGET": "cuda:90"}


def read_rows(stub: StubScreen, run):
    return [{**row, "device": ""} for row in stub.read_csv("summary.csv", run)]


def test_the_same_rows_as_the_local_engine(stub, clustered):
    stub.behave("op2", "test_line failed 'RuntimeError: bad'; finish 1")
    stub.behave("op3", "test_line skipped 'needs SM90'; finish 0")
    stub.behave("op4", "refuse_dtype bfloat16")
    stub.behave("op5", "sleep 60")
    more = ["--dtypes", "float16,bfloat16", "--timeout", "5", "--retries", "1"]
    arguments, variables = clustered
    assert stub.run(*arguments, *more, "--run", str(stub.runs / "ray"), **variables) == 1
    assert stub.run(*more, "--run", str(stub.runs / "local")) == 1
    assert read_rows(stub, stub.runs / "ray") == read_rows(stub, stub.runs / "local")
    assert {row["op"]: row["status"] for row in stub.read_csv("summary.csv", stub.runs / "ray")} == {
        "op0": "ok", "op1": "ok", "op2": "failed", "op3": "skipped", "op4": "ok", "op5": "timeout", "op6": "ok", "op7": "ok"}
    assert {stub.marker(op, stub.runs / "ray")["device"] for op in OPS} <= set(SLOTS)
    assert json.loads((stub.runs / "ray/screen.json").read_text())["devices"] == SLOTS
    assert [path.name for path in (stub.runs / "ray").glob(".*")] == []
    assert stub.run(*arguments, *more, "--run", str(stub.runs / "ray"), **variables) == 1
    assert "resumed: 8 of 8 operators are complete" in stub.output()


def test_a_node_that_dies_loses_nothing_and_nothing_runs_twice(stub, cluster, clustered):
    for op in OPS:
        stub.behave(op, f'echo {op} >> "$BEHAVE/../ran"; touch "$RUN_DIR/ready"; '
                        'while [ ! -e "$BEHAVE/../go" ]; do sleep 0.05; done')
    arguments, variables = clustered
    driver = stub.start(*arguments, "--run", str(stub.runs / "mine"), **variables)
    stub.wait_for(lambda: len(list(stub.runs.glob("mine/main/*/attempts/*/ready"))) == 4, 60)
    begun = {path.parts[-4] for path in stub.runs.glob("mine/main/*/attempts/1/ready")}
    plan = {row["op"]: row["device"] for row in stub.read_csv("plan.csv", stub.runs / "mine")}
    lost = {op for op in begun if plan[op].startswith("node1")}
    assert len(lost) == 2
    cluster.remove_node(cluster.first, allow_graceful=False)
    stub.wait_for(lambda: stub.output().count("it gets no more operators") == 2, 60)
    (stub.folder / "go").touch()
    assert driver.wait(timeout=60) == 0, stub.output()
    assert stub.statuses(stub.runs / "mine") == dict.fromkeys(OPS, "ok")
    assert [row["op"] for row in stub.read_csv("summary.csv", stub.runs / "mine")] == list(OPS)
    assert {stub.marker(op, stub.runs / "mine")["device"] for op in lost} <= {"node2/host:0", "node2/host:1"}
    ran = (stub.folder / "ran").read_text().split()
    assert sorted(ran) == sorted([*OPS, *lost])       # those of the dead node a second time, no other
    cluster.first = cluster.add("node1")


def test_killed_interrupted_and_resumed(stub, clustered):
    stub.write_ops(OPS[:2])
    stub.behave("op0", 'touch "$RUN_DIR/ready"; [ -e "$BEHAVE/../go" ] || sleep 60')
    arguments, variables = clustered
    for number, (signal, code) in enumerate([("kill", -9), ("terminate", 130)], 1):
        driver = stub.start(*arguments, "--run", str(stub.runs / "mine"), **variables)
        stub.wait_for(lambda: (stub.runs / f"mine/main/op0/attempts/{number}/ready").exists(), 60)
        getattr(driver, signal)()
        assert driver.wait(timeout=60) == code
    assert stub.list_processes() == []      # the second start ended what the killed one had left
    (stub.folder / "go").touch()
    assert stub.run(*arguments, "--run", str(stub.runs / "mine"), **variables) == 0
    assert stub.attempts("op0", stub.runs / "mine") == ["1", "2", "3"]


def test_nodes_that_are_not_as_this_host_are_refused(stub, clustered):
    arguments, variables = clustered
    assert stub.run(*arguments, **{**variables, "PYTHON": "/usr/bin/env"}) == 3
    assert not stub.runs.exists()


# ---- without a cluster

def test_a_device_that_is_silent_is_lost_and_its_actor_ended():
    class Silent:
        killed = []
        kill = killed.append

        def wait(references, timeout):
            return [], references

    calls, start = Calls(Silent, "actor", "reference", "wait"), time.monotonic()
    assert (calls.advance(start + 59), Silent.killed) == ({}, [])
    assert (calls.advance(start + 61), Silent.killed) == ({"lost": "does not answer for 60 s"}, ["actor"])


def test_no_cluster(stub):
    assert stub.run("--engine", "ray", "--address", "ray://127.0.0.1:1") == 2
    assert "Ray Client is not used" in stub.output()
    assert stub.run("--engine", "ray", "--address", "127.0.0.1:1") == 3        # at once: Ray itself tries for minutes
    assert "RAY_ADDRESS: 127.0.0.1:1: [Errno 111] Connection refused; start a cluster" in stub.output()


def test_without_ray_the_error_names_what_to_install(stub):
    hidden = stub.folder / "hidden"
    hidden.mkdir()
    (hidden / "ray.py").write_text("raise ImportError('hidden')\n")
    assert stub.run("--engine", "ray", PYTHONPATH=hidden) == 3
    assert "ENGINE: ray: Ray is not installed here" in stub.output() and "pip install -r requirements/ray.txt" in stub.output()


def test_where_the_run_is_not_seen_attempts_go_back_as_bytes(stub, tmp_path):
    """The two halves without Ray between them: what a node packs, and what the driver writes of it."""
    code = '''
import os, sys, time
from pathlib import Path
from common import inputs
from common.trees import find_trees
from screen.directory import Screen
from screen.plan import PlannedOp
from screen.ray_engine import RemoteAttempt
from screen.ray_worker import Worker
from screen.retry import Step
environ, run = dict(os.environ), Path(sys.argv[1])
worker = Worker("far", 1, False)
device = worker.join(environ, sys.executable)["value"]
screen = Screen(run=run, run_id="r", runs=run.parent, environ=environ, python=sys.executable, run_pytest=environ["RUN_PYTEST"],
                trees=find_trees(environ), shapes={}, tree_facts={}, versions={}, devices=[device], timeout=60, retries=0,
                grace=1, pause=0, settle=1)
print(worker.open(screen, (run / ".token", "x"), {"main": ("s.yaml", "a: 1\\n")}))
print(worker.start(PlannedOp("main", "abs", "planned", device.name, ("n",)), Step("run"), device, "", 3))
answer = worker.wait()
while answer == {"value": None}:
    answer = worker.wait()
class Calls:
    def advance(self, now):
        return answer
folder = run / "main/abs/attempts/3"
folder.parent.mkdir(parents=True)
remote, notes = RemoteAttempt(Calls(), folder, 3, []), []
assert remote.advance(time.monotonic())
print(remote.read().status, remote.ended, sorted(os.listdir(folder)), os.listdir(folder.parent), device.name)
scratch = worker._scratch
print(worker.close(), scratch.exists())
'''
    stub.behave("abs", 'echo "$SHAPES" > "$RUN_DIR/shapes"; cat "$SHAPES" >> "$RUN_DIR/shapes"')
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "run"], cwd=ROOT, capture_output=True, text=True,
                          env=stub.environ(DEVICES=None, HOST_TARGET="cuda:90"))
    assert done.stdout.splitlines() == [
        "{'value': False}", "{'value': None}",
        "ok exit ['exit.json', 'run.log', 'session.jsonl', 'shapes', 'tests.jsonl'] ['3'] host:1",
        "{'value': None} False"], done.stderr
    shapes = (tmp_path / "run/main/abs/attempts/3/shapes").read_text().splitlines()
    assert shapes[0].endswith("/s.yaml") and shapes[1:] == ["a: 1"]
