"""graph_timer: times of kernels that can be believed. Used by _cudagraph_plugin and tests/gpu/timing_check.py.

Which file for what:
    sampling.py   when to stop sampling; which times are none                          pure
    plan.py       how many launches, on how many copies of the inputs, flushed or not   pure
    rows.py       both columns of a row by one method; the TIMER line                   pure
    health.py     clocks, power, temperature, throttling, foreign processes (NVML)      pure but for its reader
    rotation.py   the tensors behind a callable, and copies of them
    watch.py      counts what is compiled or tuned
    capture.py    CUDA graphs, and getting out of a capture that failed
    device.py     the only file that knows torch.cuda; kernels.py holds its three kernels
    workload.py   what a replay calls: a callable, what it reaches and changes, its copies
    gap.py        what a launch costs inside a graph at this moment
    host.py       what a call costs the host; whether a figure may be that
    blocks.py     samples in blocks: settle, sample, judge, once more
    measure.py    one column of one row: warm up, plan, capture, fall back

The device is reached through the methods of device.TorchDevice and nothing else, so that the tests run all of it on
a simulated one (tests/fake_device.py).
"""
