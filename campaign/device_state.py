"""device_state.py - what the device under measurement is and does: identity, clocks, memory, other users.

    describe_device(device, environ)   {"name": "NVIDIA H200", "uuid": "GPU-...", "driver": "...", "memory_total_mib": "143771",
                                        "memory_used_mib": "4", "clock_sm_mhz": "345", "temperature_c": "31", "throttle": "0x0"}
    list_users(device, environ)        ["4711"]: processes on it;  None where the vendor's tools cannot say

NVIDIA is asked through nvidia-smi, with a deadline: a vendor tool can hang. Other vendors give {} and None: unknown, and
the receipt says so. Requirements: the standard library.
"""
import platform

from common.process import run_bounded

SECONDS = 30
FIELDS = {"uuid": "uuid", "name": "name", "driver": "driver_version", "memory_total_mib": "memory.total",
          "memory_used_mib": "memory.used", "clock_sm_mhz": "clocks.sm", "clock_sm_max_mhz": "clocks.max.sm",
          "clock_memory_mhz": "clocks.mem", "temperature_c": "temperature.gpu", "power_w": "power.draw",
          "throttle": "clocks_throttle_reasons.active"}
# Hardware slowdown, software and hardware thermal slowdown, power brake (nvml.h). The power cap and idle are normal.
THROTTLED = 0x8 | 0x20 | 0x40 | 0x80


def describe_device(device, environ):
    """Facts as texts; {} where nothing can be asked."""
    if device.is_host:
        return {"name": "host device", "machine": platform.machine()}
    if device.vendor != "nvidia":
        return {}
    answer = ask_smi(device, environ, f"--query-gpu={','.join(FIELDS.values())}")
    lines = (answer or "").strip().splitlines()
    values = [value.strip() for value in lines[0].split(",")] if len(lines) == 1 else []
    return dict(zip(FIELDS, values)) if len(values) == len(FIELDS) else {}


def list_users(device, environ):
    """Process ids on the device, or None if unknown. The host device is anyone's."""
    if device.is_host:
        return []
    if device.vendor != "nvidia":
        return None
    answer = ask_smi(device, environ, "--query-compute-apps=pid")
    return None if answer is None else answer.split()


def is_throttled(facts):
    """True if `facts` say that the device was slowed down by heat or power; unknown is not throttled."""
    try:
        return bool(int((facts or {}).get("throttle", "0"), 16) & THROTTLED)
    except ValueError:
        return False


def ask_smi(device, environ, query):
    """Output of one nvidia-smi query about the device, or None."""
    try:
        code, output = run_bounded(["nvidia-smi", query, "--format=csv,noheader,nounits", "-i", device.name], env=dict(environ),
                                   timeout=SECONDS)
    except OSError:
        return None
    return output if code == 0 else None
