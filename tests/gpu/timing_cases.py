"""timing_cases.py - the single cases of timing_check.py, on torch.cuda itself: what the simulated card cannot show."""
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

LOST = """
import sys
sys.path.insert(0, "plugins")
import torch, triton, triton.language as tl
from graph_timer import device, measure, watch
@triton.jit
def wild(x):
    tl.store(x + (1 << 44), 1.0)
card = device.open_device(torch.cuda, "cuda", "nvidia")
timer = measure.Timer(card, watch.CompileWatch().install(), do_bench=triton.testing.do_bench)
x = torch.ones(8, device="cuda")
try:
    timer.measure(lambda: wild[(1,)](x), "graph")
except measure.LostDevice as error:
    print("LOST", error)
"""


def open_timer(cache="cold"):
    """(device, timer) on torch.cuda, with the card's health."""
    import torch
    import triton
    from graph_timer import device, health, measure, watch
    card = device.open_device(torch.cuda, "cuda", "nvidia")
    reader = health.open_reader("nvidia", card.uuid)
    blocks = []
    timer = measure.Timer(card, watch.CompileWatch().install(), reader, triton.testing.do_bench, cache, blocks.append)
    timer.blocks = blocks
    return card, timer


def close_to(one, other, share):
    return abs(one / other - 1) <= share


def check_cases(out, report):
    """What must not go wrong, one line each."""
    import torch
    card, timer = open_timer()
    report.say(f"\ncases: {card.name}, L2 {card.l2_bytes >> 20} MiB, torch {torch.__version__}, health: "
               f"{timer.reader.why or timer.reader.read()}")
    x = torch.randn(512, 512, device="cuda")
    args = (x,)
    heard = []

    def measure(op, method="graph"):
        return timer.measure(lambda: op(*args), method, options={"warmup": 25, "rep": 100}, on_fallback=heard.append)

    plain = measure(torch.abs)
    report.check(plain.timer == "graph" and not plain.fault and timer.blocks[-2]["nodes"] == {"kernel": plain.launches},
                 f"plain: {plain.latency_ms * 1e3:.3f} us, {plain.how}, {plain.launches} launches, spread {plain.spread:.2%}, "
                 f"nodes {timer.blocks[-2]['nodes']}, host {plain.host_us:.1f} us")

    torch.manual_seed(1)
    expected = torch.randn(5, device="cuda"), torch.nn.functional.dropout(torch.ones(64, device="cuda")), \
        torch.empty(64, device="cuda").bernoulli_(0.3)
    torch.manual_seed(1)
    failed = measure(lambda x: torch.abs(x) * float(x.sum().item()))
    seeded = torch.randn(5, device="cuda"), torch.nn.functional.dropout(torch.ones(64, device="cuda")), \
        torch.empty(64, device="cuda").bernoulli_(0.3)
    report.check(failed.timer == "do_bench" and heard[-1].phase == "capture", f"capture that fails: {failed.timer}, {heard[-1]}")
    report.check(all(torch.equal(a, b) for a, b in zip(expected, seeded)), "after it randn, dropout, bernoulli_ give the seeded values")
    again = measure(torch.abs)
    report.check(again.timer == "graph" and close_to(again.latency_ms, plain.latency_ms, 0.03),
                 f"after it a capture works: {again.latency_ms * 1e3:.3f} us")

    torch.manual_seed(2)
    expected = torch.randn(5, device="cuda")
    torch.manual_seed(2)
    drawn = measure(lambda x: torch.rand_like(x))
    report.check(drawn.timer == "graph" and not drawn.fault, f"random numbers: {drawn.timer}, {drawn.latency_ms * 1e3:.3f} us")
    report.check(torch.equal(torch.randn(5, device="cuda"), expected), "and the default generator is where it was")

    y, z = torch.ones(512, 512, device="cuda", dtype=torch.float16), []
    grown = timer.measure(lambda: y.mul_(1.5), "graph")
    report.check(grown.timer == "graph" and torch.equal(y, torch.ones_like(y)) and not grown.fault,
                 f"in place: {grown.latency_ms * 1e3:.3f} us, {grown.copies} restored copies, input is as before")
    block = [b for b in timer.blocks if b["kind"] == "block"][-1]
    report.check(block["launches"] == block["copies"], "in place: each copy is used once per replay")

    side = torch.cuda.Stream()

    def elsewhere(x):
        with torch.cuda.stream(side):
            return torch.abs(x)

    def forked(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            made = torch.abs(x)
        torch.cuda.current_stream().wait_stream(side)
        return made

    def unjoined(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z.append(torch.abs(x))
        return torch.neg(x)

    saved = measure(elsewhere)
    report.check(bool(saved.fault), f"another stream, unseen: {saved.fault or saved.latency_ms}")
    joined = measure(forked)
    report.check(not joined.fault and joined.latency_ms > 0.5 * plain.latency_ms,
                 f"another stream, forked and joined: {joined.timer}, {joined.latency_ms * 1e3:.3f} us")
    left = measure(unjoined)
    report.check(bool(left.fault), f"another stream, never joined: {left.fault or (left.timer, left.latency_ms)}")
    nothing = measure(lambda x: x.view(-1))
    report.check("empty capture" in nothing.fault, f"nothing launched: {nothing.fault}")

    w = torch.randn(2048, 2048, device="cuda", requires_grad=True)
    op, made = torch.nn.functional.gelu, None
    made = op(w)
    grad = torch.randn_like(made)
    backward = timer.measure(lambda: torch.autograd.grad((made,), [w], grad_outputs=(grad,), retain_graph=True), "graph",
                             recipe=(op, (w,), {}), on_fallback=heard.append)
    report.check(backward.timer == "graph" and not backward.fault,
                 f"backward: {backward.timer}, {backward.latency_ms * 1e3:.3f} us {backward.notes}")
    event = measure(torch.abs, "event")
    report.check(close_to(event.latency_ms, plain.latency_ms, 0.10),
                 f"event: {event.latency_ms * 1e3:.3f} us against {plain.latency_ms * 1e3:.3f} by graph, {event.notes}")
    bench = measure(torch.abs, "do_bench")
    report.say(f"     do_bench: {bench.latency_ms * 1e3:.3f} us, spread {bench.spread:.1%}, {bench.notes}")
    (out / "lost.py").write_text(LOST)  # a file: Triton reads the source of what it compiles
    done = subprocess.run([sys.executable, out / "lost.py"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    report.check("LOST" in done.stdout, f"a lost device: {done.stdout.strip() or done.stderr.strip()[-200:]}")
    check_gems(timer, report)


def check_gems(timer, report):
    """FlagGems' column inside use_gems(), and which of its operators the timer itself calls: none."""
    import flag_gems
    import torch
    x = torch.randn(64, 64, device="cuda", dtype=torch.float16)
    args = (x,)
    with flag_gems.use_gems():
        small = timer.measure(lambda: torch.abs(*args), "graph")
    report.check(small.timer == "graph" and 0.0005 < small.latency_ms < 0.003,
                 f"gems abs 64x64: {small.latency_ms * 1e3:.3f} us cold, host {small.host_us:.1f} us, spread {small.spread:.2%}")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        with flag_gems.use_gems():
            timer.measure(lambda: torch.abs(*args), "graph")
    names = {e.key for e in profile.key_averages()}
    called = sorted(names & {"aten::zero_", "aten::fill_", "aten::copy_", "aten::clone", "aten::eq", "aten::equal"})
    report.check(not called, f"operators that FlagGems replaces and the timer calls: {called or 'none'}")


def profile_kernel(calls, name):
    """Median us of the kernels whose name holds `name`, by CUPTI, when `calls` are called in turn."""
    import torch
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for call in calls:
            call()
        torch.cuda.synchronize()
    times = [event.time_range.elapsed_us() for event in profile.events()
             if event.device_type == torch.autograd.DeviceType.CUDA and name in event.name.lower()]
    return statistics.median(times[len(times) // 4:]) if times else float("nan")


def check_physics(out, report):
    """abs 4096x4096 fp16: 64 MiB touched. Cold it comes from memory, warm partly from the L2."""
    import torch
    from graph_timer import plan, workload
    card, cold = open_timer("cold")
    _, warm = open_timer("warm")
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    args = (x,)
    op = torch.abs
    fn = lambda: op(*args)  # noqa: E731
    found = {(name, method): timer.measure(fn, method, options={"warmup": 100, "rep": 100})
             for name, timer in (("cold", cold), ("warm", warm)) for method in ("graph", "event")}
    found["cold", "do_bench"] = cold.measure(fn, "do_bench", options={"warmup": 100, "rep": 100})
    report.say("\nphysics: torch abs 4096x4096 fp16, us")
    for (cache, method), m in found.items():
        report.say(f"     {cache:<5} {method:<9} {m.latency_ms * 1e3:8.3f}  spread {m.spread:.2%}  {m.how} {m.copies} copies {m.notes}")
    call = workload.Call(card, fn, None)
    rotated = workload.Workload(card, call, plan.Plan(200, 8, False, False, "rotation"))
    ring = [None] * 8

    def turn(number):
        ring[number % 8] = rotated.calls[number % 8]()

    kernel = {"cold": profile_kernel([lambda n=n: turn(n) for n in range(200)], "abs"),
              "warm": profile_kernel([fn] * 200, "abs")}
    for cache, us in kernel.items():
        ours = found[cache, "graph"].latency_ms * 1e3
        report.check(close_to(ours, us, 0.05), f"{cache}: graph {ours:.3f} us, profiler's kernel {us:.3f} us ({ours / us - 1:+.1%})")
    ratio = found["cold", "graph"].latency_ms / found["warm", "graph"].latency_ms
    report.check(1.05 < ratio < 3, f"cold over warm: {ratio:.3f}")
    for factor in (1, 2, 4, 8):
        plan.COLD_FACTOR, before = factor, plan.COLD_FACTOR
        m = cold.measure(fn, "graph")
        plan.COLD_FACTOR = before
        report.say(f"     cold, {factor} x L2 written per round: {m.latency_ms * 1e3:.3f} us ({m.copies} copies)")
