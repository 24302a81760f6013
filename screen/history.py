"""What earlier screens in the same RUNS say of the operators: how long each took, where, and when it was measured.

Of each operator the newest marker counts that a screen on the same kind of card and of the same suite left; screens with
the same knobs of run_pytest.sh come before the others, whose seconds are still better than none.

Requirements: the standard library.
"""

import csv
import statistics
from dataclasses import dataclass

from common.inputs import list_knobs
from common.state import read_marker
from screen import directory

LOOK_BACK = 5       # screens that are asked for latencies


@dataclass(frozen=True)
class Past:
    """The last time that an operator was measured. `device` is "" unless that screen was balanced."""
    seconds: float
    finished: str
    inputs_sha256: str
    device: str = ""


def read_past(screen, keys):
    """{(repo, op): Past} for those of `keys` that some earlier screen beside `screen` has measured."""
    past, lacking = {}, set(keys)
    for run, facts in list_earlier(screen):
        is_balanced = facts["knobs"].get("SHARD") == "balanced"
        for key in sorted(lacking):
            marker = read_marker(run / key[0] / key[1])
            if marker and "seconds" in marker:
                past[key] = Past(float(marker["seconds"]), marker.get("finished", ""), marker.get("inputs_sha256", ""),
                                 marker.get("device", "") if is_balanced else "")
        lacking -= past.keys()
        if not lacking:
            break
    return past


def read_drift(screen):
    """{(repo, op): latencies of the newest screen that has them over those of the one before}, 1.2: 20 % slower. Geometric mean
    over the rows that both have, measured in the same way; none from the host device."""
    newest, drift = {}, {}
    for run, _ in list_earlier(screen)[:LOOK_BACK]:
        for key, rows in _read_latencies(run / "summary.csv").items():
            after = newest.setdefault(key, rows)
            both = rows.keys() & after.keys()
            if after is not rows and both and key not in drift:
                drift[key] = statistics.geometric_mean(after[row] / rows[row] for row in both)
    return drift


def list_earlier(screen):
    """[(directory, its screen.json)] of the screens that may be asked, the best first."""
    found = [(run, facts) for run, facts in directory.list_screens(screen.runs)
             if run != screen.run and facts.get("models") == screen.models
             and (facts["knobs"].get("SUITE") or "benchmark") == (screen.environ.get("SUITE") or "benchmark")]
    return sorted(found, key=lambda item: _list_other_knobs(item[1], screen) != [])     # stable: the newest first


def _list_other_knobs(facts, screen):
    return [name for name in list_knobs() if facts["knobs"].get(name, "") != screen.environ.get(name, "")]


def _read_latencies(path):
    """{(repo, op): {row: ms}} of a summary.csv; what cannot be read is left out: it only decides who comes first."""
    found = {}
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as stream:
            for line in csv.DictReader(stream):
                if line.get("row_status") == "SUCCESS" and line["cache"] != "host" and float(line["latency_ms"] or 0) > 0:
                    row = tuple(line[name] for name in ("dtype", "mode", "timer", "cache", "shape"))
                    found.setdefault((line["repo"], line["op"]), {})[row] = float(line["latency_ms"])
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        pass
    return found
