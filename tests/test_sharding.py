"""screen/sharding.py: who gets what, by literals."""
import subprocess
import sys
from pathlib import Path

from screen.sharding import is_in_part, shard

ROOT = Path(__file__).resolve().parent.parent
OPS = ["main/a", "main/b", "main/c", "main/d", "main/e"]
SECONDS = {"main/a": 10.0, "main/b": 60.0, "main/c": 20.0, "main/d": 30.0, "main/e": 5.0}


def test_hash_is_the_same_on_every_machine():
    assert shard("hash", ["main/op0", "main/op1", "main/op2", "main/op3"], ["4", "5", "6"]) == {
        "4": ["main/op2", "main/op3"], "5": ["main/op0"], "6": ["main/op1"]}


def test_balanced_packs_the_longest_first():
    assert shard("balanced", OPS, ["0", "1"], SECONDS) == {"0": ["main/b", "main/e"], "1": ["main/d", "main/c", "main/a"]}


def test_an_unknown_operator_counts_as_the_median():
    assert shard("balanced", ["main/a", "main/b", "main/new", "main/d"], ["0", "1"], SECONDS) == {
        "0": ["main/b"], "1": ["main/d", "main/new", "main/a"]}


def test_operators_of_one_tree_stay_together():
    seconds = {"main/a": 1.0, "main/b": 9.0, "vllm/a": 5.0, "vllm/b": 7.0}
    assert shard("queue", list(seconds), ["0"], seconds) == {"0": ["main/b", "main/a", "vllm/b", "vllm/a"]}


def test_an_operator_keeps_its_device_while_that_costs_little():
    stored = {"main/a": "0", "main/b": "0", "main/c": "1", "main/d": "1", "main/e": "1"}     # 70 and 55; the bound is 62.5
    seconds = SECONDS | {"main/e": 15.0}                                                     # 70 and 65; 67.5
    assert shard("balanced", OPS, ["0", "1"], seconds, stored) == {"0": ["main/b", "main/a"], "1": ["main/d", "main/c", "main/e"]}


def test_few_move_where_it_costs_more():
    stored = dict.fromkeys(OPS, "1")
    assert shard("balanced", OPS, ["0", "1"], SECONDS, stored) == {"0": ["main/b"], "1": ["main/d", "main/c", "main/a", "main/e"]}


def test_only_balanced_keeps_and_a_device_that_is_gone_keeps_nothing():
    stored = dict.fromkeys(OPS, "7")
    assert shard("balanced", OPS, ["0", "1"], SECONDS, stored) == shard("queue", OPS, ["0", "1"], SECONDS, {"main/e": "1"}) == {
        "0": ["main/b", "main/e"], "1": ["main/d", "main/c", "main/a"]}


def test_one_long_operator_is_the_bound_and_nothing_moves_for_it():
    seconds = {"main/a": 100.0, "main/b": 1.0, "main/c": 1.0}
    assert shard("balanced", list(seconds), ["0", "1"], seconds, {"main/b": "1", "main/c": "1", "main/a": "0"}) == {
        "0": ["main/a"], "1": ["main/b", "main/c"]}


def test_more_devices_than_operators():
    assert shard("balanced", ["main/a"], ["0", "1"], {}) == {"0": ["main/a"], "1": []}
    assert shard("balanced", [], ["0"], {}) == {"0": []}


def test_parts_cover_all_once_and_leave_no_device_idle():
    names = [f"main/op{number}" for number in range(200)]
    parts = [[name for name in names if is_in_part(name, index, 4)] for index in (1, 2, 3, 4)]
    assert sorted(sum(parts, [])) == sorted(names) and [len(part) for part in parts] == [50, 56, 44, 50]
    assert all(all(shard("hash", part, ["0", "1", "2", "3"]).values()) for part in parts)


def test_balanced_is_near_the_lower_bound_up_to_64_devices():
    done = subprocess.run([sys.executable, ROOT / "tests/bench_sharding.py"], capture_output=True, text=True)
    assert done.returncode == 0
    rows = {row[0]: row for row in map(str.split, done.stdout.splitlines()[1:])}
    assert {devices: float(row[4]) for devices, row in rows.items()} == {
        "1": 1.0, "2": 1.0, "4": 1.0, "8": 1.0, "16": 1.001, "32": 1.001, "64": 1.004}
    assert rows["8"][3] == "1.228" and rows["64"][3] == "1.916"       # hash
