"""graph_timer's rules, one by one: planning, stopping, health, errors, rows; no card (test_cudagraph_copies.py, _measure.py and
_gap.py: on a simulated one)."""
import math
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "plugins")]

from graph_timer import capture, health, plan, rows, sampling  # noqa: E402

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


@pytest.mark.parametrize("host_us, facts, cache, expected", [
    # abs 64x64 by FlagGems: 385 captures take 50 ms, 417 calls 0.5 ms
    (130, (0.0012, 8192, 8192), "cold", plan.Plan(417, 417, True, False, "flush")),
    (12, (0.0012, 8192, 8192), "cold", plan.Plan(1000, 1000, True, False, "flush")),  # and by torch
    (130, (0.0012, 8192, 8192), "warm", plan.Plan(417, 1, False, False, "")),
    (500, (0.0036, 8192, 768), "cold", plan.Plan(139, 139, True, False, "flush")),  # 0.5 ms; 50 ms would be 100
    (250, (0.0100, 8192, 768), "cold", plan.Plan(200, 200, True, False, "flush")),  # 50 ms
    (500, (0.0200, 64 * MIB, 4), "cold", plan.Plan(64, 64, True, False, "flush")),  # no more copies fit, as without
    (250, (0.0100, 8192, 0, True), "cold", plan.Plan(200, 200, True, True, "flush")),
    # mm 1024x1024 and 384x384 fp16: whole rounds over 60 and over 427 copies, 240 and 427 of 960 and 854
    (190, (0.0050, 4 * MIB, 2 * MIB), "cold", plan.Plan(240, 60, False, False, "rotation")),
    (190, (0.0038, 589824, 294912), "cold", plan.Plan(427, 427, False, False, "rotation")),
    (1e6, (0.9, 2048 * MIB, 2048 * MIB), "cold", plan.Plan(1, 1, False, False, "size")),
])
def test_a_call_that_costs_the_host_much_is_captured_less_often_and_in_no_other_way(host_us, facts, cache, expected):
    assert plan.plan_replay(plan.Facts(*facts, host_ms=host_us / 1e3), cache, ROOM) == expected
    quick = plan.plan_replay(plan.Facts(*facts), cache, ROOM)
    assert (quick.flush, quick.restore, quick.how) == (expected.flush, expected.restore, expected.how)


def test_the_host_cost_does_not_decide_whether_there_is_a_plan():
    for host_ms in (0.0, 1000.0):
        with pytest.raises(plan.CannotPlan, match="only 1 copies of 3072 MiB fit"):
            plan.plan_replay(plan.Facts(0.005, 3072 * MIB, MIB, host_ms=host_ms), "cold", ROOM)


@pytest.mark.parametrize("mib, copies", [(32, 8), (1024, 4), (4096, 1)])
def test_the_probe_of_an_in_place_call_has_no_more_copies_than_fit(mib, copies):
    probe = plan.plan_probe(plan.Facts(0.0, mib * MIB, 0, mutates=True), 8, ROOM)
    assert probe == plan.Plan(copies, copies, False, True, "restored")


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
    (math.inf, 0, "inf ms is no time"), (None, 0, "None ms is no time"),
    (0.00001, 0, "10 ns is below what any launch takes (200 ns)"),
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


# ---- errors

DSA = "\nCUDA kernel errors might be asynchronously reported.\n" \
      "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"


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
