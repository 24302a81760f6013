"""fake_device.py - a simulated card for the timer: a clock, an L2, streams, graphs. No GPU, no sleeping, no randomness.

Use:     card = Card(); card.launch(reads=[x], writes=[y], warm_ms=0.01, cold_ms=0.02) inside an operator
         python -m pytest -p fake_device ...    puts it in the place of torch's device and of Triton's do_bench
A launch takes cold_ms if any byte it touches is not in the L2, which keeps the bytes that were touched last. The host
needs `host_ms` for each launch, and a stream `gap_ms` after it; work that is captured runs at replay, without gaps. It has
what graph_timer/device.py lists.
"""
import contextlib
import gc
import weakref
from collections import OrderedDict

import torch

L2_BYTES = 1 << 20
GOOD = {"sm_mhz": 1980, "throttle": []}     # a reading of the card's health


class CaptureError(RuntimeError):
    pass


class Graph:
    def __init__(self, card, nodes):
        self.card, self.work = card, nodes
        self.nodes = {"kernel": len(nodes)} if nodes else {}

    def replay(self):
        self.card.synchronize()
        self.card.replays += 1
        began = self.card.busy_until = self.card.now
        for node in self.work:
            self.card.execute(*node)
            self.card.busy_until += self.card.node_ms(self.card.busy_until)
        took = self.card.busy_until - began
        self.card.synchronize()
        return took

    def release(self):
        self.work = None


class Card:
    """See the top of this file. `drift` stretches launches: drift(now_ms) -> factor; `node_ms` is what a graph's node costs."""

    name, uuid, vendor, can_capture, hides_launches = "Simulated Card", "", "simulated", True, True

    def __init__(self, l2_bytes=L2_BYTES, host_ms=0.05, drift=lambda now: 1.0, free=1 << 30, gap_ms=0.0,
                 node_ms=lambda now: 0.0):
        self.l2_bytes, self.host_ms, self.drift, self.free, self.gap_ms = l2_bytes, host_ms, drift, free, gap_ms
        self.node_ms = node_ms
        self.now = self.busy_until = 0.0  # ms
        self.cached, self.held = OrderedDict(), 0  # address -> bytes, oldest first; their sum
        self.captured = None         # nodes of a capture that is under way
        self.captures = []           # launches in each
        self.replays = self.flushes = self.scratches = self.trims = 0
        self.is_broken = self.flushes_itself = False
        self.unused = {}             # bytes -> storages that no tensor holds any more
        self.seed = torch.empty(0, dtype=torch.uint8)

    # ---- what an operator does

    def launch(self, reads=(), writes=(), warm_ms=0.01, cold_ms=0.02, other_stream=False):
        """One kernel. On another stream it is not captured, and no event of this one sees it."""
        touched = [(t.data_ptr(), t.numel() * t.element_size()) for t in (*reads, *writes)]
        self.now += self.host_ms
        if other_stream:
            return
        if self.captured is not None:
            self.captured.append((touched, warm_ms, cold_ms))
        else:
            self.busy_until = max(self.busy_until, self.now)
            self.execute(touched, warm_ms, cold_ms)
            self.busy_until += self.gap_ms

    def empty_like(self, tensor):
        """Memory as torch's allocator for a card hands it out: what was given back last comes first.

        (The host's hands out other addresses in each run, and what is warm is a matter of addresses.)
        """
        unused = self.unused.setdefault(tensor.nbytes, [])
        storage = unused.pop() if unused else torch.UntypedStorage(tensor.nbytes)
        made = torch.empty(0, dtype=tensor.dtype).set_(storage, 0, tuple(tensor.size()), tuple(tensor.stride()))
        weakref.finalize(made, unused.append, storage)
        return made

    def read_back(self):
        """What .item() does: waits, which no capture allows."""
        if self.captured is not None:
            raise CaptureError("CUDA error: operation not permitted when stream is capturing\n"
                               "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.")
        self.synchronize()

    def execute(self, touched, warm_ms, cold_ms):
        is_warm = all(self.cached.get(address) == size for address, size in touched)
        self.busy_until += (warm_ms if is_warm else cold_ms) * self.drift(self.busy_until)
        for address, size in touched:
            self.touch(address, size)

    def touch(self, address, size):
        self.held += size - self.cached.pop(address, 0)
        self.cached[address] = size
        while self.held > self.l2_bytes:
            self.held -= self.cached.popitem(last=False)[1]

    # ---- the interface

    def free_bytes(self):
        return self.free

    def trim(self):
        assert self.captured is None
        self.trims += 1

    def allocate(self, size):
        return torch.UntypedStorage(size)

    def replicate(self, target, source, size, stride, count):
        to = torch.empty(0, dtype=torch.uint8).set_(target)
        data = torch.empty(0, dtype=torch.uint8).set_(source)[:size]
        for number in range(count):
            to[number * stride:number * stride + size] = data

    def differs(self, one, other, size):
        one, other = (torch.empty(0, dtype=torch.uint8).set_(s)[:size] for s in (one, other))
        return not torch.equal(one, other)

    def flush(self):
        self.flushes += 1
        self.cached.clear()
        self.held = 0

    def launch_nothing(self):
        self.launch(warm_ms=0.0005, cold_ms=0.0005)

    def stream(self):
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def scratch_rng(self):
        self.scratches += 1
        state = torch.get_rng_state()
        try:
            yield
        finally:
            torch.set_rng_state(state)

    @contextlib.contextmanager
    def outside_dispatch(self):
        self.flushes_itself = True
        try:
            yield
        finally:
            self.flushes_itself = False

    def synchronize(self):
        if self.is_broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        self.now = self.busy_until = max(self.now, self.busy_until)

    def clock(self):
        self.now += 1e-6
        return self.now / 1e3

    def time_calls(self, run, hide_ms):
        self.synchronize()
        self.busy_until += hide_ms
        began = self.busy_until
        run()
        self.overtook = self.now > began
        took = max(self.busy_until - began, 0.0015)  # what a pair of events alone shows
        self.synchronize()
        return took

    def capture(self, run):
        self.captured = []
        try:
            run()
            nodes = self.captured
        finally:
            self.captured = None
        self.captures.append(len(nodes))
        return Graph(self, nodes)

    def is_lost(self, error):
        return self.is_broken


def do_bench_on(card):
    """Triton's do_bench, on the card's clock. What torch's dispatcher puts in the place of its flush costs 5 us more."""

    def do_bench(fn, warmup=25, rep=100, grad_to_none=None, return_mode="mean", **options):
        times = []
        for _ in range(7):
            card.flush()
            times.append(card.time_calls(fn, 0) + (0 if card.flushes_itself else 0.005))
        return times if return_mode == "all" else sorted(times)[3]

    return do_bench


def make_timer(card, cache="cold", reader=None, **limits):
    """(a Timer on `card`, the list that takes its log)."""
    from graph_timer import measure, sampling, watch

    blocks = []
    timer = measure.Timer(card, watch.CompileWatch(), reader, do_bench_on(card), cache, blocks.append, sampling.Limits(**limits))
    return timer, blocks


def make_call(card, warm=0.01, cold=0.02, size=16):
    """An operator's call of one kernel, which takes so many ms with its input in the L2 and without."""
    x = torch.ones(size)

    def op(x):
        y = card.empty_like(x)
        card.launch([x], [y], warm, cold)
        return y
    args = (x,)
    return lambda: op(*args)


def pytest_configure(config):
    """As a plugin: the one card of the process is `fake_device.CARD`."""
    import triton.testing
    from graph_timer import device

    triton.testing.do_bench = do_bench_on(CARD)
    device.open_device = lambda module, kind, vendor: CARD
    gc.freeze()     # torch: pytest looks for rubbish in it five times before it ends


CARD = Card()
