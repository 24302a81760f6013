"""Which devices a screen may use, and the environment that shows a child exactly one of them.

A device is an opaque string in the caller's order: `6`, `GPU-5f2c...`, `MIG-...`; `host:0`, `host:1`, ... are
slots of the host device. The selection is, in this order:

    DEVICES                          6,7 or GPU-...,GPU-... or host:0,host:1
    HOST_TARGET set                  the host device
    the vendor's visible variable    CUDA_VISIBLE_DEVICES=4,6 gives the devices 4 and 6, not 0 and 1
    all that torch counts            asked in a child, with a deadline
    nothing                          torch sees no accelerator: the host device, one slot per core, at most 4

Requirements: the standard library here; torch only in the child that is asked (ask_torch.py). Limits: a vendor that torch does
not reveal is taken for a CUDA one; GEMS_VENDOR says better.
"""

import json
import os
import shlex
import sys
from dataclasses import dataclass, field

from common.ask_torch import ask_count
from common.errors import REFUSED, USAGE, UserError, run_main
from common.inputs import split_list

HOST = "host"
DEFAULT_TARGET = "cuda:90"
MAX_HOST_SLOTS = 4
# Variables that select devices, per vendor as flag_gems names it (read and measured upstream); all others: CUDA.
# Where a vendor has two, both get the same value.
VISIBLE = {
    "metax": ("MACA_VISIBLE_DEVICES",),
    "mthreads": ("MUSA_VISIBLE_DEVICES",),
    "hygon": ("HIP_VISIBLE_DEVICES",),
    "ascend": ("ASCEND_RT_VISIBLE_DEVICES", "NPU_VISIBLE_DEVICES"),
    "cambricon": ("MLU_VISIBLE_DEVICES",),
    "iluvatar": ("ILUVATAR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "tsingmicro": ("TXDA_VISIBLE_DEVICES",),
    "sunrise": ("TANG_VISIBLE_DEVICES",),
    "enflame": ("TOPS_VISIBLE_DEVICES",),
}
CUDA = ("CUDA_VISIBLE_DEVICES",)
ALL_VARIABLES = tuple(dict.fromkeys(CUDA + sum(VISIBLE.values(), ())))

@dataclass(frozen=True)
class Device:
    """`name` as the caller wrote it; `vendor` as flag_gems names it, `host` for the host device. `model`, `uuid` and `arch`
    (9.0, gfx942) as torch says them, "" where it does not."""
    name: str
    vendor: str
    model: str = field(default="", compare=False)
    uuid: str = field(default="", compare=False)
    arch: str = field(default="", compare=False)

    @property
    def is_host(self):
        return self.vendor == HOST

    @property
    def identity(self):
        """Which physical device of this machine it is, whatever it is called."""
        return self.uuid or f"{self.vendor}-{self.name}"


def visible_variables(vendor):
    """The variables that select devices of `vendor`."""
    return VISIBLE.get(vendor, CUDA)


def child_environment(device, environ, slots=1):
    """Changes to `environ` for a child that may use only `device`: {variable: value, or None to unset it}.

    `slots` is the number of children that run at the same time; host slots share the cores between them.
    """
    if device.is_host:
        changes = {name: "" for name in ALL_VARIABLES}
        changes["HOST_TARGET"] = environ.get("HOST_TARGET") or DEFAULT_TARGET
        if not environ.get("OMP_NUM_THREADS"):
            changes["OMP_NUM_THREADS"] = str(max(1, count_cores() // max(1, slots)))
        return changes
    changes = {name: device.name for name in visible_variables(device.vendor)}
    # The numbers of nvidia-smi and not "fastest first", so that 6 is the same card for every tool.
    changes["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    changes["HOST_TARGET"] = None
    return changes


def apply_changes(environ, changes):
    """A copy of `environ` with `changes` as child_environment returns them."""
    merged = {**environ, **{name: value for name, value in changes.items() if value is not None}}
    for name, value in changes.items():
        if value is None:
            merged.pop(name, None)
    return merged


def count_cores():
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def select_devices(environ, python):
    """The devices to use, in the caller's order. See the top of this file.

    UserError USAGE for a selection that contradicts itself, REFUSED for a device that does not exist.
    """
    wanted = _split(environ.get("DEVICES"))
    _refuse_duplicates("DEVICES", wanted)
    if any(name.startswith("host") for name in wanted):
        return _read_host_slots(wanted)
    if not wanted and environ.get("HOST_TARGET"):
        return default_host_slots()
    probe = ask_count(python, environ)
    if probe["count"] == 0:
        _refuse_unseen(wanted, environ)
        return default_host_slots()
    vendor = probe["vendor"]
    listed = _read_listed(vendor, environ)
    outside = [name for name in wanted if listed is not None and name not in listed]
    if outside:
        raise UserError(f"DEVICES: {outside[0]}: not in {visible_variables(vendor)[0]}={','.join(listed)}; name devices "
                        f"of that list, or unset the variable")
    names = wanted or listed or [str(number) for number in range(probe["count"])]
    counted = all(name.isdigit() and int(name) < probe["count"] for name in names)
    if not (counted if listed is None else probe["count"] == len(listed)):
        _refuse_missing(names, vendor, environ, python)
    devices = [_identify(name, vendor, listed, probe["cards"]) for name in names]
    _refuse_same_card(devices)
    return devices


def default_host_slots():
    """One host slot per core, at most MAX_HOST_SLOTS: each child needs 1 to 2 GB."""
    return [Device(f"host:{number}", HOST) for number in range(min(MAX_HOST_SLOTS, count_cores()))]


def _split(text):
    """The names of a list; 03 is 3, as it is for the vendors' libraries."""
    return [str(int(name)) if name.isdecimal() else name for name in split_list(text)]


def _identify(name, vendor, listed, cards):
    """The Device `name`; `cards` are those visible now, in the order of `listed`, or numbered where that is None."""
    order = [str(number) for number in range(len(cards))] if listed is None else listed
    short = name.lower().removeprefix("gpu-")       # a UUID may be cut: CUDA takes what is unambiguous
    card = next((card for number, card in zip(order, cards) if name == number and len(order) == len(cards)), None)
    card = card or next((card for card in cards if len(short) > 3 and card["uuid"].startswith(short)), {})
    uuids = [each["uuid"] for each in cards]
    is_known = not name.startswith("MIG") and uuids.count(card.get("uuid")) == 1     # some stacks give all cards one UUID
    return Device(name, vendor, card.get("model", ""), card["uuid"] if is_known else "", card.get("arch", ""))


def _refuse_same_card(devices):
    for number, device in enumerate(devices):
        for other in devices[:number]:
            if device.identity == other.identity:
                raise UserError(f"DEVICES: {device.name}: is the same card as {other.name}; name each device once")


def _refuse_duplicates(variable, names):
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"{variable}: {twice[0]}: named twice; two timings on one device at the same time are "
                        f"worthless, name each device once")


def _read_host_slots(wanted):
    for name in wanted:
        kind, _, number = name.partition(":")
        if kind != HOST or not number.isdigit():
            raise UserError(f"DEVICES: {name}: host slots are written host:0,host:1,... and not mixed with devices")
    return [Device(name, HOST) for name in wanted]


def _read_listed(vendor, environ):
    """The caller's own list in the vendor's variable, or None where it is unset."""
    variables = [name for name in visible_variables(vendor) if environ.get(name) is not None]
    lists = {name: _split(environ[name]) for name in variables}
    if len({tuple(names) for names in lists.values()}) > 1:
        raise UserError(" and ".join(f"{name}={environ[name]}" for name in variables)
                        + ": select different devices; set one of them")
    for name, names in lists.items():
        _refuse_duplicates(name, names)
    return lists[variables[0]] if variables else None


def _refuse_unseen(wanted, environ):
    """torch sees no accelerator: an error if the caller named some, for the host device is no substitute."""
    mend = "check the driver and that this Python's torch is built for it, or take the host device: DEVICES=host:0"
    if wanted:
        raise UserError(f"DEVICES: {wanted[0]}: does not exist: torch sees no accelerator; {mend}", REFUSED)
    for name in ALL_VARIABLES:
        listed = [entry for entry in _split(environ.get(name)) if entry != "-1"]
        if listed:
            raise UserError(f"{name}: {listed[0]}: does not exist: torch sees no accelerator; {mend}", REFUSED)


def _refuse_missing(names, vendor, environ, python):
    """Ask for each of `names` alone (a MIG instance is only visible alone); UserError for those not there."""
    for name in names:
        alone = apply_changes(environ, child_environment(Device(name, vendor), environ))
        if ask_count(python, alone)["count"] != 1:
            total = ask_count(python, apply_changes(environ, {each: None for each in visible_variables(vendor)}))
            raise UserError(f"DEVICES: {name}: does not exist: with {visible_variables(vendor)[0]}={name} torch sees no "
                            f"device, and {total['count']} without; choose others", REFUSED)


def _print_one(device):
    """Shell lines that show a child `device` alone, and DEVICE, its name."""
    for name, value in child_environment(device, os.environ).items():
        print(f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}")
    print(f"export DEVICE={shlex.quote(device.name)}")


def print_warmup(count):
    """`python -m common.devices warmup N`: shell lines that show a child the first device alone, DEVICE, its name, and
    PARALLEL_WARMUP_DEVICES, the first N with their variables."""
    if not count.isdecimal() or int(count) < 1:
        raise UserError(f"PARALLEL_WARMUP_GPUS: {count}: is no number of devices; give one, as PARALLEL_WARMUP_GPUS=2")
    devices = select_devices(os.environ, sys.executable)
    names = ", ".join(device.name for device in devices)
    if int(count) > len(devices):
        raise UserError(f"PARALLEL_WARMUP_GPUS: {count}: only {len(devices)} can be used here ({names}); ask for fewer, or "
                        f"select more: DEVICES=6,7 (an operator of a screen has one device)")
    _print_one(devices[0])
    shown = [{"device": device.name, "environ": child_environment(device, os.environ, int(count))}
             for device in devices[:int(count)]]
    print(f"export PARALLEL_WARMUP_DEVICES={shlex.quote(json.dumps(shown))}")


def main(argv):
    """The one command; USAGE for anything else."""
    return print_warmup(argv[1]) if len(argv) == 2 and argv[0] == "warmup" else USAGE


if __name__ == "__main__":
    run_main(main)
