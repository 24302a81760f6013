"""run_batch.py on several devices (screen_stub.py): which operator runs where, and what becomes of a device that fails."""

import hashlib
import json

import pytest


FAKE_TORCH = """
import os, types
count = len([n for n in os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7").split(",") if n.isdigit() and int(n) < 8])
def mem_get_info():
    path = os.path.join(os.environ["BEHAVE"], "memory-" + os.environ["CUDA_VISIBLE_DEVICES"])
    with open(path + ".asked", "a") as stream:
        stream.write("x")
    return (100, 100) if not os.path.exists(path) or os.path.getsize(path + ".asked") > int(open(path).read()) else (10, 100)
cuda = types.SimpleNamespace(is_available=lambda: count > 0, device_count=lambda: count, mem_get_info=mem_get_info,
                             get_device_name=lambda n: "NVIDIA H200")
"""


@pytest.fixture
def cards(stub):
    """Variables of a machine with 8 NVIDIA cards, a stand-in for torch. The file behave/memory-N says how many looks card
    N takes until its memory is free."""
    (stub.folder / "torch.py").write_text(FAKE_TORCH)
    return {"PYTHONPATH": stub.folder, "DEVICES": None}


def test_children_get_the_callers_devices_one_each(stub, cards):
    for op in ("abs", "add", "mm"):
        stub.behave(op, 'echo "$CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER ${HOST_TARGET-unset}" > "$RUN_DIR/seen"')
    assert stub.run(CUDA_VISIBLE_DEVICES="4,6", **cards) == 0
    seen = {(stub.latest / f"main/{op}/attempts/1/seen").read_text() for op in ("abs", "add", "mm")}
    assert seen == {"4 PCI_BUS_ID unset\n", "6 PCI_BUS_ID unset\n"}
    assert {row["device"] for row in stub.read_csv("plan.csv")} == {"4", "6"}


def test_an_op_meets_the_same_device_every_night(stub, cards):
    ops = [f"op{number}" for number in range(12)]
    stub.write_ops(ops)
    expected = {op: str(int(hashlib.sha256(f"main/{op}".encode()).hexdigest(), 16) % 3) for op in ops}
    assert (expected["op0"], expected["op1"], expected["op2"]) == ("1", "2", "0")       # on every machine
    for _ in range(2):
        assert stub.run("--fresh", "--devices", "0,1,2", **cards) == 0
        assert {row["op"]: row["device"] for row in stub.read_csv("plan.csv")} == expected
        assert {op: stub.log_facts(op, 1)["device"] for op in ops} == expected


def test_balanced_sharding_packs_the_longest_first_and_is_stored(stub, cards):
    stub.write_ops(["a", "b", "c", "d", "e"])
    assert stub.run("--devices", "0,1", **cards) == 0
    for op, seconds in {"a": 10, "b": 60, "c": 20, "d": 30, "e": 5}.items():
        path = stub.latest / f"main/{op}/.complete"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": seconds}))
    balanced = ["--devices", "0,1", "--shard", "balanced", "--run", str(stub.runs / "mine")]
    assert stub.run(*balanced, **cards) == 0
    packed = {row["op"]: row["device"] for row in stub.read_csv("plan.csv")}
    assert packed == {"b": "0", "d": "1", "c": "1", "a": "1", "e": "0"}
    for path in stub.runs.glob("screen-*/main/*/.complete"):
        path.unlink()                       # what it was packed by is no more
    assert stub.run(*balanced, **cards) == 0
    assert {row["op"]: row["device"] for row in stub.read_csv("plan.csv")} == packed


def test_balanced_gives_an_op_the_device_of_the_night_before(stub, cards):
    stub.write_ops(["a", "b", "c", "d"])
    balanced = ["--devices", "0,1", "--shard", "balanced", "--fresh"]
    assert stub.run(*balanced, **cards) == 0
    first = {"a": "0", "b": "1", "c": "0", "d": "1"}
    assert {row["op"]: row["device"] for row in stub.read_csv("plan.csv")} == first
    for op, seconds in {"a": 10, "b": 12, "c": 14, "d": 11}.items():     # packed anew b and c would part from a and d
        path = stub.latest / f"main/{op}/.complete"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": seconds}))
    stub.write_ops(["a", "b", "c", "d", "new"])
    assert stub.run(*balanced, **cards) == 0
    assert {row["op"]: row["device"] for row in stub.read_csv("plan.csv")} == first | {"new": "1"}
    assert [row["device"] for row in stub.read_csv("summary.csv")] == ["0", "1", "0", "1", "1"]


def test_a_queue_gives_an_idle_card_what_waits_at_another(stub, cards):
    ops = ["first", "second", "third", "fourth"]
    stub.write_ops(ops)
    stub.behave("first", 'while [ $(ls -d "$RUN_DIR"/../../../*/.complete | wc -l) -lt 3 ]; do sleep 0.05; done')
    assert stub.run("--devices", "0,1", "--shard", "queue", "--timeout", "30", **cards) == 0
    where = {row["op"]: row["device"] for row in stub.read_csv("plan.csv")}
    assert where == {"first": "0", "second": "1", "third": "1", "fourth": "1"}
    assert {op: stub.log_facts(op, 1)["device"] for op in ops} == where


def test_an_idle_host_slot_takes_over(stub):
    ops = [f"op{number}" for number in range(8)]
    stub.write_ops(ops)
    hashed = {op: int(hashlib.sha256(f"main/{op}".encode()).hexdigest(), 16) % 2 for op in ops}
    first = next(op for op in ops if hashed[op] == 0)
    others = [op for op in ops if op != first]
    stub.behave(first, f'while [ $(ls -d "$RUN_DIR"/../../../*/.complete | wc -l) -lt {len(others)} ]; do sleep 0.05; done')
    assert sum(hashed[op] == 0 for op in others) > 0
    assert stub.run("--devices", "host:0,host:1", "--timeout", "30") == 0
    planned = {row["op"]: row["device"] for row in stub.read_csv("plan.csv")}
    assert planned == {first: "host:0", **dict.fromkeys(others, "host:1")}
    assert {op: stub.log_facts(op, 1)["device"] for op in ops} == planned


def test_a_device_that_does_not_exist(stub, cards):
    assert stub.run("--devices", "3,9", **cards) == 3
    assert "DEVICES: 9: does not exist" in stub.output()
    assert not stub.runs.exists()


def test_after_a_kill_the_device_settles_before_the_next_op(stub, cards):
    stub.write_ops(["a_hangs", "b_next"])
    stub.behave("a_hangs", "sleep 600")
    stub.behave("b_next", 'cp "$BEHAVE/memory-5.asked" "$RUN_DIR/looks"')
    (stub.behaviour / "memory-5").write_text("2")                           # dirty twice, then clean
    assert stub.run("--devices", "5", "--timeout", "2", **cards) == 1
    assert stub.statuses() == {"a_hangs": "timeout", "b_next": "ok"}
    assert (stub.latest / "main/b_next/attempts/1/looks").read_text() == "xxx"


def test_a_device_that_is_never_freed_gets_no_more_ops(stub, cards):
    ops = [f"op{number}" for number in range(6)]
    stub.write_ops(ops)
    on_card = {op: "45"[int(hashlib.sha256(f"main/{op}".encode()).hexdigest(), 16) % 2] for op in ops}
    first = next(op for op in ops if on_card[op] == "4")
    stub.behave(first, "sleep 600")
    (stub.behaviour / "memory-4").write_text("1000000")
    assert stub.run("--devices", "4,5", "--timeout", "2", SETTLE_S=0.5, **cards) == 1
    assert "device 4: its memory is not freed; it gets no more operators" in stub.output()
    assert stub.statuses() == {**dict.fromkeys(ops, "ok"), first: "timeout"}
    moved = [op for op in ops if on_card[op] == "4" and op != first]
    assert moved and {stub.marker(op)["device"] for op in moved} == {"5"}
    assert {row["op"]: row["device"] for row in stub.read_csv("plan.csv")} == {**dict.fromkeys(ops, "5"), first: "4"}


def test_a_device_on_which_pytest_does_not_start_is_left_out_and_nothing_runs_where_none_is_left(stub, cards):
    broken = "[ $DEVICE = {} ] && {{ rm $RUN_DIR/session.jsonl; " \
             "say 'device guard: error: torch sees no accelerator'; finish 3; }}"
    for op in ("abs", "add", "mm"):
        stub.behave(op, broken.format(4))
    assert stub.run("--devices", "4,5", **cards) == 0
    assert "pytest did not start: torch sees no accelerator; no operator can be run like this" in stub.output()
    assert {stub.marker(op)["device"] for op in ("abs", "add", "mm")} == {"5"}
    for op in ("abs", "add", "mm"):
        stub.behave(op, broken.format("$DEVICE"))
    assert stub.run("--devices", "4,5", FRESH=1, **cards) == 3
    assert "no device is left" in stub.output() and stub.statuses() == {}
