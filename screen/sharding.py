"""Which device gets which operators, in which order. Pure: the same words and numbers give the same shares on every machine.

    shard("balanced", ["main/abs", "main/mm"], ["6", "7"], {"main/mm": 80.0}, {"main/abs": "7"})
    {"6": ["main/mm"], "7": ["main/abs"]}

    hash      by sha256 of the name: an operator meets the same device every night, whatever else is screened
    balanced  the longest first onto the device with the least to do, by recorded seconds. Who has a device from an earlier
              night (`stored`) keeps it, until the fullest device has more than SLACK of what the lower bound says: then as
              few as possible move
    queue     as balanced, nothing stored, and an idle device takes the longest operator that waits at the fullest one
              (scheduler.py): for one-off runs, for an operator then meets any device

The lower bound of the wall time is the longest operator, or the sum of all over the devices, whichever is more.
tests/bench_sharding.py measures what each costs. Within a device the operators of one tree stay together (its warm parent
is started once), the longest first where seconds are recorded. An operator that has none counts as the median.

Requirements: the standard library.
"""

import hashlib
import re
import statistics

from common.errors import UserError

POLICIES = ("hash", "balanced", "queue")
SLACK = 1.05


def shard(policy, names, devices, seconds=None, stored=None):
    """{device: names in order} of the operators `names` (`repo/op`). `seconds`: recorded, {name: s}; `stored`: {name: device}."""
    if policy == "hash":
        shares = {device: [] for device in devices}
        for name in names:
            shares[devices[hash_name(name) % len(devices)]].append(name)
        return shares
    typical = find_typical((seconds or {}).values())
    seconds = {name: (seconds or {}).get(name, typical) for name in names}
    shares = _pack(names, devices, seconds, stored if policy == "balanced" and stored else {})
    return {device: order_longest_first(share, seconds) for device, share in shares.items()}


def read_part(text):
    """(index, count) of `2/8`, the second of eight parts of a screen; None of an empty text. UserError for anything else."""
    if not text:
        return None
    index, count = map(int, text.split("/")) if re.fullmatch(r"\d{1,6}/\d{1,6}", text) else (0, 0)
    if not 1 <= index <= count:
        raise UserError(f"SHARD_INDEX: {text}: is no part of a screen; give i/n with i from 1 to n, as SHARD_INDEX=2/8")
    return index, count


def name_part(text):
    """What the name of a directory of that part ends with: `-2-of-8`, or nothing."""
    part = read_part(text)
    return f"-{part[0]}-of-{part[1]}" if part else ""


def is_in_part(name, index, count):
    """True if `name` belongs to part `index` (1 to `count`) of a screen that is cut into `count` parts. Independent of the hash
    that chooses a device: else a part would use one device of several."""
    return hash_name(f"part of {name}") % count == index - 1


def hash_name(name):
    """A number that is the same on every machine."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16)


def find_typical(seconds):
    """What an operator without a record counts as: the median of the recorded `seconds`, 1 if nothing is recorded."""
    return statistics.median(seconds) if seconds else 1.0


def order_longest_first(names, seconds):
    """`names` tree by tree, the longest first."""
    return sorted(names, key=lambda name: (name.partition("/")[0], -seconds[name], name))


def _pack(names, devices, seconds, stored):
    shares = {device: [] for device in devices}
    load = dict.fromkeys(devices, 0.0)

    def put(name, device):
        shares[device].append(name)
        load[device] += seconds[name]

    for name in names:
        if stored.get(name) in load:
            put(name, stored[name])
    for name in sorted(names, key=lambda name: (-seconds[name], name)):
        if stored.get(name) not in load:
            put(name, min(devices, key=load.get))
    bound = max([sum(seconds.values()) / len(devices), *seconds.values()], default=0.0)
    while stored and max(load.values()) > SLACK * bound:
        fullest, emptiest = max(devices, key=load.get), min(devices, key=load.get)
        gap = load[fullest] - load[emptiest]
        movable = [name for name in shares[fullest] if 0 < seconds[name] < gap]     # else the other one is the fullest then
        if not movable:
            break
        name = min(movable, key=lambda name: (abs(seconds[name] - gap / 2), name))
        shares[fullest].remove(name)
        load[fullest] -= seconds[name]
        put(name, emptiest)
    return shares
