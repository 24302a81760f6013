"""test_cudagraph.py - _cudagraph_plugin, through pytest, run.log, samples.jsonl and summary.csv, on a simulated card.

The card (tests/fake_device.py) has a clock, an L2 and graphs, so every figure below is exact: a launch costs the host
50 us; an operator's kernel takes 10 us if what it touches is in the L2 and 20 us if not, unless it says otherwise.
"""
import csv
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import stub_tree

from common.runlog import parse_runlog

ROOT = Path(__file__).resolve().parent.parent

FLAG_GEMS = '''
import torch
device, vendor_name, ACTIVE = "cuda", "simulated", False

class runtime:
    class torch_device_fn:
        synchronize = staticmethod(lambda: None)

class use_gems:
    """As upstream's: torch's own operators are FlagGems' inside."""
    def __init__(self, include=None, exclude=None): pass
    def __enter__(self):
        global ACTIVE
        ACTIVE = True
    def __exit__(self, *error):
        global ACTIVE
        ACTIVE = False
'''

HEAD = '''
import flag_gems, pytest, torch, triton
from fake_device import CARD
from . import base

class Shapes(base.Benchmark):
    SHAPES = [(8, 8)]
    def set_shapes(self, path=None): self.shapes = list(self.SHAPES)
    def get_input_iter(self, dtype):
        for shape in self.shapes:
            torch.manual_seed(1)
            yield torch.rand(shape, dtype=dtype),

class Two(Shapes):
    SHAPES = [(8, 8), (256, 256)]

def run(op_name, op, gems=None, cls=Shapes, **kwargs):
    bench = cls(op_name, op, dtypes=[torch.float32], **kwargs)
    bench.set_gems(gems)
    bench.run()

def kernel(x, warm=0.010, cold=0.020):
    y = CARD.empty_like(x)
    CARD.launch([x], [y], warm, cold)
    return y

def fast(x): return kernel(x, 0.005, 0.010)

def reads_back(x):
    CARD.read_back()
    return kernel(x)
'''

BENCHMARKS = '''
def test_plain(): run("plain", kernel, fast, cls=Two)

def test_in_gems():
    run("in_gems", lambda x: fast(x) if flag_gems.ACTIVE else kernel(x), cls=Two)

def test_gems_uncapturable(): run("gems_uncapturable", kernel, reads_back)
def test_torch_uncapturable(): run("torch_uncapturable", reads_back, fast)

def test_in_gems_uncapturable():
    def op(x):
        assert seen.append(flag_gems.ACTIVE) is None
        return reads_back(x) if flag_gems.ACTIVE else kernel(x)
    seen = []
    run("in_gems_uncapturable", op)
    assert seen[-1] is False  # torch's column was the last to be timed, with torch's own operators

def test_nothing_fallen(): run("nothing_fallen", reads_back, lambda x: x.view(-1))
def test_torch_nothing(): run("torch_nothing", lambda x: x.view(-1), reads_back)

def test_random():
    def op(x):
        y = kernel(x)
        return y.copy_(torch.rand_like(y))
    torch.manual_seed(1), torch.rand(8, 8)  # what get_input_iter draws; the timed calls draw a thousand times
    expected = torch.rand(3)
    run("random", op, op)
    assert torch.equal(torch.rand(3), expected)

def test_in_place():
    seen = []
    def op(x):
        CARD.launch([x], [x], 0.010, 0.020)
        x.mul_(1.5)
        seen.append(float(x.max()))
        return x
    run("in_place", op, op, cls=Two, is_inplace=True)
    assert len(seen) > 1000 and max(seen) < 1.5 ** 5  # a few calls of the warm-up see one another, no timed ones do

def test_nothing():
    run("nothing", kernel, lambda x: x.view(-1))

def test_other_stream():
    run("other_stream", kernel, lambda x: CARD.launch([x], [], other_stream=True))

def test_too_fast(): run("too_fast", kernel, lambda x: kernel(x, 0.0001, 0.0001))
def test_partly():
    def op(x):
        y = torch.empty(1 << 21)
        CARD.launch([x], [x], 0.00021, 0.00021)
        CARD.launch([], [y], other_stream=True)
        return y
    run("partly", kernel, op)

def test_backward():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x): return kernel(x)
        @staticmethod
        def backward(ctx, dy): return kernel(dy, 0.030, 0.040)
    class Bench(Shapes):
        def unpack_to_args_kwargs(self, inputs): return [inputs[0].requires_grad_()], {}
    run("twice", Twice.apply, Twice.apply, cls=Bench, is_backward=True)

def test_tuner():
    tuned = []
    def op(x):
        if not tuned:
            tuned.append(triton.testing.do_bench(lambda: kernel(x), return_mode="median"))
        return kernel(x)
    run("tuner", kernel, op)
    assert tuned == [pytest.approx(0.075)]  # Triton's do_bench: one launch between two events, and torch's flush
'''


def make_tree(path):
    tree = stub_tree.make_tree(path)
    for name in ("torch.py", "triton/testing.py", "triton/__init__.py"):
        (tree / "stubs" / name).unlink()
    (tree / "stubs" / "triton").rmdir()
    (tree / "stubs" / "flag_gems" / "__init__.py").write_text(FLAG_GEMS)
    return tree


def add_ops(tree, text, **changes):
    """benchmark/test_ops.py, and the environment for it."""
    (tree / "benchmark/test_ops.py").write_text(HEAD + text)
    return {"PYTHONPATH": f"{tree / 'stubs'}{os.pathsep}{ROOT / 'tests'}", "OMP_NUM_THREADS": "1", **changes}


PLUGINS = ("fake_device", "_cudagraph_plugin", "_pretty_report_plugin")


def run_bench(tree, text, *args, plugins=PLUGINS, **changes):
    """pytest on benchmark/test_ops.py with the simulated card; (RunLog, blocks, columns, CompletedProcess)."""
    changes = add_ops(tree, text, RUN_DIR=tree / "run", **changes)
    (tree / "run").mkdir()
    done = stub_tree.run_plugin(tree, plugins, "benchmark/test_ops.py", *args, timeout=200, **changes)
    return read_run(tree, done)


def read_run(tree, done):
    lines = tree / "run/samples.jsonl"
    lines = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    blocks, columns = ([x for x in lines if x["kind"] == kind] for kind in ("block", "column"))
    return parse_runlog(done.stdout), blocks, columns, done


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    tree = make_tree(tmp_path_factory.mktemp("tree"))
    changes = add_ops(tree, BENCHMARKS, PLUGINS="_cudagraph_plugin _pretty_report_plugin", PYTEST_EXTRA="-p fake_device")
    done = stub_tree.run_script(tree, "ops", "benchmark/test_ops.py", timeout=200, **changes)
    return (*read_run(tree, done), tree)


def rows_of(ran, op):
    return [row for row in ran[0].rows if row.op_name == op]


def blocks_of(ran, op, column):
    return [block for block in ran[1] if (block["op"], block["column"]) == (op, column)]


def test_all_pass(ran):
    assert ran[3].returncode == 0, ran[3].stdout[-3000:]
    assert ran[0].notes == []


@pytest.mark.parametrize("op", ["plain", "in_gems"])
def test_a_row_holds_the_cold_time_of_each_column_and_how_it_was_taken(ran, op):
    small, large = rows_of(ran, op)
    for row in (small, large):
        assert (row.status, row.latency_base_ms, row.latency_ms, row.speedup) == ("SUCCESS", 0.02, 0.01, 2.0)
        assert (row.timer, row.cache, row.reason) == ("graph", "cold", "")
        assert row.host_us == pytest.approx(50, abs=0.1)


def test_cold_is_reached_by_a_copy_per_launch_or_by_going_round(ran):
    small, large = blocks_of(ran, "plain", "torch")
    # 256 bytes are too little to rotate with: 1000 of them fit the L2 of 1 MiB, so it is flushed, and all are touched once
    assert (small["how"], small["copies"], small["launches"]) == ("flush", small["launches"], pytest.approx(500, abs=1))
    # 256 KiB: 8 outputs are twice the L2
    assert (large["how"], large["copies"], large["launches"] % 8) == ("rotation", 8, 0)
    assert large["written_bytes"] >= 8 * 256 * 1024


def test_samples_are_kept_in_order_with_their_place(ran):
    block = blocks_of(ran, "plain", "gems")[0]
    assert len(block["samples_ms"]) == 10 and block["median_ms"] == pytest.approx(0.01)
    assert {k: block[k] for k in ("schema", "timer", "cache", "dtype", "node", "detail", "try", "void", "stop", "nodes")} == {
        "schema": 1, "timer": "graph", "cache": "cold", "dtype": "float32", "node": "benchmark/test_ops.py::test_plain",
        "detail": "[torch.Size([8, 8])]", "try": 1, "void": "", "stop": "spread", "nodes": {"kernel": 1000}}
    numbers = [block["block"] for block in ran[1]]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("op, culprit", [("gems_uncapturable", "gems"), ("torch_uncapturable", "torch"),
                                         ("in_gems_uncapturable", "gems")])
def test_both_columns_fall_back_together(ran, op, culprit):
    for row in rows_of(ran, op):
        assert (row.status, row.timer, row.cache) == ("SUCCESS", "do_bench", "cold")
        fallback = f"{culprit}: no graph: phase=capture reason=CaptureError: CUDA error: operation not permitted"
        assert row.reason.startswith(fallback)
        # launch-bound, and said so: 50 us of the host in front of a kernel
        # ... and neither column's flush is torch's, in whose place FlagGems' own kernel may stand: that costs 5 us here
        assert row.latency_base_ms == 0.07 and row.latency_ms in (0.06, 0.07) and "launch-bound" in row.reason
        assert row.speedup == pytest.approx(row.latency_base_ms / row.latency_ms, abs=0.001)
    last = {c: [b["timer"] for b in blocks_of(ran, op, c)][-1] for c in ("torch", "gems")}
    assert last == {"torch": "do_bench", "gems": "do_bench"}
    said = rf"^\.?CUDAGRAPH_FALLBACK phase=capture reason=CaptureError: .*\(op={op} dtype=torch.float32 column={culprit}\)$"
    assert re.search(said, ran[3].stdout, re.M)


def test_advice_under_an_error_is_no_lost_device(ran):
    assert "TORCH_USE_CUDA_DSA" not in ran[3].stdout and "context is gone" not in ran[3].stdout


def test_random_operator_is_captured(ran):
    row, = rows_of(ran, "random")
    assert (row.status, row.timer, row.latency_ms) == ("SUCCESS", "graph", 0.02)


def test_in_place_operator_is_called_once_per_restored_copy(ran):
    for row, block in zip(rows_of(ran, "in_place"), blocks_of(ran, "in_place", "gems")):
        assert (row.status, row.timer, row.latency_ms, row.speedup) == ("SUCCESS", "graph", 0.02, 1.0)
        assert (block["how"], block["copies"]) == ("flush", block["launches"])


@pytest.mark.parametrize("op, reason", [
    ("nothing", "Gems latency nan ms is no time; gems: empty capture: nothing was launched on the current stream"),
    ("other_stream", "Gems latency nan ms is no time; gems: empty capture: nothing was launched on the current stream"),
    ("too_fast", "Gems latency nan ms is no time; gems: 100 ns is below what any launch takes (200 ns)"),
    ("partly", "Gems latency nan ms is no time; gems: 0.00021 ms is too short to write 8 MiB: not all of the work was timed"),
])
def test_what_is_no_time_gives_no_ratio(ran, op, reason):
    for row in rows_of(ran, op):
        assert (row.status, row.latency_ms, row.speedup) == ("INVALID", None, None)
        assert row.reason.startswith(reason)
        assert row.latency_base_ms == 0.02


@pytest.mark.parametrize("op, culprit, base", [("nothing_fallen", "gems", 0.07), ("torch_nothing", "torch", None)])
def test_nothing_is_no_time_by_do_bench_either(ran, op, culprit, base):
    """The other column cannot be captured: do_bench gives both a time, and to nothing that of two bare events, 1.5 us."""
    row, = rows_of(ran, op)
    assert (row.status, row.timer, row.speedup, row.latency_base_ms) == ("INVALID", "do_bench", None, base)
    assert f"{culprit}: empty capture: nothing was launched" in row.reason


def test_backward_pass_runs_on_graphs_of_its_own(ran):
    for row in rows_of(ran, "twice_backward"):
        assert (row.status, row.timer, row.latency_base_ms, row.latency_ms) == ("SUCCESS", "graph", 0.04, 0.04)


def test_a_tuner_keeps_the_timer_it_had(ran):
    row, = rows_of(ran, "tuner")
    assert row.status == "SUCCESS"


def test_summary_has_timer_cache_and_host_time(ran, tmp_path):
    subprocess.run([sys.executable, ROOT / "batch_summary.py", ran[4] / "run", "--out", tmp_path], check=False,
                   capture_output=True, text=True, cwd=ROOT)
    with open(tmp_path / "summary.csv", newline="") as file:
        rows = {row["shape"].split(":")[0]: row for row in csv.DictReader(file)}
    plain, fallen, nothing = rows["plain"], rows["in_gems_uncapturable"], rows["nothing"]
    assert (plain["timer"], plain["cache"], plain["speedup"], plain["row_status"]) == ("graph", "cold", "2.0", "SUCCESS")
    assert float(plain["host_us"]) == pytest.approx(50, abs=0.1)
    assert (fallen["timer"], fallen["cache"]) == ("do_bench", "cold")
    assert (nothing["row_status"], nothing["speedup"], nothing["latency_ms"]) == ("INVALID", "", "")


PLAIN = "def test_plain(): run('plain', kernel, fast, cls=Two)\n"


@pytest.mark.parametrize("timer, cache, expected", [
    ("event", "cold", (0.02, 0.01)), ("event", "warm", (0.01, 0.005)), ("graph", "warm", (0.01, 0.005)),
    ("do_bench", "cold", (0.075, 0.065))])
def test_timer_and_cache_are_chosen(tmp_path, timer, cache, expected):
    log, blocks, columns, done = run_bench(make_tree(tmp_path), PLAIN, TIMER=timer, CACHE=cache)
    assert done.returncode == 0, done.stdout[-2000:]
    for row in log.rows:
        assert (row.timer, row.cache) == (timer, cache)
        assert (row.latency_base_ms, row.latency_ms) == pytest.approx(expected, rel=0.15)
    assert {block["timer"] for block in blocks} == {timer}
    assert all(math.isfinite(column["seconds"]) for column in columns)


@pytest.mark.parametrize("changes, message", [
    ({"TIMER": "graf"}, "TIMER: graf: unknown; valid are graph, do_bench, event"),
    ({"CACHE": "host"}, "CACHE: host: unknown; valid are cold, warm"),
    ({"TIMER": "do_bench", "CACHE": "warm"}, "CACHE: warm: do_bench always flushes the L2")])
def test_unknown_switches_are_refused(tmp_path, changes, message):
    done = run_bench(make_tree(tmp_path), PLAIN, plugins=["_cudagraph_plugin"], **changes)[3]
    assert done.returncode == 4 and message in done.stderr


def test_host_device_is_left_alone(tmp_path):
    log, blocks, _, done = run_bench(make_tree(tmp_path), PLAIN, HOST_TARGET="cuda:90", TIMER="graph")
    assert done.returncode == 0 and "timer:" not in done.stdout and blocks == []
    assert {row.timer for row in log.rows} == {""}


def test_other_modes_are_labelled(tmp_path):
    log, _, _, done = run_bench(make_tree(tmp_path), PLAIN, "--mode", "wrapper")
    assert done.returncode == 0, done.stdout[-2000:]
    assert {(row.timer, row.cache) for row in log.rows} == {("wall", "warm")}


def test_a_lost_device_ends_the_process(tmp_path):
    text = PLAIN + """
def breaks(x):
    CARD.is_broken = True
    CARD.synchronize()
def test_breaks(): run('breaks', kernel, breaks)
def test_after(): run('after', kernel, fast)
"""
    log, _, _, done = run_bench(make_tree(tmp_path), text)
    assert done.returncode == 1
    assert "an illegal memory access was encountered: the device's context is gone" in done.stdout
    assert {row.op_name for row in log.rows} == {"plain", "breaks"}
    failed, = (row for row in log.rows if row.status == "FAILED")
    assert "illegal memory access" in failed.reason


def test_a_table_that_is_cut_short_keeps_its_labels(tmp_path):
    text = """
def breaks(x):
    if x.shape[0] > 8:
        raise RuntimeError('no such shape')
    return kernel(x)
def test_breaks(): run('breaks', kernel, breaks, cls=Two)
"""
    log = run_bench(make_tree(tmp_path), text)[0]
    assert [(row.status, row.timer) for row in log.rows] == [("SUCCESS", "graph"), ("FAILED", "")]
