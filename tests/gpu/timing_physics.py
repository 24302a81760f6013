"""timing_physics.py - what cold and warm must show, by arithmetic, and what the profiler says of the same launches.

torch.abs on side x side halves reads 2 side^2 bytes and writes as many. On a card with 60 MiB of L2:

    side    touched    warm                                   so cold over warm is
    2048     16 MiB    all of it stays in the L2              above 1
    4096     64 MiB    does not fit: little of it is left     1
    8192    256 MiB    nothing is left                        1

What a graph's figure holds besides the kernel is the gap between two nodes: what it must agree with, within 5 %, is the time
from the start of one profiled kernel to that of the next. A kernel with nothing to do takes no longer than a gap and itself,
so its figure is what the gap can be at most.

The profiler times kernels of other replays than the figure's: few, not settled, and with its own work in them. Its clock
has steps of 0.032 us (all that it gave on an H200 are multiples). SAME is how far the timer itself lets two replays of one
graph be apart; by so much a figure may lie below the kernel. The start of one kernel to that of the next, in the profiled
replays, says which of the two moved.
"""
import statistics

from timing_cases import close_to, open_timer

PEAK = 4.92e12      # bytes/s of an H200: 6144 bits, 2 x 3201 MHz; the data sheet says 4.8
FITS, TOO_LARGE = 2048, (4096, 8192)
FLUSH_BYTES = 256 << 20
SAME = 0.01         # sampling.SETTLE_SHARE
CLOCK_US = 0.1      # three steps of the profiler's clock


def is_kernel_and_gap(us, kernel, gap):
    """True if a figure is the kernel's time in other replays, and at most a gap."""
    return -max(CLOCK_US, SAME * kernel) <= us - kernel <= max(gap, SAME * kernel)


def find_kernels(profile, name):
    """(start, end) in us of each kernel whose name holds `name`, by CUPTI, in order."""
    import torch
    return sorted((event.time_range.start, event.time_range.end) for event in profile.events()
                  if event.device_type == torch.autograd.DeviceType.CUDA and name in event.name.lower())


def find_median(spans):
    """Median length of the (start, end); nan if there are none."""
    return statistics.median(end - start for start, end in spans) if spans else float("nan")


def profile_device():
    import torch
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])


def profile_graph(card, fn, found):
    """Median us of abs' kernels inside replays of a graph like that of `found`, a Measurement; and from a start to the next.

    nan if the profiler sees none.
    """
    from graph_timer import plan, workload
    with card.stream():
        work = workload.Workload(card, workload.Call(card, fn, None),
                                 plan.Plan(found.launches, found.copies, False, False, found.how))
        with profile_device() as profile:
            graph = card.capture(work.run)
            for _ in range(3):
                graph.replay()
        graph.release()
    spans = find_kernels(profile, "abs")
    if len(spans) < 3 * found.launches:
        return float("nan"), float("nan")
    spans = spans[found.launches:]
    return find_median(spans), find_median([(one[0], other[0]) for one, other in zip(spans, spans[1:])])


def check_physics(out, report):
    """Cold, warm, the profiler, do_bench."""
    import torch
    card, cold = open_timer("cold")
    _, warm = open_timer("warm")
    report.say(f"\nphysics: torch abs, fp16, us; {card.name}, L2 {card.l2_bytes >> 20} MiB")
    speck = torch.ones(8, device="cuda", dtype=torch.float16)
    gap = warm.measure(lambda: torch.abs(speck), "graph").latency_ms * 1e3
    report.say(f"     a kernel with nothing to do, warm: {gap:.3f} by graph, "
               f"{cold.measure(lambda: torch.abs(speck), 'event').latency_ms * 1e3:.3f} by event, "
               f"{cold.measure(lambda: torch.abs(speck), 'do_bench').latency_ms * 1e3:.3f} by do_bench")
    ratios = {}
    for side in (FITS, *TOO_LARGE):
        x = torch.randn(side, side, device="cuda", dtype=torch.float16)
        ratios[side] = check_side(card, {"cold": cold, "warm": warm}, x, gap, report)
    report.check(1.05 < ratios[FITS] < 3, f"what fits the L2 is faster warm: cold over warm {ratios[FITS]:.3f} at {FITS}")
    for side in TOO_LARGE:
        report.check(close_to(ratios[side], 1, 0.05), f"what does not fit is not: cold over warm {ratios[side]:.3f} at {side}")
    check_rotation(cold, report)
    check_launches(cold, report)
    show_do_bench(cold, report)


def check_side(card, timers, x, gap, report):
    """Cold and warm figures of one size, held against the memory's peak and the profiler; cold over warm."""
    import torch
    args = (x,)
    fn = lambda: torch.abs(*args)  # noqa: E731
    ours = {}
    for cache, timer in timers.items():
        found = timer.measure(fn, "graph")
        us = ours[cache] = found.latency_ms * 1e3
        kernel, period = profile_graph(card, fn, found)
        event = timer.measure(fn, "event")
        text = (f"{x.shape[0]} {cache}: graph {us:.3f} (spread {found.spread:.2%}, {found.how or 'warm'}, {found.copies} copies, "
                f"{2 * x.nbytes / us / 1e6:.2f} TB/s), kernel in it {kernel:.3f} ({us / kernel - 1:+.1%}; {period:.3f} to the "
                f"next), event {event.latency_ms * 1e3:.3f} {event.notes}")
        if x.shape[0] == FITS:  # 5 us: the gap alone is more than 5 %
            report.say(f"     {text}")
        else:
            report.check(close_to(us, period, 0.05), f"{text}: within 5 % of start to start")
        report.check(is_kernel_and_gap(us, kernel, gap), f"{x.shape[0]} {cache}: {us - kernel:+.3f} us ({us / kernel - 1:+.2%}) "
                     f"to the kernel; a gap is at most {gap:.3f}, and it may be {max(CLOCK_US, SAME * kernel):.3f} below")
        report.check(close_to(event.latency_ms * 1e3, kernel, 0.10) or event.notes,
                     f"{x.shape[0]} {cache}: event within 10 % or marked")
    report.check(2 * x.nbytes / ours["cold"] * 1e6 <= PEAK, f"{x.shape[0]} cold: no faster than the memory")
    return ours["cold"] / ours["warm"]


def check_rotation(cold, report):
    """More rotation than twice the L2 must not be slower: it was cold already."""
    import torch
    from graph_timer import plan
    x, times = torch.randn(FITS, FITS, device="cuda", dtype=torch.float16), {}
    for factor in (1, 2, 4, 8):
        plan.COLD_FACTOR, before = factor, plan.COLD_FACTOR
        found = cold.measure(lambda: torch.abs(x), "graph")
        plan.COLD_FACTOR = before
        times[factor] = found.latency_ms * 1e3
        report.say(f"     {FITS} cold, {factor} x L2 written per round: {times[factor]:.3f} us ({found.copies} copies)")
    report.check(close_to(times[2], times[8], 0.05), f"twice the L2 is cold: {times[8] / times[2] - 1:+.1%} with eight times")


def check_launches(cold, report):
    """A replay that the host's cost cut to ENOUGH_MS must show the time that 1000 calls show."""
    import torch
    from graph_timer import plan
    x, times, notes, before = torch.randn(64, 64, device="cuda", dtype=torch.float16), [], [], plan.CAPTURE_MS
    for plan.CAPTURE_MS in (1e9, 0.0, 0.0, 1e9):  # mirrored
        found = cold.measure(lambda: torch.abs(x), "graph")
        times.append(found.latency_ms * 1e3)
        notes += found.notes
        report.say(f"     64 cold, {found.launches} launches: {times[-1]:.4f} us (spread {found.spread:.2%}, {found.stop}) "
                   f"{found.notes}")
    plan.CAPTURE_MS = before
    many, few = times[0] + times[3], times[1] + times[2]
    report.check(close_to(few, many, 0.005) or notes,
                 f"a replay of {plan.ENOUGH_MS} ms is long enough: {few / many - 1:+.2%} to one of 1000 calls")


def show_do_bench(cold, report):
    """Why do_bench reads more than a cold graph: the kernel itself, after three ways to empty the L2, by the profiler."""
    import torch
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    buffer, other = (torch.zeros(FLUSH_BYTES // 4, device="cuda", dtype=torch.int32) for _ in range(2))
    ways = {"zero_ of 256 MiB, as do_bench: dirty lines": buffer.zero_, "reading 256 MiB: clean lines": other.max}
    bench = cold.measure(lambda: torch.abs(x), "do_bench", options={"warmup": 100, "rep": 100})
    report.say(f"     4096 do_bench {bench.latency_ms * 1e3:.3f}, spread {bench.spread:.2%} {bench.notes}")
    for name, flush in ways.items():
        with profile_device() as profile:
            for _ in range(40):
                flush()
                torch.abs(x)
            torch.cuda.synchronize()
        report.say(f"     4096 kernel after {name}: {find_median(find_kernels(profile, 'abs')[10:]):.3f} us")
