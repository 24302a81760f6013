"""classify.py - one class and one reason for every task of a campaign: pure and total.

    classify_task(facts, timing, noise) -> Verdict(task, "C", "inside-noise", "ratio 0.998 and 1.001, ...")

The order of the tests is the order of the code: X for broken evidence, F, B or R by topology, X for missing timing,
G, R, C. Whatever the facts hold, there is an answer; REASONS is the closed set of them.

Requirements: the standard library. Limits: no input or output; campaign/evidence.py makes the facts from files.
"""
from dataclasses import dataclass, field

CELLS = ("off", "mask0", "candidate")
CLASSES = {"G": "gain", "R": "regression", "C": "converts only", "B": "baseline", "F": "failed", "X": "untrusted"}
REASONS = {
    "cell-missing": ("X", "a cell of round a was not run"),
    "cell-crashed": ("X", "a cell was killed or ended before pytest did"),
    "cell-timeout": ("X", "a cell was stopped at its time limit"),
    "off-failed": ("X", "the benchmark fails with the switch off"),
    "cell-failed": ("X", "the benchmark fails in mask0 or in the candidate"),
    "dump-broken": ("X", "a TTGIR cannot be joined to the index, or the index is broken"),
    "record-broken": ("X", "off recorded no configs, or a replay did not use the record in every launch"),
    "no-proof": ("X", "a kernel's own metadata do not say that this cell's compiler made it"),
    "switch-not-in-key": ("X", "off and candidate share a variant hash: the switch is not in the compile key"),
    "no-launches": ("X", "no launches above the floor"),
    "launches-differ": ("X", "the cells did not run the same kernels equally often"),
    "placebo-differs": ("X", "mask0 emitted other code than off"),
    "correctness-missing": ("X", "a correctness run is missing, crashed, timed out or ran no test"),
    "off-incorrect": ("X", "the correctness tests fail with the switch off"),
    "mask0-incorrect": ("F", "correct with off, wrong with mask0"),
    "candidate-incorrect": ("F", "correct with off, wrong with the candidate"),
    "nothing-to-remove": ("B", "off has no converts above the floor, and the code is the same"),
    "identical-code": ("B", "the candidate emitted off's code"),
    "changed-without-reduction": ("B", "other code, but no converts less"),
    "no-timing": ("X", "a reduction, and this campaign takes no times"),
    "no-round-b": ("X", "a reduction without round-b timing"),
    "timing-invalid": ("X", "a time is missing, no time, or taken in another way than its partner"),
    "noise-unusable": ("X", "the campaign's own false alarms are beyond twice the nominal level, or it has no placebo"),
    "faster": ("G", "faster beyond the noise in both rounds"),
    "slower": ("R", "slower beyond the noise in both rounds"),
    "slower-without-reduction": ("R", "other code, no converts less, and slower beyond the noise in both rounds"),
    "identical-binaries": ("C", "converts less, but the machine code is the same"),
    "rounds-disagree": ("C", "beyond the noise in one round only, or in opposite directions"),
    "rows-disagree": ("C", "some rows are faster and some slower beyond the noise"),
    "not-significant": ("C", "beyond the band in both rounds, but no row stands after correction for the planned rows"),
    "inside-noise": ("C", "no difference beyond the noise"),
}


@dataclass(frozen=True)
class CellFacts:
    """One cell in round a. `status`: ok, failed, crashed, timeout, missing. `kernels`: sorted (kernel, launches) above
    the floor; `code` and `binaries`: digests of what they are; `hashes`: variant hashes above the floor; `proven`: each
    kernel's metadata say it is of this cell; `replay`: "" or what was wrong with record and replay."""
    status: str = "missing"
    detail: str = ""
    errors: tuple = ()
    kernels: tuple = ()
    converts: int = 0
    unscoped: int = 0
    excluded: int = 0
    code: str = ""
    binaries: str = ""
    hashes: frozenset = frozenset()
    proven: bool = False
    replay: str = ""


@dataclass(frozen=True)
class TaskFacts:
    """What a campaign knows of one task at one floor. `correctness`: {cell: passed, failed, or anything else}."""
    task: str
    cells: dict = field(default_factory=dict)
    correctness: dict = field(default_factory=dict)

    def cell(self, name):
        return self.cells.get(name) or CellFacts()

    @property
    def has_reduction(self):
        return self.cell("candidate").converts < self.cell("off").converts

    @property
    def is_changed(self):
        return self.cell("candidate").code != self.cell("off").code


@dataclass(frozen=True)
class Timing:
    """The times of a task, judged (campaign/timing.py). `state`: none (the campaign takes none), no-b, invalid, ok.
    Ratios are candidate over off, below 1 is faster; per round `direction_*` is faster, slower or "" beyond the noise;
    `rows_faster`, `rows_slower`: rows that stand after Benjamini-Hochberg over the planned rows."""
    state: str = "none"
    detail: str = ""
    ratio_a: float | None = None
    ratio_b: float | None = None
    low: float | None = None
    high: float | None = None
    mde: float | None = None
    direction_a: str = ""
    direction_b: str = ""
    rows_faster: int = 0
    rows_slower: int = 0


@dataclass(frozen=True)
class Verdict:
    task: str
    klass: str
    reason: str
    detail: str = ""


def classify_task(facts, timing, noise_is_usable):
    """The Verdict of one task. `noise_is_usable`: False where the campaign's own noise forbids verdicts by time."""
    reason, detail = (find_broken_evidence(facts) or find_failure(facts) or judge_topology(facts, timing, noise_is_usable)
                      or judge_timing(facts, timing, noise_is_usable))
    return Verdict(facts.task, REASONS[reason][0], reason, detail)


def judge_canary(facts, wanted):
    """What is wrong with a canary, or ""."""
    broken = find_broken_evidence(facts) or find_failure(facts)
    if broken:
        return f"{broken[0]} {broken[1]}".strip()
    counts = f"{facts.cell('off').converts} converts with off, {facts.cell('candidate').converts} with the candidate"
    if wanted == "reduction" and not facts.has_reduction:
        return f"must show a reduction, and has {counts}: the switch did not engage"
    if wanted == "identical" and facts.is_changed:
        return f"must have the same code with the candidate, and has other code ({counts})"
    return ""


# X for broken evidence ---------------------------------------------------------------------------------------------


def find_broken_evidence(facts):
    """(reason, detail) or None."""
    for check in (find_bad_end, find_bad_dump, find_bad_record, find_missing_proof, find_bad_launches, find_placebo,
                  find_bad_correctness):
        found = check(facts)
        if found:
            return found
    return None


def find_bad_end(facts):
    for name in CELLS:
        cell = facts.cell(name)
        if cell.status == "ok":
            continue
        reason = {"crashed": "cell-crashed", "timeout": "cell-timeout", "missing": "cell-missing"}.get(
            cell.status, "off-failed" if name == "off" else "cell-failed")
        return reason, f"{name}: {cell.detail or cell.status}"
    return None


def find_bad_dump(facts):
    for name in CELLS:
        if facts.cell(name).errors:
            return "dump-broken", f"{name}: {facts.cell(name).errors[0]}"
    return None


def find_bad_record(facts):
    for name in CELLS:
        if facts.cell(name).replay:
            return "record-broken", f"{name}: {facts.cell(name).replay}"
    return None


def find_missing_proof(facts):
    for name in CELLS:
        if facts.cell(name).kernels and not facts.cell(name).proven:
            return "no-proof", f"{name}: a kernel's metadata name another compiler, or none"
    shared = facts.cell("off").hashes & facts.cell("candidate").hashes
    return ("switch-not-in-key", f"variant {min(shared)} is in both") if shared else None


def find_bad_launches(facts):
    for name in CELLS:
        if not facts.cell(name).kernels:
            return "no-launches", f"{name}: {facts.cell(name).excluded} variants, none above the floor"
    off = facts.cell("off").kernels
    for name in CELLS[1:]:
        other = facts.cell(name).kernels
        if other != off:
            odd = min(set(other) ^ set(off), default=off[0])
            return "launches-differ", f"{name}: {odd[0]} ran otherwise than with off"
    return None


def find_placebo(facts):
    off, mask0 = facts.cell("off"), facts.cell("mask0")
    if off.code != mask0.code:
        return "placebo-differs", f"off has {off.converts} converts, mask0 {mask0.converts}"
    return None


def find_bad_correctness(facts):
    for name in CELLS:
        outcome = facts.correctness.get(name)
        if outcome not in ("passed", "failed"):
            return "correctness-missing", f"{name}: {outcome or 'not run'}"
    return ("off-incorrect", "") if facts.correctness["off"] == "failed" else None


# F, topology, time -------------------------------------------------------------------------------------------------


def find_failure(facts):
    for name in ("mask0", "candidate"):
        if facts.correctness[name] == "failed":
            return f"{name}-incorrect", ""
    return None


def judge_topology(facts, timing, noise_is_usable):
    """(reason, detail) where no converts fell, else None."""
    off, candidate = facts.cell("off"), facts.cell("candidate")
    if facts.has_reduction:
        return None
    if not facts.is_changed:
        return ("identical-code" if off.converts else "nothing-to-remove"), f"{off.converts} converts in both"
    counts = f"{off.converts} converts with off, {candidate.converts} with the candidate"
    if noise_is_usable and find_direction(timing) == "slower" and candidate.binaries != off.binaries:
        return "slower-without-reduction", f"{counts}; {describe_ratios(timing)}"
    return "changed-without-reduction", counts


def judge_timing(facts, timing, noise_is_usable):
    """(reason, detail) for a task whose converts fell."""
    counts = f"{facts.cell('off').converts} -> {facts.cell('candidate').converts} converts"
    missing = {"none": "no-timing", "no-b": "no-round-b", "ok": ""}.get(timing.state, "timing-invalid")
    if missing:
        return missing, f"{counts}; {timing.detail}".removesuffix("; ")
    if not noise_is_usable:
        return "noise-unusable", counts
    detail = f"{counts}; {describe_ratios(timing)}"
    if facts.cell("off").binaries == facts.cell("candidate").binaries:
        return "identical-binaries", detail
    return name_time_reason(timing), detail


def name_time_reason(timing):
    direction = find_direction(timing)
    if direction:
        return direction
    if timing.direction_a != timing.direction_b:
        return "rounds-disagree"
    if timing.rows_faster and timing.rows_slower:
        return "rows-disagree"
    return "not-significant" if timing.direction_a else "inside-noise"


def find_direction(timing):
    """faster or slower if both rounds say so, a row of it stands after correction, and none says the opposite; else ""."""
    if timing.state != "ok" or not timing.direction_a or timing.direction_a != timing.direction_b:
        return ""
    faster = timing.direction_a == "faster"
    standing, opposite = (timing.rows_faster, timing.rows_slower) if faster else (timing.rows_slower, timing.rows_faster)
    return timing.direction_a if standing and not opposite else ""


def describe_ratios(timing):
    def show(value):
        return "?" if value is None else f"{value:.4f}"

    return f"ratio {show(timing.ratio_a)} in round a, {show(timing.ratio_b)} in round b, MDE {show(timing.mde)}"


# Another floor -----------------------------------------------------------------------------------------------------


def demote(sealed, fresh):
    """The Verdict under another floor: `fresh` where that is no promotion of `sealed`.

    X and F stay what they are. A claim (G, R, C) may stand, fall to B because its reduction lies below the floor, or
    fall to X; nothing becomes a claim that was none: a reduction that appears under the new floor has no round b.
    """
    if sealed.klass in ("X", "F"):
        return sealed
    if fresh.klass in ("B", "X", sealed.klass):
        return fresh
    return Verdict(sealed.task, "X", "no-round-b", f"sealed as {sealed.klass}; under this floor it would be {fresh.klass}")
