"""campaign/classify.py: every reason code has a case, the order of the tests, and properties over random facts."""
import random
from dataclasses import replace

import pytest

from campaign.classify import CELLS, CLASSES, REASONS, CellFacts, TaskFacts, Timing, Verdict, classify_task, demote

KERNELS = (("rand_kernel", 2),)
OFF = CellFacts("ok", "", (), KERNELS, 4, 4, 0, "code-off", "bin-off", frozenset({"h-off"}), True, "")
MASK0 = replace(OFF, hashes=frozenset({"h-mask0"}))
CANDIDATE = replace(OFF, converts=0, unscoped=0, code="code-new", binaries="bin-new", hashes=frozenset({"h-new"}))
PASSED = {"off": "passed", "mask0": "passed", "candidate": "passed"}
NOTHING = Timing("ok", "", 1.0, 1.0, 0.99, 1.01, 0.02)
FASTER = Timing("ok", "", 0.8, 0.81, 0.78, 0.83, 0.02, "faster", "faster", 2, 0)
SLOWER = Timing("ok", "", 1.2, 1.21, 1.18, 1.23, 0.02, "slower", "slower", 0, 2)


def make_facts(correctness=PASSED, **cells):
    return TaskFacts("t", {"off": OFF, "mask0": MASK0, "candidate": CANDIDATE, **cells}, correctness)


SAME = make_facts(candidate=replace(CANDIDATE, converts=4, code="code-off", binaries="bin-off"))
CHANGED = make_facts(candidate=replace(CANDIDATE, converts=4))

# reason: (facts, timing, whether the campaign's noise is usable)
CASES = {
    "cell-missing": (TaskFacts("t"), FASTER, True),
    "cell-crashed": (make_facts(candidate=replace(CANDIDATE, status="crashed")), FASTER, True),
    "cell-timeout": (make_facts(mask0=replace(MASK0, status="timeout")), FASTER, True),
    "off-failed": (make_facts(off=replace(OFF, status="failed")), FASTER, True),
    "cell-failed": (make_facts(candidate=replace(CANDIDATE, status="failed")), FASTER, True),
    "dump-broken": (make_facts(mask0=replace(MASK0, errors=("ir/a-1.ttgir: is missing",))), FASTER, True),
    "record-broken": (make_facts(candidate=replace(CANDIDATE, replay="libtuner: fallback=1")), FASTER, True),
    "no-proof": (make_facts(candidate=replace(CANDIDATE, proven=False)), FASTER, True),
    "switch-not-in-key": (make_facts(candidate=replace(CANDIDATE, hashes=OFF.hashes)), FASTER, True),
    "no-launches": (make_facts(off=replace(OFF, kernels=(), excluded=3)), FASTER, True),
    "launches-differ": (make_facts(candidate=replace(CANDIDATE, kernels=(("rand_kernel", 4),))), FASTER, True),
    "placebo-differs": (make_facts(mask0=replace(MASK0, code="code-odd")), FASTER, True),
    "correctness-missing": (make_facts({"off": "passed", "mask0": "passed"}), FASTER, True),
    "off-incorrect": (make_facts({**PASSED, "off": "failed", "candidate": "failed"}), FASTER, True),
    "mask0-incorrect": (make_facts({**PASSED, "mask0": "failed"}), FASTER, True),
    "candidate-incorrect": (make_facts({**PASSED, "candidate": "failed"}), FASTER, True),
    "nothing-to-remove": (make_facts(off=replace(OFF, converts=0), mask0=replace(MASK0, converts=0),
                                     candidate=replace(CANDIDATE, code="code-off")), SLOWER, True),
    "identical-code": (SAME, SLOWER, True),
    "changed-without-reduction": (CHANGED, FASTER, True),
    "no-timing": (make_facts(), Timing("none"), True),
    "no-round-b": (make_facts(), Timing("no-b"), True),
    "timing-invalid": (make_facts(), Timing("invalid"), True),
    "noise-unusable": (make_facts(), FASTER, False),
    "faster": (make_facts(), FASTER, True),
    "slower": (make_facts(), SLOWER, True),
    "slower-without-reduction": (CHANGED, SLOWER, True),
    "identical-binaries": (make_facts(candidate=replace(CANDIDATE, binaries="bin-off")), FASTER, True),
    "rounds-disagree": (make_facts(), replace(FASTER, direction_b=""), True),
    "rows-disagree": (make_facts(), replace(FASTER, rows_slower=1), True),
    "not-significant": (make_facts(), replace(FASTER, rows_faster=0), True),
    "inside-noise": (make_facts(), NOTHING, True),
}


def test_every_reason_has_a_case_and_every_class_a_reason():
    assert set(CASES) == set(REASONS)
    assert {klass for klass, _ in REASONS.values()} == set(CLASSES)


@pytest.mark.parametrize("reason", CASES)
def test_reason(reason):
    verdict = classify_task(*CASES[reason])
    assert (verdict.reason, verdict.klass) == (reason, REASONS[reason][0])


def test_broken_evidence_comes_before_a_failure_and_a_failure_before_topology():
    wrong = {**PASSED, "candidate": "failed"}
    assert classify_task(make_facts(wrong, mask0=replace(MASK0, code="odd")), FASTER, True).reason == "placebo-differs"
    assert classify_task(replace(SAME, correctness=wrong), FASTER, True).reason == "candidate-incorrect"


def test_the_detail_names_cell_and_counts():
    assert classify_task(make_facts(candidate=replace(CANDIDATE, status="crashed", detail="killed by SIGSEGV")),
                         NOTHING, True).detail == "candidate: killed by SIGSEGV"
    assert classify_task(make_facts(), FASTER, True).detail == (
        "4 -> 0 converts; ratio 0.8000 in round a, 0.8100 in round b, MDE 0.0200")


# Properties ------------------------------------------------------------------------------------------------------


def make_random_cell(pick):
    return CellFacts(pick(["ok"] * 80 + ["failed", "crashed", "timeout", "missing", "new word"]), "",
                     pick([()] * 60 + [("ir/x: is cut",)]), pick([KERNELS] * 80 + [(), (("other", 1),)]),
                     pick([0, 0, 4, 4, 9]), pick([0, 9]), pick([0, 5]), pick(["c1", "c1", "c2"]), pick(["b1", "b1", "b2"]),
                     frozenset({f"h{pick(range(40))}"}), pick([True] * 60 + [False]), pick([""] * 60 + ["missed=1"]))


def make_random_task(pick):
    cells = {name: make_random_cell(pick) for name in CELLS if pick(range(40))}
    if pick(range(4)):  # mostly a placebo that holds, or most of all would be X
        cells["mask0"] = replace(cells.get("off", OFF), hashes=frozenset({"h-mask0"}))
    outcomes = ["passed"] * 60 + ["failed", "failed", "crashed", "timeout", "", None]
    return TaskFacts("t", cells, {name: pick(outcomes) for name in CELLS if pick(range(40))})


def make_random_timing(pick):
    directions = ["", "faster", "faster", "slower", "slower"]
    states = ["ok"] * 8 + ["none", "no-b", "invalid", "new word"]
    return Timing(pick(states), "", *(pick([None, 0.5, 1.0, 2.0]) for _ in range(5)),
                  pick(directions), pick(directions), pick([0, 0, 1]), pick([0, 0, 1]))


@pytest.fixture(scope="module")
def random_cases():
    pick = random.Random(20261130).choice
    return [(make_random_task(pick), make_random_timing(pick), pick([True, True, False])) for _ in range(12000)]


def test_classify_is_total(random_cases):
    verdicts = [classify_task(*case) for case in random_cases]
    assert {v.klass for v in verdicts} == set(CLASSES)
    assert all(REASONS[v.reason][0] == v.klass for v in verdicts)
    assert len({v.reason for v in verdicts}) > 20  # the generator reaches nearly all of them


def test_another_floor_never_promotes(random_cases):
    """Same correctness, times and noise; other counts. A claim may stand or fall, nothing becomes one."""
    seen = set()
    for number, ((facts, timing, usable), (other, _, _)) in enumerate(zip(random_cases, random_cases[1:])):
        other = facts if number % 3 == 0 else other  # a floor that changes nothing is a floor too
        sealed = classify_task(facts, timing, usable)
        result = demote(sealed, classify_task(replace(other, correctness=facts.correctness), timing, usable))
        assert result.klass in {"G": "GBX", "R": "RBX", "C": "CBX", "B": "BX", "F": "F", "X": "X"}[sealed.klass]
        seen.add(sealed.klass + result.klass)
    assert {"GG", "GB", "GX", "RB", "CB", "CX", "BB", "BX", "FF", "XX"} <= seen


def test_the_same_floor_is_the_identity(random_cases):
    for case in random_cases:
        verdict = classify_task(*case)
        assert demote(verdict, classify_task(*case)) == verdict


def test_a_reduction_that_appears_under_another_floor_has_no_round_b():
    sealed = classify_task(CHANGED, FASTER, True)
    assert sealed.klass == "B"
    assert demote(sealed, classify_task(make_facts(), FASTER, True)) == Verdict(
        "t", "X", "no-round-b", "sealed as B; under this floor it would be G")
