"""test_cudagraph_logic.py - graph_timer's rules, one by one: planning, stopping, health, copies, errors, a simulated card."""
import functools
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "plugins"), str(ROOT / "tests")]

from fake_device import Card, do_bench_on  # noqa: E402
from graph_timer import capture, health, measure, plan, rotation, rows, sampling, watch, workload  # noqa: E402

MIB = 1 << 20
ROOM = plan.Room(l2_bytes=60 * MIB, budget_bytes=4096 * MIB)


# ---- plan

@pytest.mark.parametrize("facts, cache, expected", [
    # abs 64x64 fp16 on a card with 60 MiB of L2: 120 MiB of 8 KiB outputs would be 15,360 launches
    (plan.Facts(0.0011, 8192, 8192), "cold", plan.Plan(1000, 1000, True, False, "flush")),
    # abs 4096x4096 fp16: four outputs of 32 MiB
    (plan.Facts(0.020, 32 * MIB, 32 * MIB), "cold", plan.Plan(248, 4, False, False, "rotation")),
    # 2^30 halves: each call alone writes more than twice the L2
    (plan.Facts(0.9, 2048 * MIB, 2048 * MIB), "cold", plan.Plan(6, 1, False, False, "size")),
    # a sum of 64 MiB writes 4 bytes: as many copies as fit in the budget, each read once
    (plan.Facts(0.020, 64 * MIB, 4), "cold", plan.Plan(64, 64, True, False, "flush")),
    # a sum of 2 GiB: one call per replay, 0.5 ms, flushed before
    (plan.Facts(0.5, 2048 * MIB, 4), "cold", plan.Plan(2, 2, True, False, "flush")),
    # no inputs at all, as rand(shape)
    (plan.Facts(0.010, 0, 16 * MIB), "cold", plan.Plan(496, 8, False, False, "rotation")),
    (plan.Facts(0.0011, 8192, 8192), "warm", plan.Plan(1000, 1, False, False, "")),
    (plan.Facts(20.0, 8192, 8192), "warm", plan.Plan(1, 1, False, False, "")),
    # x.mul_(2): every call has a restored copy of its own
    (plan.Facts(0.020, 32 * MIB, 0, mutates=True), "cold", plan.Plan(128, 128, True, True, "flush")),
    (plan.Facts(0.020, 32 * MIB, 0, mutates=True), "warm", plan.Plan(128, 128, False, True, "restored")),
])
def test_plan(facts, cache, expected):
    assert plan.plan_replay(facts, cache, ROOM) == expected


@pytest.mark.parametrize("mib, copies", [(32, 8), (1024, 4), (4096, 1)])
def test_the_probe_of_an_in_place_call_has_no_more_copies_than_fit(mib, copies):
    assert plan.plan_probe(plan.Facts(0.0, mib * MIB, 0, mutates=True), 8, ROOM) == plan.Plan(copies, copies, False, True, "restored")


@pytest.mark.parametrize("facts, reason", [
    # a gather of 5 us from a table of 3 GiB: one copy fits, 5 us are no span
    (plan.Facts(0.005, 3072 * MIB, MIB), "only 1 copies of 3072 MiB fit, too few for a timed span of 100 us"),
    (plan.Facts(0.5, 8192 * MIB, 0, mutates=True), "inputs of 8192 MiB do not fit twice"),
    (plan.Facts(0.5, 8192 * MIB, 0, mutates=True, fixed="inputs of 8192 MiB"), "inputs of 8192 MiB cannot be restored"),
    (plan.Facts(0.01, 8192, 8192, fixed="the state of a Linear"), "the state of a Linear cannot be copied"),
])
def test_plan_says_why_there_is_none(facts, reason):
    with pytest.raises(plan.CannotPlan, match=reason):
        plan.plan_replay(facts, "cold", ROOM)


def test_what_was_captured_must_write_twice_the_l2():
    rotation_plan = plan.Plan(248, 4, False, False, "rotation")
    assert plan.find_warmth(rotation_plan, 128 * MIB, 128 * MIB, ROOM) == ""
    assert plan.find_warmth(rotation_plan, 128 * MIB, 32 * MIB, ROOM) == (
        "a replay wrote 32.0 MiB (and read at most 128.0), less than twice the L2, 120 MiB")
    assert plan.find_warmth(plan.Plan(9, 9, True, False, "flush"), 0, 0, ROOM) == ""


# ---- sampling

LIMITS = sampling.Limits(min_samples=5, max_samples=20, seconds=1.0, half_width=0.01)


@pytest.mark.parametrize("samples, seconds, stop", [
    ([1.0] * 4, 0.1, ""), ([1.0] * 5, 0.1, "spread"), ([1.0, 1.5] * 5, 0.1, ""), ([1.0, 1.5] * 10, 0.1, "count"),
    ([1.0, 1.5, 1.0], 1.0, "time"), ([1.0], 5.0, "")])
def test_stop(samples, seconds, stop):
    assert sampling.find_stop(samples, seconds, LIMITS) == stop


def test_outliers_are_named_and_kept():
    summary = sampling.summarize([1.0, 1.001, 0.999, 1.0, 7.0, 1.0])
    assert (summary.median, summary.outliers) == (1.0, (4,))


@pytest.mark.parametrize("ms, written, fault", [
    (0.0011, 8192, ""), (0.0, 0, "0 ms is no time"), (-0.001, 0, "-0.001 ms is no time"), (math.nan, 0, "nan ms is no time"),
    (math.inf, 0, "inf ms is no time"), (0.00001, 0, "10 ns is below what any launch takes (200 ns)"), (None, 0, "None ms is no time"),
    (0.001, 32 * MIB, "0.001 ms is too short to write 32 MiB: not all of the work was timed"), (0.007, 32 * MIB, "")])
def test_times_that_are_none(ms, written, fault):
    assert sampling.find_fault(ms, written) == fault


def test_settled_once_the_clocks_have_risen():
    assert not sampling.is_settled([1.0] * 5)
    assert not sampling.is_settled([1.3, 1.3, 1.3, 1.0, 1.0, 1.0])
    assert sampling.is_settled([1.3, 1.3, 1.3, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])


def test_drift_within_a_block_is_seen_and_noise_is_not():
    assert sampling.find_drift([1.3] * 5 + [1.0] * 5) == "the times moved by -23.1% while they were taken"
    assert sampling.find_drift([1.0, 1.2, 0.8, 1.1, 0.9, 1.2, 1.0, 0.8, 1.3]) == ""
    assert sampling.find_drift([1.0] * 9) == sampling.find_drift([1.0, 2.0]) == ""


# ---- health

@pytest.mark.parametrize("before, after, void", [
    ({}, {}, ""), ({"sm_mhz": None}, {"sm_mhz": None, "throttle": None, "foreign": None}, ""),
    ({"sm_mhz": 1980}, {"sm_mhz": 1980, "sm_max_mhz": 1980, "throttle": [], "foreign": []}, ""),
    ({"throttle": ["hw_thermal"]}, {}, "throttled: hw_thermal"),
    ({}, {"foreign": [17, 18]}, "shared with process 17, 18"),
    ({"sm_mhz": 1168}, {"sm_mhz": 1168, "sm_max_mhz": 1980}, "clock at 59% of its maximum"),
    ({"sm_mhz": 1980}, {"sm_mhz": 1500, "sm_max_mhz": 1980}, "clock moved from 1980 to 1500 MHz")])
def test_judge(before, after, void):
    assert health.judge(before, after) == void


def test_retries_are_bounded_and_not_wasted():
    retries = health.Retries(per_block=2, per_process=5)
    assert [retries.allow("throttled: x", n) for n in (1, 2, 3)] == [True, True, False]
    assert not retries.allow("throttled: x", 1)  # it did not help before
    assert not retries.allow("", 1)
    assert [retries.allow(f"cause {n}", 1) for n in range(4)] == [True, True, True, False]


def test_a_launch_gap_that_is_never_still_does_not_use_up_the_tries_of_other_causes():
    retries = health.Retries(per_block=2, per_process=5)
    assert [retries.allow(f"launch gap moved from 0.85 to 0.9{n} us", n) for n in (1, 2, 3)] == [True, True, False]
    assert not retries.allow("launch gap moved from 0.91 to 0.86 us", 1)
    assert [retries.allow("the times moved by +3.1% while they were taken", n) for n in (1, 2)] == [True, True]


class FakeNvml:
    """pynvml's functions as they answer for one card that supports no power reading."""

    class NVMLError(Exception):
        pass

    __version__ = "13.580.82"
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    nvmlInit = staticmethod(lambda: None)
    nvmlDeviceGetClockInfo = staticmethod(lambda handle, kind: {1: 1980, 2: "N/A"}[kind])
    nvmlDeviceGetMaxClockInfo = staticmethod(lambda handle, kind: 1980)
    nvmlDeviceGetTemperature = staticmethod(lambda handle, kind: 51)
    nvmlDeviceGetCurrentClocksThrottleReasons = staticmethod(lambda handle: 0x1 | 0x4 | 0x40)

    def __init__(self, pids):
        self.pids = pids

    def nvmlDeviceGetHandleByUUID(self, uuid):  # two unlike cards, listed in the other order than CUDA's
        return {"GPU-b": "second", "GPU-a": "first"}[uuid]

    def nvmlDeviceGetPowerUsage(self, handle):
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [type("Process", (), {"pid": pid}) for pid in self.pids]


def test_reading_of_the_card_with_the_uuid():
    import os
    reader = health.NvmlReader(FakeNvml([os.getpid(), 4711]), "a")
    assert reader.handle == "first"
    assert reader.read() == {"sm_mhz": 1980, "sm_max_mhz": 1980, "memory_mhz": None, "power_w": None, "temperature_c": 51,
                             "throttle": ["sw_power_cap", "hw_thermal"], "foreign": [4711]}


@pytest.mark.parametrize("pids, foreign", [([], []), ([7], []), ([7, 8], [8]), ([1, 2, 3], [2, 3]), ([9], [])])
def test_foreign_processes(pids, foreign):
    assert health.find_foreign(pids, own=7) == foreign


def test_no_reader_where_nothing_can_be_read():
    assert health.open_reader("mthreads", "").read() == {}
    assert health.open_reader("nvidia", "").why == "torch does not tell the card's UUID"


# ---- copies

def on_card(fn):
    return rotation.find_tensors(fn, "cpu")


def test_copies_keep_strides_offsets_and_shared_memory():
    base = torch.arange(64.0)
    view, expanded, other = base[8:].view(7, 8).t(), torch.ones(4, 1).expand(4, 6), torch.full((3,), 5, dtype=torch.bool)
    args, kwargs = (view, [base, {"b": expanded}], 3), {"out": other}

    def op(*args, **kwargs):
        return args, kwargs
    fn = lambda: op(*args, **kwargs)  # noqa: E731
    found = on_card(fn)
    assert {id(t) for t in found.tensors.values()} == {id(view), id(base), id(expanded), id(other)}
    copies = rotation.Copies(Card(), found.tensors.values(), 3)
    (x, (y, inner), three), options = rotation.rebuild(fn, copies.make_tensors(2))()
    assert three == 3 and torch.equal(x, view) and torch.equal(y, base) and torch.equal(options["out"], other)
    assert (x.stride(), x.storage_offset() - y.storage_offset()) == (view.stride(), 8)
    assert inner["b"].stride() == (1, 0) and torch.equal(inner["b"], expanded)
    assert x.data_ptr() != view.data_ptr() and (x.data_ptr() - y.data_ptr()) == 32  # they still overlap
    y.zero_()
    assert float(x.abs().sum()) == 0 and float(view.sum()) > 0
    first, second = (copies.make_tensors(n)[id(base)].data_ptr() for n in (0, 1))
    assert (second - first) % 512 == 0


def test_copies_reach_into_partials_methods_and_nested_functions():
    x, weight = torch.ones(4), torch.full((4,), 2.0)
    inner = lambda y: y * weight  # noqa: E731
    fn = functools.partial(lambda f, *args: f(*args), inner, x)
    copies = rotation.Copies(Card(), on_card(fn).tensors.values(), 2)
    copy = rotation.rebuild(fn, copies.make_tensors(1))
    weight.zero_()
    assert copy().tolist() == [2.0] * 4


def test_state_of_a_module_is_no_copy():
    layer, x = torch.nn.Linear(4, 4), torch.ones(4)
    assert on_card(lambda: layer(x)).fixed == "the state of a Linear"
    assert on_card(lambda: layer.forward(x)).fixed == "the state of a Linear"


def test_sparse_and_subclassed_tensors_are_refused():
    for odd in (torch.eye(3).to_sparse(), torch.ones(2, dtype=torch.complex64).conj()):
        with pytest.raises(rotation.NotCopyable):
            rotation.check_copyable([odd])


def test_copies_of_inputs_that_need_gradients_are_leaves():
    x = torch.ones(3, requires_grad=True)
    copy = rotation.Copies(Card(), [x], 2).make_tensors(1)[id(x)]
    assert copy.is_leaf and copy.requires_grad and copy.data_ptr() != x.data_ptr()


def test_a_backward_pass_on_its_own_inputs_still_gets_leaves_of_its_own():
    # else its last step is the one that upstream's forward pass made, in the default stream, which no capture can reach
    x, other = torch.full((3,), 2.0, requires_grad=True), torch.full((3,), 5.0)
    op, args = torch.mul, (x, other)
    out, xs, grad = op(*args), [x], torch.full((3,), 10.0)
    fn = lambda: torch.autograd.grad((out,), xs, grad_outputs=(grad,), retain_graph=True)  # noqa: E731
    call = workload.Call(Card(), fn, (op, args, {}))
    copy = call.on({id(t): t for t in call.tensors})
    held = dict(zip(copy.__code__.co_freevars, (cell.cell_contents for cell in copy.__closure__)))
    made, leaves = held["out"], held["xs"]
    last = made.grad_fn.next_functions[0][0]
    assert last.variable is leaves[0] and leaves[0] is not x and leaves[0].is_leaf
    assert last is not out.grad_fn.next_functions[0][0]
    assert leaves[0].data_ptr() == x.data_ptr()  # warm: the same memory, no copy
    assert copy()[0].tolist() == [50.0] * 3


def test_tensors_of_another_device_are_left_alone():
    """The simulated card's are the host's; a meta tensor stands for the host's on a card, which no kernel of ours may read."""
    x, away, card = torch.ones(8), torch.ones(4, device="meta"), Card()
    args, seen = (x, away), []
    call = workload.Call(card, lambda: seen.append(args) or (x.clone(), away.clone()), (torch.add, args, {}))
    call.save_inputs(1 << 20)
    call.look((torch.ones(8), torch.ones(1024, device="meta")))
    assert (call.tensors, call.input_bytes, call.output_bytes, call.fixed) == ([x], 32, 32, "")
    workload.Workload(card, call, plan.Plan(2, 2, True, False, "flush")).run()
    assert [(a is x, b is away) for a, b in seen] == [(False, True)] * 2


def test_an_input_that_was_made_under_autograd_is_no_result_of_a_backward_pass():
    """As baddbmm's at level comprehensive: x @ (x @ y) was timed for x @ y, and what is not square could not be copied at all."""
    x, y = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True), torch.tensor([[5.0, 6.0], [7.0, 8.0]], requires_grad=True)
    args, card = (x, y.t().contiguous()), Card()
    call = workload.Call(card, lambda: torch.mm(*args), (torch.mm, args, {}))
    calls = workload.Workload(card, call, plan.Plan(2, 2, True, False, "flush")).calls
    assert [made().tolist() for made in calls] == [[[17.0, 23.0], [39.0, 53.0]]] * 2

    out, grad = torch.mm(*args), torch.ones(2, 2)  # and its backward pass is one
    fn = lambda: torch.autograd.grad((out,), list(args), grad_outputs=(grad,), retain_graph=True)  # noqa: E731
    call = workload.Call(card, fn, (torch.mm, args, {}))
    assert call.fixed == "" and call.backward is not None
    copy = workload.Workload(card, call, plan.Plan(2, 2, True, False, "flush")).calls[1]
    assert [g.tolist() for g in copy()] == [[[12.0, 14.0], [12.0, 14.0]], [[4.0, 4.0], [6.0, 6.0]]]


def test_a_copy_does_not_count_as_a_change_of_the_copies_before_it():
    x, card = torch.ones(4, requires_grad=True), Card()
    copies = rotation.Copies(card, [x], 3)
    first = copies.make_tensors(0)[id(x)]
    out = first * first  # saves it
    before = first._version
    copies.make_tensors(1)
    rotation.make_twin(card.seed, x, x.untyped_storage(), 0)
    assert first._version == before
    out.sum().backward()
    assert first.grad.tolist() == [2.0] * 4


# ---- errors

DSA = "\nCUDA kernel errors might be asynchronously reported.\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"


@pytest.mark.parametrize("text, lost", [
    ("CUDA error: an illegal memory access was encountered" + DSA, True),
    ("CUDA error: device-side assert triggered" + DSA, True),
    ("CUDA error: operation not permitted when stream is capturing" + DSA, False),
    ("CUDA error: operation failed due to a previous error during capture" + DSA, False),
    ("CUDA error: invalid argument" + DSA, False),
    ("CUDA out of memory. Tried to allocate 2.00 GiB", False), ("", False)])
def test_only_some_errors_lose_the_device(text, lost):
    assert capture.names_lost_device(RuntimeError(text)) is lost


def test_work_left_on_another_stream():
    assert capture.leaves_work_behind(RuntimeError("CUDA error: capture sequence contains unjoined work" + DSA))
    assert not capture.leaves_work_behind(RuntimeError("CUDA error: operation not permitted when stream is capturing"))


# ---- measuring on the simulated card

def make_timer(card, cache="cold", reader=None, **limits):
    blocks = []
    timer = measure.Timer(card, watch.CompileWatch(), reader, do_bench_on(card), cache, blocks.append, sampling.Limits(**limits))
    return timer, blocks


def make_call(card, warm=0.01, cold=0.02, size=16):
    x = torch.ones(size)

    def op(x):
        y = card.empty_like(x)
        card.launch([x], [y], warm, cold)
        return y
    args = (x,)
    return lambda: op(*args)


def test_a_tiny_kernel_is_captured_a_thousand_times_at_most():
    card = Card()
    make_timer(card)[0].measure(make_call(card, 0.001, 0.001), "graph")
    assert card.captures == [200, 8, 1000]  # the launch gap's, the probe, the figure's


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
    assert found.notes == ["launch-bound: the device was idle before all was launched (the call waits for it), so the host's time is in the figure"]
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


GOOD, HOT = {"sm_mhz": 1980, "throttle": []}, {"sm_mhz": 1980, "throttle": ["hw_thermal"]}


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


# ---- the launch gap

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
    row.columns = {"torch": rows.Measurement("graph", "cold", 0.0017, gap_us=0.85), "gems": rows.Measurement("graph", "cold", 0.0019, gap_us=1.03)}
    line = row.describe("abs", "torch.float16", 1)
    assert " gap_us=1.03 nodes=1 " in line
    assert line.endswith("reason=<<<launch gap of torch 0.85 us, of gems 1.03: the ratio holds that difference>>>")


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
    assert found.timer == "do_bench" and "inputs of 2 MiB cannot be copied" in heard[0].reason


@pytest.mark.parametrize("rounds", [4])
def test_errors_of_the_operator_itself_are_its_own(rounds):
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
    ended = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent.parent / "plugins", text=True, capture_output=True,
                           check=False)
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


# ---- rows

def test_a_column_that_falls_back_takes_the_other_with_it():
    asked = []

    def measured(call, column, method):
        asked.append((column, method))
        timer = "do_bench" if method == "do_bench" or call == "uncapturable" else "graph"
        return rows.Measurement(timer, "cold", 0.07 if timer == "do_bench" else 0.001, host_us=60.0, samples=9)
    row = rows.Row(measured, "graph")
    assert (row.time("torch", "plain"), row.time("gems", "uncapturable")) == (0.001, 0.07)
    assert row.find_unsettled() == ["torch"]
    assert row.settle("torch") == 0.07 and row.find_unsettled() == []
    assert asked == [("torch", "graph"), ("gems", "graph"), ("torch", "do_bench")]
    assert row.describe("abs", "torch.float16", 3) == (
        "TIMER: Operator=abs dtype=torch.float16 row=3 timer=do_bench cache=cold launches=1 copies=1 samples=9 "
        "host_us=60 host_us_base=60 reason=<<<>>>")


def test_kernels_compile_for_a_card_that_is_not_here():
    import triton
    from graph_timer import kernels
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    for function, signature in ((kernels.gemscreen_clear, {"target": "*i64", "words": "i32"}),
                                (kernels.gemscreen_copy, {"target": "*i8", "source": "*i8", "count": "i32", "stride": "i32"}),
                                (kernels.gemscreen_compare, {"one": "*i64", "other": "*i64", "count": "i32", "flag": "*i32"})):
        source = ASTSource(fn=function, signature={**signature, "BLOCK": "constexpr"}, constexprs={"BLOCK": kernels.BLOCK})
        assert "st.global" in triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    assert [part[1:] for part in kernels.split_words(1003)] == [(8, 0, 1000), (1, 1000, 1003)]
