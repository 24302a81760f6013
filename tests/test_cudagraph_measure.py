"""graph_timer's figures on a simulated card (fake_device.py): sampling, retries and fallbacks."""
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "plugins"), str(ROOT / "tests")]

from fake_device import GOOD, Card, make_call, make_timer  # noqa: E402
from graph_timer import capture, host  # noqa: E402

MIB = 1 << 20


def make_view(size):
    args = (torch.ones(size),)
    return lambda: args[0].view(-1)


def test_a_tiny_kernel_is_captured_a_thousand_times_at_most():
    card = Card()
    make_timer(card)[0].measure(make_call(card, 0.001, 0.001), "graph")
    assert card.captures == [200, 8, 1000]  # the launch gap's, the probe, the figure's


def test_a_call_that_costs_the_host_much_is_captured_for_half_a_millisecond():
    card = Card(host_ms=0.4)
    found = make_timer(card)[0].measure(make_call(card, 0.003, 0.003), "graph")
    assert card.captures == [200, 8, 167] and found.latency_ms == pytest.approx(0.003)  # of 1000 calls that would take 0.4 s


def test_a_long_kernel_is_probed_with_few_calls():
    card = Card()
    found = make_timer(card)[0].measure(make_call(card, 2.0, 2.0), "graph")
    assert card.captures == [200, 2, 3] and found.latency_ms == pytest.approx(2.0)


@pytest.mark.parametrize("kernel_ms, launches", [(0.01, 96), (1.0, 21), (2.0, 11), (50.0, 6)])
def test_what_a_call_costs_the_host_is_not_found_by_waiting_for_the_device(kernel_ms, launches):
    """The first call alone, then five batches: of 1 ms of the host (19 calls), and of at most 5 ms of the device."""
    card, launched = Card(), []
    ms = host.time_host_of(card, [lambda: launched.append(card.launch(warm_ms=kernel_ms, cold_ms=kernel_ms))])
    assert (len(launched), ms) == (launches, pytest.approx(0.05, rel=1e-3))


def test_a_slow_start_is_not_sampled():
    card = Card(drift=lambda now: 1.3 if now < 150 else 1.0)  # the clocks rise 150 ms after the start
    timer, blocks = make_timer(card)
    found = timer.measure(make_call(card), "graph")
    assert found.latency_ms == pytest.approx(0.02, rel=1e-6)


def test_event_timing_hides_the_launches_and_do_bench_does_not():
    card = Card(host_ms=0.06)
    timer, _ = make_timer(card)
    assert timer.measure(make_call(card, 0.002, 0.004), "event").latency_ms == pytest.approx(0.004, rel=0.01)
    found = timer.measure(make_call(card, 0.002, 0.004), "do_bench", options={})
    assert found.latency_ms == pytest.approx(0.069, rel=0.01)  # with torch's flush, as upstream's
    assert timer.measure(make_call(card, 0.002, 0.004), "do_bench", is_fallback=True).latency_ms == pytest.approx(0.064, rel=0.01)
    assert found.notes == ["launch-bound: a call costs the host 60 us, its kernels may be faster"]


def test_event_timing_says_that_a_call_which_waits_for_the_device_lets_nothing_be_hidden():
    """Two kernels of 1 ms with the host's 50 us between them; nothing else in the figure would show that."""
    card = Card()
    timer, _ = make_timer(card)
    call = make_call(card, 1.0, 1.0)
    found = timer.measure(lambda: (call(), card.read_back(), call()), "event")
    assert found.latency_ms == pytest.approx(2.05)
    assert found.notes == ["launch-bound: the device was idle before all was launched (the call waits for it), "
                           "so the host's time is in the figure"]
    assert timer.measure(lambda: (call(), call()), "event").notes == []


@pytest.mark.parametrize("ms, notes", [
    (0.004, ["launch-bound: an empty kernel takes 1.7 us between events, about so much of it is the launch"]),
    (0.0179, ["launch-bound: an empty kernel takes 1.7 us between events, about so much of it is the launch"]),  # abs 4096x4096
    (0.040, [])])
def test_event_timing_says_where_the_gap_between_launches_is_much_of_the_figure(ms, notes):
    card = Card(host_ms=0.06, gap_ms=0.0012)  # a stream's gap on an H200, more than a graph's
    timer, _ = make_timer(card)
    found = timer.measure(make_call(card, ms, ms), "event")
    assert found.latency_ms == pytest.approx(ms + 0.0012, rel=0.01) and found.notes == notes


def test_a_backward_pass_is_captured_on_rotated_copies():
    card, passes = Card(), []

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            x, = ctx.saved_tensors  # raises if x was changed since
            made = card.empty_like(x)
            card.launch([x, grad], [made])
            passes.append(x.data_ptr())
            return made
    x = torch.ones(65536, requires_grad=True)  # 256 KiB: eight gradients are twice the L2
    op, args, out, grad = Square.apply, (x,), Square.apply(x), torch.ones(65536)
    timer, _ = make_timer(card)
    heard = []
    found = timer.measure(lambda: torch.autograd.grad((out,), [x], grad_outputs=(grad,), retain_graph=True), "graph",
                          recipe=(op, args, {}), on_fallback=heard.append)
    assert (found.timer, found.fault, heard) == ("graph", "", [])
    assert (found.how, found.copies) == ("rotation", 8) and found.latency_ms == pytest.approx(0.02)
    assert len(set(passes)) == 9  # the original's memory, and eight copies


def test_a_capture_begins_with_an_allocator_that_holds_nothing_back():
    card = Card()
    timer, _ = make_timer(card)
    for _ in range(3):
        timer.measure(make_call(card), "graph")
    assert card.trims == 3


def test_what_compiles_in_every_call_has_no_time():
    card = Card()
    timer, _ = make_timer(card)
    call = make_call(card)

    def compiling():
        timer.watch.compiled += 1
        return call()
    found = timer.measure(compiling, "graph")
    assert math.isnan(found.latency_ms) and found.fault == "it is compiled or tuned anew in each of 10 calls"


def test_what_compiles_in_its_first_capture_is_captured_again():
    card = Card()
    timer, _ = make_timer(card)
    call, captured = make_call(card), []

    def compiling():
        if card.captured is not None and not captured:
            captured.append(1)
            timer.watch.compiled += 1
        return call()
    assert timer.measure(compiling, "graph").latency_ms == pytest.approx(0.02)
    assert card.captures[1:3] == [8, 8]


class Reader:
    """Reads `readings` in turn, the last one for ever."""

    def __init__(self, *readings):
        self.readings = list(readings)

    def read(self):
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]


HOT = {"sm_mhz": 1980, "throttle": ["hw_thermal"]}


def test_a_throttled_block_is_void_and_measured_again():
    card = Card()
    timer, blocks = make_timer(card, reader=Reader(GOOD, HOT, GOOD))
    found = timer.measure(make_call(card), "graph")
    assert [(b["try"], b["void"]) for b in blocks if b["kind"] == "block"] == [(1, "throttled: hw_thermal"), (2, "")]
    assert (found.latency_ms, found.notes) == (pytest.approx(0.02), [])


def test_a_card_that_stays_throttled_gives_a_marked_row():
    card = Card()
    timer, blocks = make_timer(card, reader=Reader(HOT))
    found = timer.measure(make_call(card), "graph")
    assert len([b for b in blocks if b["kind"] == "block"]) == 3
    assert (found.latency_ms, found.notes) == (pytest.approx(0.02), ["throttled: hw_thermal"])
    blocks.clear()
    timer.measure(make_call(card), "graph")
    assert len([b for b in blocks if b["kind"] == "block"]) == 1  # more tries would not help either


def test_copies_of_an_in_place_call_that_leave_the_l2_are_not_called_warm():
    """10 us: 500 copies of 64 bytes stay in an L2 of 1 MiB, 500 of 8 KiB do not."""
    def measure_in_place(size):
        card = Card(l2_bytes=MIB)
        timer, _ = make_timer(card, cache="warm")
        x = torch.ones(size)
        return timer.measure(lambda: (card.launch([x], [x]), x.mul_(1.5))[1], "graph")

    assert measure_in_place(16).notes == []
    assert measure_in_place(2048).notes == ["not warm: 501 copies of the inputs, 4 MiB, are more than the L2 of 1"]


def test_an_in_place_fallback_restores_its_inputs():
    card = Card()
    timer, _ = make_timer(card)
    x = torch.ones(8)
    seen = []

    def op():
        card.read_back()
        card.launch([x], [x])
        seen.append(float(x[0]))
        return x.mul_(1.5)
    heard = []
    found = timer.measure(op, "graph", on_fallback=heard.append)
    assert (found.timer, found.cache, heard[0].phase) == ("event", "cold", "capture")
    assert x.tolist() == [1.0] * 8 and max(seen) < 1.5 ** 12


def test_a_failed_capture_marks_no_later_graph():
    """The launch gap moves without one, too (docs/timing.md): it is measured, not supposed."""
    card = Card()
    timer, _ = make_timer(card)
    call = make_call(card)
    assert timer.measure(lambda: (card.read_back(), call()), "graph", on_fallback=lambda why: None).timer == "do_bench"
    found = timer.measure(call, "graph")
    assert (found.timer, found.latency_ms, found.notes) == ("graph", pytest.approx(0.02), [])


def test_a_graph_that_is_only_not_planned_marks_nothing():
    card = Card(free=4 * MIB)
    timer, _ = make_timer(card)
    refused = timer.measure(make_call(card, size=400_000), "graph", on_fallback=lambda why: None)
    assert refused.timer == "do_bench" and timer.measure(make_call(card), "graph").notes == []


def test_an_operator_without_room_for_a_second_input_is_flushed_call_by_call():
    card = Card(free=4 * MIB)
    timer, _ = make_timer(card)
    heard = []
    found = timer.measure(make_call(card, size=400_000), "graph", on_fallback=heard.append)
    assert found.timer == "do_bench" and str(heard[0]).startswith("phase=warmup reason=inputs of 2 MiB cannot be copied")
    assert card.captures == [200, 1]  # the launch gap's; whether it launches at all: no more is tried
    found = timer.measure(make_view(400_000), "graph", on_fallback=heard.append)
    assert found.fault.startswith("empty capture: nothing was launched")


def test_errors_of_the_operator_itself_are_its_own():
    card = Card()

    def op():
        raise ValueError("no such shape")
    with pytest.raises(ValueError, match="no such shape"):
        make_timer(card)[0].measure(op, "graph", on_fallback=lambda why: None)


def test_a_capture_does_not_import_torchs_compiler():
    """Torch wraps a mode's dispatch so that its first call imports torch._dynamo: 3 s in the first figure of a process."""
    code = ("import sys, torch; from graph_timer.capture import DirectFill; x = torch.zeros(1, dtype=torch.int64)\n"
            "with DirectFill(lambda address, number: False): x.fill_(3)\n"
            "print(x.tolist(), 'torch._dynamo' in sys.modules)")
    ended = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent.parent / "plugins", text=True,
                           capture_output=True, check=False)
    assert ended.stdout == "[3] False\n", ended.stderr


def test_measuring_calls_no_operator_that_flaggems_replaces():
    """Of torch's operators the timer may use views only: FlagGems' zero_, copy_, fill_ would be timed with the rest."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Quiet(Card):
        """As TorchDevice: memory is moved by kernels, not by torch."""
        def replicate(self, target, source, size, stride, count):
            pass

        def differs(self, one, other, size):
            return False

    class Count(TorchDispatchMode):
        names = set()

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.names.add(str(function))
            return function(*args, **(kwargs or {}))
    card = Quiet()
    x = torch.ones(16)
    timer, _ = make_timer(card)

    def op(x):
        card.launch([x], [x], 0.01, 0.02)
        return x
    args = (x,)
    with Count():
        for method in ("graph", "event"):
            timer.measure(lambda: op(*args), method)
    assert Count.names <= {"aten.view.dtype", "aten.set_.source_Storage_storage_offset", "aten.detach.default"}


def test_torch_sets_a_captured_generator_without_the_fill_of_flaggems():
    called, written = [], []
    library = torch.library.Library("aten", "IMPL")
    seed = torch.zeros(1, dtype=torch.int64)
    library.impl("fill_.Scalar", lambda tensor, value: called.append(value) or tensor, "CPU")  # as FlagGems does, with a counter
    try:
        with capture.DirectFill(lambda address, number: written.append((address, number)) or True):
            assert seed.fill_(-7) is seed
            assert (called, written) == ([], [(seed.data_ptr(), -7)])
            torch.zeros(2, dtype=torch.int64).fill_(1)  # no generator's
            torch.zeros(1).fill_(2)
        with capture.DirectFill(lambda address, number: False):  # no driver to write with
            seed.fill_(3)
        seed.fill_(4)
    finally:
        library._destroy()
    assert called == [1, 2, 3, 4] and len(written) == 1


def test_a_flag_in_host_memory_is_read_without_an_operator():
    from graph_timer import device, kernels
    from torch.utils._python_dispatch import TorchDispatchMode

    class Refuse(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            raise AssertionError(f"{function} was called")
    card = device.TorchDevice.__new__(device.TorchDevice)
    card.flag, card.flag_on_host, card.synchronize = torch.ones(2, dtype=torch.int32), True, lambda: None
    one, memory = torch.UntypedStorage(8), card.flag.numpy()
    for found in (0, 1):
        def compare(*where):
            memory[0] |= found  # noqa: B023 - called within this turn
        with pytest.MonkeyPatch.context() as patch, Refuse():
            patch.setattr(kernels, "compare", compare)
            assert card.differs(one, one, 8) is bool(found)
