"""health.py - the state of the card before and after a block of samples, and whether the block can be believed.

A throttled or shared block is void, not slow: it is measured again, a bounded number of times; then its row says so.
What the card does not say is None, unknown, and voids nothing. Clocks are read, never set.

    {"sm_mhz": 1980, "sm_max_mhz": 1980, "memory_mhz": 3201, "power_w": 412.5, "temperature_c": 51,
     "throttle": ["sw_power_cap"], "foreign": [4711]}

Needs: pynvml (the package nvidia-ml-py) for NVIDIA cards; without it every reading is {}. No command is started: a
vendor's command can hang in the driver. Limits: in a container NVML may show process ids of the host; then one process
is taken for this one, and the others are counted by their ids.
"""
import os
import re

THROTTLES = {0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "hw_power_brake"}
LOWEST_CLOCK = 0.7       # of the card's maximum, while it works
CLOCK_MOVE = 0.05        # between the two readings around a block
RETRIES_PER_BLOCK = 2
RETRIES_PER_PROCESS = 20


def judge(before, after):
    """Why a block between the two readings is void, or ""."""
    for reading in (before, after):
        if reading.get("foreign"):
            return f"shared with process {', '.join(map(str, reading['foreign']))}"
        if reading.get("throttle"):
            return f"throttled: {', '.join(reading['throttle'])}"
    clock, top = after.get("sm_mhz"), after.get("sm_max_mhz")
    if clock and top and clock < LOWEST_CLOCK * top:
        return f"clock at {clock / top:.0%} of its maximum"
    first = before.get("sm_mhz")
    if clock and first and abs(clock - first) > CLOCK_MOVE * max(clock, first):
        return f"clock moved from {first} to {clock} MHz"
    return ""


class Retries:
    """Which void blocks are measured again. A cause (its words, up to the first figure) that three tries in a row did not
    outlast is not tried against a second time: it would use up the tries of the others."""

    def __init__(self, per_block=RETRIES_PER_BLOCK, per_process=RETRIES_PER_PROCESS):
        self.per_block, self.left, self.hopeless = per_block, per_process, set()

    def allow(self, void, number):
        """True if a block that was void for the `number`-th time (from 1) is to be measured again."""
        cause = re.split(r"[-+\d]", void)[0]
        if void and number > self.per_block:
            self.hopeless.add(cause)
        if not void or number > self.per_block or self.left <= 0 or cause in self.hopeless:
            return False
        self.left -= 1
        return True


class NoReader:
    """Stands in where nothing can be read; `why` says what lacks."""

    def __init__(self, why):
        self.why = why

    def read(self):
        return {}


class NvmlReader:
    """Readings of the one card that torch uses, found by its UUID: nvidia-smi's numbers are not CUDA's."""

    why = ""

    def __init__(self, nvml, uuid):
        self.nvml = nvml
        nvml.nvmlInit()
        self.handle = nvml.nvmlDeviceGetHandleByUUID(as_argument(nvml, uuid))

    def read(self):
        """One reading; see the top of this file."""
        nvml, handle = self.nvml, self.handle
        ask_reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or \
            nvml.nvmlDeviceGetCurrentClocksThrottleReasons  # the old name
        reasons = self._ask(lambda: ask_reasons(handle))
        power = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        return {
            "sm_mhz": self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "sm_max_mhz": self._ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "memory_mhz": self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            "power_w": None if power is None else power / 1000,
            "temperature_c": self._ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            "throttle": None if reasons is None else [name for bit, name in THROTTLES.items() if reasons & bit],
            "foreign": self._ask(lambda: find_foreign(
                [p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)], os.getpid())),
        }

    def _ask(self, question):
        """The answer, or None: a card may support none of it."""
        try:
            answer = question()
        except self.nvml.NVMLError:
            return None
        return None if answer == "N/A" else answer


def find_foreign(pids, own):
    """The processes on the card that are not this one."""
    return [p for p in pids if p != own] if own in pids else sorted(pids)[1:]


def as_argument(nvml, uuid):
    """The UUID as this pynvml wants it: text, or bytes in old ones."""
    text = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    return text if int(getattr(nvml, "__version__", "12").split(".")[0]) >= 11 else text.encode()


def open_reader(vendor, uuid):
    """The reader for this card, or a NoReader that says why there is none."""
    if vendor != "nvidia":
        return NoReader(f"no reader for {vendor}")
    if not uuid:
        return NoReader("torch does not tell the card's UUID")
    try:
        import pynvml
    except ImportError:
        return NoReader("pynvml is not installed (pip install nvidia-ml-py)")
    try:
        return NvmlReader(pynvml, uuid)
    except Exception as error:  # noqa: BLE001 - NVMLError of whatever pynvml this is; timing goes on without it
        return NoReader(f"NVML: {error}")
