"""What earlier screens in the same RUNS say of the operators: how long each took, where, and when it was measured.

Of each operator the newest marker counts that a screen on the same kind of card and of the same suite left; screens with
the same knobs of run_pytest.sh come before the others, whose seconds are still better than none.

Requirements: the standard library.
"""

from dataclasses import dataclass

from common.inputs import list_knobs
from common.state import read_marker
from screen import directory


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


def list_earlier(screen):
    """[(directory, its screen.json)] of the screens that may be asked, the best first."""
    found = [(run, facts) for run, facts in directory.list_screens(screen.runs)
             if run != screen.run and facts.get("models") == screen.models
             and (facts["knobs"].get("SUITE") or "benchmark") == (screen.environ.get("SUITE") or "benchmark")]
    return sorted(found, key=lambda item: _list_other_knobs(item[1], screen) != [])     # stable: the newest first


def _list_other_knobs(facts, screen):
    return [name for name in list_knobs() if facts["knobs"].get(name, "") != screen.environ.get(name, "")]
