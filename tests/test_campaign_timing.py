"""campaign/timing.py: noise, rows and tasks from times made here; drift, wild rows, and the rate of false verdicts."""
import math
import random

import pytest

from campaign.timing import Rules, adjust_rows, find_variance, fit_prior, judge_rows, judge_task, measure_noise

RULES = Rules(band=0.01, level=0.95, min_noise=0.0005)


def make_times(draw, candidate=1.0, rows=2, replicates=1, drift=0.0, idle=0.0):
    """{(round, replicate): {row: {cell: ms}}}; `drift` per step in the order of the run, `idle` on the first."""
    times, step = {}, 0
    for round_ in "ab":
        for replicate in range(1, replicates + 1):
            order = ("off", "mask0", "candidate") if (replicate % 2 == 1) == (round_ == "a") else ("candidate", "mask0", "off")
            pair = {f"row{n}": {} for n in range(rows)}
            for cell in order:
                speed = (1 + drift) ** step * (1 - idle if step == 0 else 1)
                for row in pair:
                    pair[row][cell] = draw() * speed * (candidate if cell == "candidate" else 1)
                step += 1
            times[round_, replicate] = pair
    return times


def judge_campaign(times, identical=(), shifts=None):
    """{task: Timing} of a campaign whose tasks all have both rounds, and its Noise."""
    shifts = {task: (shifts or {}).get(task, {}) for task in times}
    noise = measure_noise(times, set(identical), RULES, shifts)
    rows = adjust_rows({task: [row for row, _ in judge_rows(each, noise, RULES, shifts[task])] for task, each in times.items()},
                       sum(len(next(iter(each.values()))) for each in times.values()))
    return {task: judge_task(each, rows[task], noise, RULES, shifts[task]) for task, each in times.items()}, noise


def has_verdict(timing):
    return bool(timing.direction_a and timing.direction_a == timing.direction_b and timing.rows_faster + timing.rows_slower)


def test_exact_times_give_exact_figures():
    timings, noise = judge_campaign({"t": make_times(lambda: 2.0, candidate=0.5)})
    assert (noise.row_sigma, noise.placebo_rows, noise.placebo_bias) == (0.0005, 4, 0.0)
    timing = timings["t"]
    assert (timing.ratio_a, timing.ratio_b) == (pytest.approx(0.5), pytest.approx(0.5))
    # one task, so 3 degrees of freedom (2 placebos, 2 ratios about their mean), n = 2 processes, t(0.975, 3) = 3.18245,
    # t(0.8, 3) = 0.97847: 4.16092 * 0.0005 / sqrt 2
    assert timing.mde == pytest.approx(0.0014722, abs=1e-6)
    assert (timing.low, timing.high) == (pytest.approx(0.5 * 0.998875, abs=1e-5), pytest.approx(0.5 * 1.001126, abs=1e-5))
    assert (timing.direction_a, timing.direction_b, timing.rows_faster, timing.rows_slower) == ("faster", "faster", 2, 0)


def test_what_the_launch_gap_could_have_done_is_no_effect():
    """5 % of a kernel of 1.7 us are 0.09 us; the launch alone moved by 0.18 us between the cells, 10 %."""
    times = {"t": make_times(lambda: 0.0017, candidate=0.95), "long": make_times(lambda: 0.17, candidate=0.95)}
    timings, _ = judge_campaign(times, shifts={"t": {"row0": 0.10, "row1": 0.10}, "long": {"row0": 0.001, "row1": 0.001}})
    assert (timings["t"].direction_a, timings["t"].direction_b, timings["t"].rows_faster) == ("", "", 0)
    assert timings["t"].low < 1 < timings["t"].high
    assert (timings["long"].direction_a, timings["long"].direction_b, timings["long"].rows_faster) == ("faster", "faster", 2)


def test_more_processes_do_not_make_the_launch_gap_less():
    """It may be larger in every candidate: then 16 processes show 5 %, all of it the launch."""
    times = {"t": make_times(lambda: 0.0017, candidate=0.95, replicates=8)}
    (row, _), *_ = judge_rows(times["t"], measure_noise(times, set(), RULES, {"t": {}}), RULES, {"row0": 0.06})
    assert (row.p_value, row.low < 1 < row.high) == (1.0, True)
    timings, noise = judge_campaign(times, identical=["t"], shifts={"t": {"row0": 0.06, "row1": 0.06}})
    assert (noise.null_rows, noise.alarms) == (2, 0)  # nor a false alarm of rows of the same binary
    assert not has_verdict(timings["t"]) and timings["t"].rows_faster == 0 and timings["t"].high > 1


def test_a_gap_beyond_all_bounds_is_no_overflow():
    """A broken row may claim any launch gap; its interval is then as wide as a float can say, and the campaign goes on."""
    timings, _ = judge_campaign({"t": make_times(lambda: 0.01, candidate=0.5)}, shifts={"t": {"row0": 1000.0, "row1": 1000.0}})
    assert not has_verdict(timings["t"]) and timings["t"].low < 1 < timings["t"].high
    assert math.isfinite(timings["t"].high) and math.isfinite(timings["t"].mde)


def test_variance_is_of_the_placebo_about_0_beyond_the_shift_and_of_the_ratios_about_their_mean():
    assert find_variance([0.03, -0.01], [0.5, 0.52], 0.0) == (pytest.approx((0.0009 + 0.0001 + 0.0002) / 3), 3)
    assert find_variance([0.03, -0.01], [0.5, 0.52], 0.02) == (pytest.approx((0.0001 + 0.0002) / 3), 3)


def test_the_prior_says_how_alike_the_variances_are():
    assert fit_prior([], 0.01) == (0.01, 0.0) and fit_prior([(0.04, 3)], 0.01) == (0.01, 0.0)  # alone: nothing in common
    assert fit_prior([(0.04, 3)] * 4, 0.01) == (pytest.approx(0.2), 12.0)
    assert fit_prior([(0.0, 3)] * 4, 0.01) == (pytest.approx(0.01), 12.0)  # no less than what the timer resolves
    draw = random.Random(2)
    for freedom, wanted in ((4, 4), (20, 20)):  # variances from a scaled inverse chi-square: sigma 0.01, `freedom`
        found = []
        for _ in range(2000):
            true = 0.01 ** 2 * freedom / sum(draw.gauss(0, 1) ** 2 for _ in range(freedom))
            found.append((sum(draw.gauss(0, math.sqrt(true)) ** 2 for _ in range(3)) / 3, 3))
        sigma, together = fit_prior(found, 1e-9)
        assert (sigma, together) == (pytest.approx(0.01, rel=0.05), pytest.approx(wanted, rel=0.25))


def test_one_wild_row_does_not_blind_the_rest():
    draw = random.Random(4)
    times = {f"t{n}": make_times(lambda: draw.gauss(1, 0.001), candidate=0.95) for n in range(20)}
    times["wild"] = make_times(lambda: draw.gauss(1, 0.3))
    timings, _ = judge_campaign(times)
    assert sum(map(has_verdict, timings.values())) >= 19 and not has_verdict(timings["wild"])


def test_rows_of_unlike_noise_give_no_more_false_alarms_than_the_level():
    """As on an H200: some rows vary by 0.05 %, some by 1 %, and one process each does not tell which."""
    draw = random.Random(6)
    times = {}
    for n in range(300):
        sigma = 0.002 * math.exp(draw.gauss(0, 1.0))
        times[f"t{n}"] = {("a", 1): next(iter(make_times(lambda: draw.gauss(1, sigma)).values()))}
    noise = measure_noise(times, set(times), RULES, dict.fromkeys(times, {}))
    assert noise.null_rows == 600 and 0.02 < noise.alarm_rate < 0.07 and noise.is_usable


def test_a_placebo_that_moves_as_far_blinds_the_task():
    """gelu under do_bench: the same binary moved by 77 %; an effect of 30 % on top of that is none."""
    draw = random.Random(1)
    times = {f"t{n}": make_times(lambda: draw.gauss(1, 0.001)) for n in range(6)}
    for pair in (wild := make_times(lambda: 1.0)).values():
        for cells in pair.values():
            cells["mask0"], cells["candidate"] = 0.6, 0.7
    timings, _ = judge_campaign({**times, "wild": wild})
    assert timings["wild"].direction_a == "" and not has_verdict(timings["wild"])


@pytest.mark.parametrize("drift, idle", [(0.0, 0.0), (0.01, 0.1), (-0.003, 0.1)])
def test_a_null_campaign_gives_no_verdicts(drift, idle):
    """Three identical cells, noise of 1 %, a drifting clock, and a card that is faster after a pause: 200 tasks."""
    draw = random.Random(5)
    times = {f"t{n}": make_times(lambda: draw.gauss(1, 0.01), drift=drift, idle=idle) for n in range(200)}
    timings, _ = judge_campaign(times)
    assert sum(map(has_verdict, timings.values())) == 0


def test_an_effect_of_5_percent_is_found_in_that_noise():
    draw = random.Random(5)
    times = {f"t{n}": make_times(lambda: draw.gauss(1, 0.005), candidate=0.95) for n in range(50)}
    timings, _ = judge_campaign(times)
    assert sum(map(has_verdict, timings.values())) > 45


def test_the_false_alarm_rate_is_near_its_nominal_level():
    draw = random.Random(9)
    times = {f"t{n}": make_times(lambda: draw.gauss(1, 0.01)) for n in range(200)}
    noise = measure_noise(times, set(times), RULES, dict.fromkeys(times, {}))
    assert noise.null_rows == 400 and 0.02 < noise.alarm_rate < 0.08 and noise.is_usable
    assert noise.row_sigma == pytest.approx(0.01 * 2 ** 0.5, rel=0.1)


def test_null_rows_beyond_twice_the_nominal_level_void_the_campaign():
    draw = random.Random(9)
    times = {f"t{n}": make_times(lambda: draw.gauss(1, 0.01), candidate=1.1 if n < 3 else 1.0) for n in range(20)}
    noise = measure_noise(times, set(times), RULES, dict.fromkeys(times, {}))
    assert (noise.alarms, noise.null_rows, noise.is_usable) == (7, 40, False)  # 6 planted
    assert measure_noise({}, set(), RULES, {}).is_usable is False  # no placebo: nothing can be said


def test_replicates_narrow_the_interval():
    draw = random.Random(3)
    one, _ = judge_campaign({f"t{n}": make_times(lambda: draw.gauss(1, 0.01)) for n in range(30)})
    four, _ = judge_campaign({f"t{n}": make_times(lambda: draw.gauss(1, 0.01), replicates=4) for n in range(30)})
    mean = {name: sum(t.mde for t in each.values()) / 30 for name, each in (("one", one), ("four", four))}
    assert mean["four"] < 0.75 * mean["one"]
