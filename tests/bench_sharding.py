#!/usr/bin/env python3
"""bench_sharding.py - how evenly each SHARD policy fills 1 to 64 devices: the wall time of a simulated screen over its bound.

USAGE    bench_sharding.py [OPS]      (1050 operators; `make bench`)
INPUT    None: 1,050 durations made from a log-normal distribution (median 15 s, longest 197 s: what operators of FlagGems take,
         in form, not a record of one screen), and two later nights on which each differs by 20 % (one standard deviation).
OUTPUT   A table. bound: seconds, the longest operator or the sum over the devices, whichever is more. Then each policy's wall
         time over it: by the recorded durations, and on a night whose durations are others (the bound is that night's).
         kept: operators that have the same device on the second night as on the first (balanced: `stored`).
           devices   bound    hash  balanced  queue   other night:  hash  balanced  queue   kept
                 8   2666 s   1.228     1.000  1.000                 1.229     1.029  1.000  100 %
EXIT     0; 1 if balanced is more than 5 % over the bound for the recorded durations
"""
import random
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from screen.sharding import POLICIES, SLACK, hash_name, shard

MEDIAN, SIGMA, NIGHT = 15.0, 0.78, 0.20
DEVICES = (1, 2, 4, 8, 16, 32, 64)


def main(argv):
    """Print the table; the exit status."""
    recorded = make_durations(int(argv[0]) if argv else 1050)
    tonight, later = vary(recorded, 1), vary(recorded, 2)
    print("devices   bound    hash  balanced  queue   other night:  hash  balanced  queue   kept")
    worst = 0.0
    for count in DEVICES:
        devices = [str(number) for number in range(count)]
        bound = find_bound(recorded, count)
        same = [simulate(policy, recorded, recorded, devices) / bound for policy in POLICIES]
        other = [simulate(policy, recorded, tonight, devices) / find_bound(tonight, count) for policy in POLICIES]
        kept = find_kept(recorded, [tonight, later], devices)
        print(f"{count:>7}{bound:>7.0f} s{same[0]:>8.3f}{same[1]:>10.3f}{same[2]:>7.3f}"
              f"{'':14}{other[0]:>8.3f}{other[1]:>10.3f}{other[2]:>7.3f}{kept:>6.0%}".replace("%", " %"))
        worst = max(worst, same[1])
    return int(worst > SLACK)


def make_durations(count):
    """{name: seconds} of `count` operators; the same ones every time."""
    names = sorted((f"main/op{number:04}" for number in range(count)), key=hash_name)
    normal = statistics.NormalDist()
    return {name: MEDIAN * 2.718281828 ** (SIGMA * normal.inv_cdf((rank + 0.5) / count)) for rank, name in enumerate(names)}


def vary(seconds, seed):
    """The durations of another night."""
    chance = random.Random(seed)
    return {name: value * chance.lognormvariate(0.0, NIGHT) for name, value in sorted(seconds.items())}


def find_bound(seconds, count):
    return max(sum(seconds.values()) / count, *seconds.values())


def simulate(policy, recorded, real, devices):
    """Seconds from the first start to the last end, of a screen that knows `recorded` and takes `real`."""
    queues = shard(policy, sorted(recorded), devices, recorded)
    clocks = dict.fromkeys(devices, 0.0)
    while any(queues.values()):
        free = min((device for device in devices if queues[device] or policy == "queue"), key=clocks.get)
        source = free
        if not queues[free]:        # as Scheduler._take_over does
            source = max(devices, key=lambda device: sum(recorded[name] for name in queues[device]))
        clocks[free] += real[queues[source].pop(0)]
    return max(clocks.values())


def find_kept(recorded, nights, devices):
    """The share of operators that keep their device over `nights`, each assigned by the night before."""
    first = place(shard("balanced", sorted(recorded), devices, recorded))
    now = first
    for seconds in nights:
        now = place(shard("balanced", sorted(seconds), devices, seconds, now))
    return sum(first[name] == now[name] for name in first) / len(first)


def place(shares):
    return {name: device for device, share in shares.items() for name in share}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
