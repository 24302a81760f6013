"""plan.py - how often one replay calls the operator, and on how many copies of its inputs. Pure.

Cold means that a call finds nothing of what it touches in the L2. Two ways to get there, neither of which puts a
flush between two timed calls (clearing and subtracting is unfit for kernels of a few us):

  rotation  the calls of a replay go round over copies of the inputs, and each writes an output of its own, until at
            least twice the L2 has been written before an address is touched again. Counted by the outputs alone: of an
            input, a gather may touch little. `size`: one call's output is that large by itself.
  flush     where outputs are small: as many copies as calls, each touched once, and the L2 flushed before the replay,
            outside the timed span.

How the state is reached does not depend on what a call costs the host; how many calls a replay has does, so that a capture of
slow calls takes no half second.

An operator that changes its inputs is called once per copy in either state, and the copies are restored before each
replay, so that nothing compounds (x.mul_(1.5) a thousand times is inf).
"""
import math
from dataclasses import dataclass

COLD_FACTOR = 2          # times the L2
MAX_LAUNCHES = 1000      # a graph of 20,000 takes seconds to capture
REPLAY_MS = 5.0
SHORTEST_MS = 0.1        # of a timed span; events resolve 0.5 us
CAPTURE_MS = 50.0        # of the host, for one capture; more only for ENOUGH_MS, or a round of copies
ENOUGH_MS = 0.5          # of a replay whose calls cost the host much: one launch gap more or less in it, 0.85 us, is 0.17 %


class CannotPlan(Exception):
    """The wanted cache state cannot be had this way; the text says why."""


@dataclass(frozen=True)
class Facts:
    """What the warm-up found out. Bytes are those of distinct storages; `fixed` names state that cannot be copied; `host_ms` is
    what capturing a call costs, 0 where nothing is captured."""
    call_ms: float
    input_bytes: int
    output_bytes: int
    mutates: bool = False
    fixed: str = ""
    host_ms: float = 0.0


@dataclass(frozen=True)
class Room:
    """What the device has: its L2, and the memory that copies may take."""
    l2_bytes: int
    budget_bytes: int
    target_ms: float = REPLAY_MS
    shortest_ms: float = SHORTEST_MS
    max_launches: int = MAX_LAUNCHES


@dataclass(frozen=True)
class Plan:
    """`launches` calls per replay over `copies`; `how` says how the cache state is reached: rotation, size, flush, ''."""
    launches: int
    copies: int
    flush: bool
    restore: bool
    how: str


def plan_replay(facts, cache, room):
    """The Plan for `cache` ("cold" or "warm"). Raises CannotPlan."""
    wanted = min(room.max_launches, max(1, math.ceil(room.target_ms / max(facts.call_ms, 1e-6))))
    check_copies(facts, cache)
    launches = _spare_host(facts, wanted)
    if facts.mutates:
        copies = _count_single_use(facts, launches, room)
        return Plan(copies, copies, cache == "cold", True, "flush" if cache == "cold" else "restored")
    if cache == "warm":
        return Plan(launches, 1, False, False, "")
    rotated = math.ceil(COLD_FACTOR * room.l2_bytes / facts.output_bytes) if facts.output_bytes else math.inf
    if rotated <= wanted and (rotated == 1 or rotated * facts.input_bytes <= room.budget_bytes):
        return Plan(max(rotated, launches // rotated * rotated), rotated, False, False, "size" if rotated == 1 else "rotation")
    copies = _count_single_use(facts, launches, room)
    return Plan(copies, copies, True, False, "flush")


def check_copies(facts, cache):
    """Raise CannotPlan if copies are needed that cannot be made, however long a call takes."""
    if facts.mutates and facts.fixed:
        raise CannotPlan(f"the call changes its inputs, and {facts.fixed} cannot be restored")
    if facts.fixed and cache == "cold":
        raise CannotPlan(f"{facts.fixed} cannot be copied, it would stay in the L2")


def plan_probe(facts, calls, room):
    """The Plan of a few calls that show roughly how long one takes."""
    if facts.mutates and not facts.fixed:
        calls = max(1, min(calls, room.budget_bytes // max(1, facts.input_bytes)))
        return Plan(calls, calls, False, True, "restored")
    return Plan(calls, 1, False, False, "")


def _spare_host(facts, wanted):
    """Launches of a capture that costs the host no more than CAPTURE_MS, unless ENOUGH_MS of the device take more."""
    if not facts.host_ms:
        return wanted
    return min(wanted, max(math.ceil(CAPTURE_MS / facts.host_ms), math.ceil(ENOUGH_MS / max(facts.call_ms, 1e-6))))


def _count_single_use(facts, wanted, room):
    """Copies that are each used once per replay: as many as fit, if the timed span is long enough with them."""
    fit = room.budget_bytes // facts.input_bytes if facts.input_bytes else wanted
    copies = max(1, min(wanted, fit))
    if facts.mutates and fit < 1:
        raise CannotPlan(f"inputs of {facts.input_bytes / 2**20:.0f} MiB do not fit twice")
    if copies * facts.call_ms < room.shortest_ms and copies < wanted:
        raise CannotPlan(f"only {copies} copies of {facts.input_bytes / 2**20:.0f} MiB fit, too few for a timed span of "
                         f"{room.shortest_ms * 1e3:g} us")
    return copies


def find_coldness(plan, cache, input_bytes, room):
    """[a note] if the copies that a call which changes its inputs needs are too large for the L2 to stay warm."""
    total = plan.copies * input_bytes
    if cache != "warm" or plan.copies == 1 or total <= room.l2_bytes:
        return []
    return [f"not warm: {plan.copies} copies of the inputs, {total / 2**20:.0f} MiB, "
            f"are more than the L2 of {room.l2_bytes / 2**20:.0f}"]


def find_warmth(plan, input_bytes, written_bytes, room):
    """Why a replay that wrote `written_bytes` to distinct memory was not cold, or "". A check of what was captured."""
    if plan.how not in ("rotation", "size"):
        return ""
    need = COLD_FACTOR * room.l2_bytes
    if written_bytes >= need:
        return ""
    return (f"a replay wrote {written_bytes / 2**20:.1f} MiB (and read at most {input_bytes / 2**20:.1f}), "
            f"less than twice the L2, {need / 2**20:.0f} MiB")
