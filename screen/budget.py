"""BUDGET: a screen that ends in time. Which operators come first, and which are still begun.

    read_budget("90m") == 5400.0
    never measured                  first, by name
    changed since, or run again     then: other sources, knobs, versions, card; what failed and RETRY_FAILED asks for
    slower than the time before     then, the worst first
    the rest                        what was measured longest ago first

An operator is begun only if by its recorded seconds (the median where it has none) it ends within the budget; what was begun
is finished, its repetitions too. What is left out is `left_out` in plan.csv and summary; the same call goes on with it, and a
new screen begins with what was measured longest ago.

Requirements: the standard library.
"""

import re
from dataclasses import dataclass

from common.errors import UserError

NEVER, AGAIN, KNOWN = range(3)
DRIFT = 1.05        # below that a night is like the last (docs/timing.md)
UNITS = {"h": 3600, "m": 60, "s": 1}


@dataclass(frozen=True)
class Need:
    """Why an operator should be measured. `drift`: its newest latencies over those before, 1 if nothing is known; `finished`:
    when it was measured last."""
    kind: int
    drift: float = 1.0
    finished: str = ""


def read_budget(text):
    """Seconds of `2h`, `1h30m`, `45s`; infinity of an empty text. UserError for anything else."""
    if not text:
        return float("inf")
    parts = re.fullmatch(r"(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?", text)
    seconds = sum(int(number) * UNITS[unit] for number, unit in zip(parts.groups(), UNITS) if number) if parts else 0
    if not seconds:
        raise UserError(f"BUDGET: {text}: is no time; give one, as BUDGET=2h, 1h30m, 45s")
    return float(seconds)


def order_by_need(needs):
    """The names of `needs` ({name: Need}), what matters most first."""
    def rank(name):
        need = needs[name]
        drift = need.drift if need.kind == KNOWN and need.drift > DRIFT else 1.0
        return need.kind, -drift, need.finished if need.kind == KNOWN else "", name
    return sorted(needs, key=rank)
