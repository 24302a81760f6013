"""common/verdict.py: literal figures, and the rate of false alarms on figures without an effect."""
import random

import pytest

from common.verdict import adjust_bh, adjust_holm, compare_sides, find_gap_shift

STEADY = [1.000, 1.001, 0.999, 1.000, 1.001]


def test_faster_beyond_the_band():
    got = compare_sides(STEADY, [0.90, 0.901, 0.899, 0.90, 0.901], band=0.02)
    assert (got.verdict, got.rounds) == ("faster", 5)
    assert got.ratio == pytest.approx(0.9, abs=1e-4)
    assert 0.899 < got.low < got.ratio < got.high < 0.901
    assert 0 < got.mde < 0.002


def test_slower_beyond_the_band():
    assert compare_sides(STEADY, [1.1, 1.1, 1.101, 1.1, 1.099], band=0.02).verdict == "slower"


def test_same_needs_the_interval_inside_the_band():
    assert compare_sides(STEADY, [1.001, 1.000, 1.000, 0.999, 1.001], band=0.02).verdict == "same"


def test_noise_wider_than_the_band_is_ambiguous_and_says_what_could_be_seen():
    got = compare_sides([1.0, 1.2, 0.9], [1.1, 0.95, 1.2], band=0.02)
    assert got.verdict == "ambiguous"
    assert got.reason == f"effects below {got.mde:.1%} cannot be seen in 3 rounds"


def test_significant_but_small_is_ambiguous():
    got = compare_sides([1.0, 1.0, 1.0, 1.0], [1.018, 1.019, 1.0195, 1.0205], band=0.0195)
    assert (got.verdict, got.reason) == ("ambiguous", "a difference, but not beyond the band of 1.9%")


def test_what_the_launch_gap_may_have_done_is_no_effect():
    """10 % of a kernel of 1.7 us, and a launch that cost 0.18 us more on one side; of 170 us it is nothing."""
    base, candidate = [1.700e-3, 1.701e-3, 1.699e-3], [1.870e-3, 1.871e-3, 1.869e-3]
    shift = find_gap_shift(base + candidate, [(0.85, 1)] * 3 + [(1.03, 1)] * 3)
    assert shift == pytest.approx(0.18 / 1.699)
    found = compare_sides(base, candidate, 0.02, shift=shift)
    assert found.verdict == "ambiguous"
    assert found.reason == "effects below 11.2% cannot be seen in 3 rounds, 10.6% of it for a launch gap that moved"
    assert compare_sides(base, candidate, 0.02).verdict == "slower"
    assert find_gap_shift([1.7e-3, 1.7e-3], [(0.85, 1), (0.86, 1)]) == 0.0  # its own noise
    assert find_gap_shift([1.7e-3, 1.7e-3], [None, None]) == 0.0  # not measured


def test_a_call_of_several_kernels_holds_the_launch_gap_as_often():
    assert find_gap_shift([10e-3, 10e-3, 10e-3], [(0.85, 3), (1.03, 5), None]) == pytest.approx(5 * 0.18 / 10)


def test_t_interval_of_two_rounds():
    # d = ln 0.8, ln 0.9: mean -0.164252, s/sqrt n = 0.058892, t(0.975, 1) = 12.7062
    got = compare_sides([1.0, 1.0], [0.8, 0.9], band=0.02)
    assert (got.ratio, got.low, got.high) == pytest.approx((0.848528, 0.401506, 1.793243), rel=1e-4)


def test_equal_rounds_are_no_proof_that_there_is_no_noise():
    """Two rounds of 1.7 us against 1.8 us, to the nanosecond: rounding alone leaves 0.03 %."""
    exact, rounded = (compare_sides([0.0017] * 2, [0.0018] * 2, band=0.02, step=step) for step in (0.0, 1e-6))
    assert (exact.p_value, exact.mde) == (0.0, 0.0)
    # s = 1e-6 / 0.0017 / sqrt 6, over sqrt 2: 0.000170; t(0.975, 1) + t(0.8, 1) = 14.0826
    assert (rounded.verdict, rounded.mde) == ("slower", pytest.approx(0.0023942, rel=1e-3))
    assert rounded.p_value == pytest.approx(0.00189, rel=1e-2)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf"), None])
def test_what_is_no_time_is_invalid(wrong):
    got = compare_sides([1.0, 1.0], [1.0, wrong], band=0.02)
    assert (got.verdict, got.ratio) == ("invalid", None)


def test_unequal_rounds_are_invalid():
    assert compare_sides([1.0, 1.0], [1.0], band=0.02).verdict == "invalid"
    assert compare_sides([], [], band=0.02).verdict == "invalid"


def test_one_round_is_ambiguous():
    got = compare_sides([1.0], [0.5], band=0.02)
    assert (got.verdict, got.ratio) == ("ambiguous", 0.5)


def test_bh_and_holm_against_the_published_example():
    # Benjamini and Hochberg 1995, table: the first four are rejected at q = 0.05, Holm rejects three.
    p = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528,
         0.7590, 1.000]
    assert [x < 0.05 for x in adjust_bh(p)] == [True] * 4 + [False] * 11
    assert [x < 0.05 for x in adjust_holm(p)] == [True] * 3 + [False] * 12
    assert adjust_bh(p)[0] == pytest.approx(0.0015)


def test_rows_that_fell_out_still_count_as_planned():
    assert adjust_bh([0.02, None, None, None]) == [0.08, None, None, None]
    assert adjust_bh([0.02], planned=4) == [0.08]
    assert adjust_holm([0.02, 0.01], planned=3) == [0.04, 0.03]


def test_false_alarms_stay_at_the_nominal_level():
    dice, alarms, runs = random.Random(1), 0, 4000
    for _ in range(runs):
        base = [dice.lognormvariate(0, 0.05) for _ in range(5)]
        candidate = [dice.lognormvariate(0, 0.05) for _ in range(5)]
        alarms += compare_sides(base, candidate, band=0.0).verdict in ("faster", "slower")
    assert 0.04 < alarms / runs < 0.06
