"""host.py - what a call costs the host, in ms, and whether a figure may be that instead of the kernel's time."""
import math
import statistics

HOST_BATCHES, HOST_BATCH_SECONDS, HOST_BATCH_CALLS = 5, 0.001, 20
DEVICE_BATCH_SECONDS = 0.005  # of its work, which has to be waited for: 20 calls of 2 ms were most of such a column's time
LAUNCH_SHARE = 0.1         # of a kernel's time; if launching may add more to an event-timed figure, the row says so
LAUNCH_MARGIN = 1.25       # launching may take so much more than with an empty kernel: 1.9 us against 1.7 on an H200
OVERTOOK = ("launch-bound: the device was idle before all was launched (the call waits for it), "
            "so the host's time is in the figure")


def time_host(device, workload):
    """ms that one call costs the host, nothing waited for inside a batch."""
    most = len(workload.calls) if workload.plan.restore else HOST_BATCH_CALLS
    return time_host_of(device, workload.calls, workload.prepare, min(most, HOST_BATCH_CALLS))


def time_host_of(device, calls, prepare=lambda: None, most=HOST_BATCH_CALLS):
    """The same for `calls`, at most `most` of them after one prepare()."""
    clock, once, whole, batches = device.clock, math.inf, math.inf, []
    for _ in range(1 + HOST_BATCHES):
        count = max(1, min(most, int(HOST_BATCH_SECONDS / max(once, 1e-9)), int(DEVICE_BATCH_SECONDS / max(whole, 1e-9))))
        prepare()
        device.synchronize()
        began = clock()
        for number in range(count):
            calls[number % len(calls)]()
        once = (clock() - began) / count
        batches.append(once)
        device.synchronize()
        whole = (clock() - began) / count
    return 1e3 * statistics.median(batches[1:])  # the first one was a single call, to see how many make a batch


def find_gap_bound(found, empty_ms):
    """A note if launching may add more than LAUNCH_SHARE to the kernel's time, though the host's part of it is hidden."""
    launch_ms = LAUNCH_MARGIN * empty_ms
    if launch_ms > LAUNCH_SHARE * (found.latency_ms - launch_ms):
        return [f"launch-bound: an empty kernel takes {1e3 * empty_ms:.2g} us between events, about so much of it is the launch"]
    return []


def find_launch_bound(found):
    """A note if the figure may be the host's launch time and not the kernel's."""
    if math.isfinite(found.host_us) and found.latency_ms * 1e3 < 1.2 * found.host_us:
        return [f"launch-bound: a call costs the host {found.host_us:.3g} us, its kernels may be faster"]
    return []
