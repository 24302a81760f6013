"""graph_timer and the launch gap on a simulated card (fake_device.py): what a figure holds of it, what is said when it moves."""
import math
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "plugins"), str(ROOT / "tests")]

from fake_device import GOOD, Card, make_call, make_timer  # noqa: E402
from graph_timer import rows  # noqa: E402


def test_each_figure_has_the_gap_that_it_was_taken_with():
    card = Card(node_ms=lambda now: 0.0005)  # and the empty kernel takes as long
    timer, blocks = make_timer(card)
    assert timer.measure(make_call(card), "graph").gap_us == pytest.approx(1.0)
    assert blocks[0]["gaps_us"] == pytest.approx([1.0, 1.0])
    assert math.isnan(timer.measure(make_call(card), "event").gap_us)


def test_a_gap_that_moves_within_a_block_voids_it():
    """It moves when the card's state is read after the samples of the second figure's first block."""
    reads = []

    class Counting:
        def read(self):
            return reads.append(1) or GOOD

    card = Card(node_ms=lambda now: 0.0002 if len(reads) >= 4 else 0.0)
    timer, blocks = make_timer(card, reader=Counting())
    timer.measure(make_call(card, 0.002, 0.002), "graph")
    found = timer.measure(make_call(card, 0.002, 0.002), "graph")
    tries = [(b["try"], b["void"]) for b in blocks if b["kind"] == "block"][1:]
    assert tries == [(1, "launch gap moved from 0.50 to 0.70 us"), (2, "")]
    assert found.latency_ms == pytest.approx(0.0022)
    assert found.notes == ["launch gap 0.70 us, it was 0.50 before: so much of the figure is the launch"]


def test_a_larger_gap_says_nothing_about_a_long_kernel():
    card = Card()
    timer, _ = make_timer(card)
    timer.measure(make_call(card, 0.5, 0.5), "graph")
    card.node_ms = lambda now: 0.0002
    assert timer.measure(make_call(card, 0.5, 0.5), "graph").notes == []


def test_a_call_of_several_kernels_holds_the_gap_as_often():
    """Ten kernels of 50 us, and 0.2 us more for each launch, are 0.4 % of one and of the call; ten of 5 us are 4 %."""
    card = Card()
    timer, _ = make_timer(card)

    def make_chain(ms):
        call = make_call(card, ms, ms)
        return lambda: [call() for _ in range(10)][-1]

    found = timer.measure(make_chain(0.005), "graph")
    assert (found.nodes, found.gap_us, found.latency_ms) == (10, pytest.approx(0.5), pytest.approx(0.05))
    card.node_ms = lambda now: 0.0002
    found = timer.measure(make_chain(0.005), "graph")
    assert found.latency_ms == pytest.approx(0.052)
    assert found.notes == ["launch gap 0.70 us, 10 times in it, it was 0.50 before: so much of the figure is the launch"]
    assert timer.measure(make_chain(0.05), "graph").notes == []


def test_columns_of_a_row_with_different_gaps_say_so():
    row = rows.Row(None, "graph")
    row.columns = {"torch": rows.Measurement("graph", "cold", 0.0017, gap_us=0.85),
                   "gems": rows.Measurement("graph", "cold", 0.0019, gap_us=1.03)}
    line = row.describe("abs", "torch.float16", 1)
    assert " gap_us=1.03 nodes=1 " in line
    assert line.endswith("reason=<<<launch gap of torch 0.85 us, of gems 1.03: the ratio holds that difference>>>")
