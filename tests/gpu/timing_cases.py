"""timing_cases.py - the single cases of timing_check.py, on torch.cuda itself: what the simulated card cannot show."""
import contextlib
import functools
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

    before, shown = check_repeats(card, timer, lambda: measure(torch.abs), report)
    torch.manual_seed(1)
    expected = torch.randn(5, device="cuda"), torch.nn.functional.dropout(torch.ones(64, device="cuda")), \
        torch.empty(64, device="cuda").bernoulli_(0.3)
    torch.manual_seed(1)
    measure(torch.abs, "do_bench")  # after it the launch gap has moved more than once
    benched = measure(torch.abs)
    report.say(f"     after random numbers and do_bench, no capture having failed yet: {show(timer, benched)} us")
    torch.manual_seed(1)
    failed = measure(lambda x: torch.abs(x) * float(x.sum().item()))
    seeded = torch.randn(5, device="cuda"), torch.nn.functional.dropout(torch.ones(64, device="cuda")), \
        torch.empty(64, device="cuda").bernoulli_(0.3)
    report.check(failed.timer == "do_bench" and heard[-1].phase == "capture", f"capture that fails: {failed.timer}, {heard[-1]}")
    report.check(all(torch.equal(a, b) for a, b in zip(expected, seeded)),
                 "after it randn, dropout, bernoulli_ give the seeded values")
    again = measure(torch.abs)
    report.check(again.timer == "graph" and not again.fault and timer.blocks[-2]["nodes"] == {"kernel": again.launches},
                 f"after it a capture works: {again.timer}, {again.fault or again.launches}")
    report.check(close_to(again.latency_ms, before.latency_ms, 0.03) or any("launch gap" in note for note in again.notes),
                 f"and gives the time that it gave just before, or says why not: {show(timer, again)} us after, {shown} before")

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
    nothing = measure(lambda x: x.view(-1), "do_bench")
    report.check("empty capture" in nothing.fault, f"nothing launched, by do_bench: {nothing.fault or nothing.latency_ms}")
    chain = measure(lambda x: torch.abs(torch.abs(x)))
    report.check(chain.nodes == 2, f"two kernels in a call: {chain.nodes:g} nodes, the launch gap is {chain.gap_us:.2f} us")
    waiting = measure(lambda x: (torch.abs(x), torch.cuda.synchronize(), torch.abs(x))[-1], "event")
    report.check(any("the device was idle" in note for note in waiting.notes),
                 f"a call that waits, by event: {waiting.latency_ms * 1e3:.3f} us {waiting.notes}")

    w = torch.randn(2048, 2048, device="cuda", requires_grad=True)
    op, made = torch.nn.functional.gelu, None
    made = op(w)
    grad = torch.randn_like(made)
    backward = timer.measure(lambda: torch.autograd.grad((made,), [w], grad_outputs=(grad,), retain_graph=True), "graph",
                             recipe=(op, (w,), {}), on_fallback=heard.append)
    report.check(backward.timer == "graph" and not backward.fault,
                 f"backward: {backward.timer}, {backward.latency_ms * 1e3:.3f} us {backward.notes}")
    event = measure(torch.abs, "event")
    says_bound = any("launch-bound: an empty" in note for note in event.notes)
    report.check(close_to(event.latency_ms, again.latency_ms, 0.10) or says_bound,
                 f"event: {event.latency_ms * 1e3:.3f} us against {again.latency_ms * 1e3:.3f} by graph, within 10 % or marked: "
                 f"{event.notes}")
    bench = measure(torch.abs, "do_bench")
    report.say(f"     do_bench: {bench.latency_ms * 1e3:.3f} us, spread {bench.spread:.1%}, {bench.notes}")
    (out / "lost.py").write_text(LOST)  # a file: Triton reads the source of what it compiles
    done = subprocess.run([sys.executable, out / "lost.py"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    report.check("LOST" in done.stdout, f"a lost device: {done.stdout.strip() or done.stderr.strip()[-200:]}")
    check_gems(timer, report)


def show(timer, found):
    """`1.858 (120 copies, 1980 MHz, 310 W)` of the measurement that `timer` logged last, with its notes."""
    last = [b for b in timer.blocks if b["kind"] == "block"][-1]["after"]
    return (f"{found.latency_ms * 1e3:.3f} ({found.copies} copies, {last.get('sm_mhz')} MHz, {last.get('power_w')} W"
            f"{''.join(', ' + note for note in found.notes)})")


def check_repeats(card, timer, measure, report):
    """The same call again and again in one process: the last Measurement, and it as text.

    Says what moves it, if something does: where the memory lies (an allocator that is not trimmed gives other places each
    time), or a card that has not woken up (the long settling of a process' first column).
    """
    card.trim = lambda: None  # an attribute, in front of the method
    untrimmed = [measure() for _ in range(4)]
    del card.trim
    trimmed = [measure() for _ in range(4)]
    awake = []
    for _ in range(2):
        timer.sampler.is_warm = False
        awake.append(measure())
    for name, found in (("not trimmed", untrimmed), ("settled for 0.3 s", awake)):
        report.say(f"     the same again, {name}: {', '.join(f'{m.latency_ms * 1e3:.3f}' for m in found)} us")
    times = [m.latency_ms for m in (*trimmed, *awake)]
    shown = show(timer, awake[-1])
    report.check(max(times) <= 1.03 * min(times), f"the same again, as always: "
                 f"{', '.join(f'{m.latency_ms * 1e3:.3f}' for m in trimmed)} us, all within 3 %; the last of all {shown}")
    return awake[-1], shown


def check_gems(timer, report):
    """FlagGems' column inside use_gems(), and which of its operators are called but the timed one: none."""
    import flag_gems
    import torch
    x = torch.randn(64, 64, device="cuda", dtype=torch.float16)
    args = (x,)
    with flag_gems.use_gems():
        small = timer.measure(lambda: torch.abs(*args), "graph")
    report.check(small.timer == "graph" and 0.0005 < small.latency_ms < 0.003,
                 f"gems abs 64x64: {small.latency_ms * 1e3:.3f} us cold, host {small.host_us:.1f} us, spread {small.spread:.2%}")
    counts = {}
    with count_overrides(counts), flag_gems.use_gems():
        for method in ("graph", "event"):
            timer.measure(lambda: torch.abs(*args), method)
            timer.measure(lambda: torch.abs_(*args), method)  # restored copies
        waits = timer.measure(lambda: (torch.cuda.synchronize(), torch.abs(*args)), "graph", on_fallback=lambda why: None)
    others = sorted({name for name, number in counts.items() if number} - {"abs", "abs_"})
    report.check(counts["abs"] and counts["abs_"] and waits.timer == "do_bench" and not others,
                 f"of {len(counts)} operators that FlagGems replaces the timer calls: {others or 'none'}")


@contextlib.contextmanager
def count_overrides(counts):
    """Inside, each operator that is registered is counted when called: {name: calls}."""
    import torch
    register = torch.library.Library.impl

    def register_counted(library, name, function, *args, **kwargs):
        if not callable(function):
            return register(library, name, function, *args, **kwargs)
        counts.setdefault(name, 0)

        @functools.wraps(function)
        def counted(*a, **k):
            counts[name] += 1
            return function(*a, **k)
        return register(library, name, counted, *args, **kwargs)

    torch.library.Library.impl = register_counted
    try:
        yield
    finally:
        torch.library.Library.impl = register
