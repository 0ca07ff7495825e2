"""An evaluation that stops early is wrong no more often than its bounds promise."""

import math
from random import Random
from statistics import NormalDist, fmean

import pytest

from podrace.comparison import racing
from podrace.comparison.racing import Bar, Sample, boundary_constant, crossing_probability, decide, normal_of_t, stages

STAGES = (8, 16, 32, 64)


def race(returns: list[float], bar: Bar, planned: tuple[int, ...] = STAGES) -> tuple[str, int]:
    """Returns the first decision other than to continue, and the number of episodes it took."""
    for count in planned:
        decision = decide(Sample.of(returns[:count]), bar, planned)
        if decision != "continue":
            return decision, count
    return "continue", planned[-1]


@pytest.mark.parametrize(
    ("number_of_stages", "error", "constant"),
    # Jennison and Turnbull (2000), table 2.3.
    [
        (1, 0.05, 1.960),
        (2, 0.05, 1.977),
        (3, 0.05, 2.004),
        (4, 0.05, 2.024),
        (5, 0.05, 2.040),
        (2, 0.1, 1.678),
        (4, 0.1, 1.733),
        (5, 0.1, 1.751),
        (4, 0.01, 2.609),
        (5, 0.01, 2.621),
    ],
)
def test_the_constants_are_those_of_the_published_table(number_of_stages, error, constant):
    shares = tuple((stage + 1) / number_of_stages for stage in range(number_of_stages))
    assert boundary_constant(shares, error) == pytest.approx(constant, abs=1e-3)


def test_the_crossing_probability_is_that_of_simulated_walks():
    random, shares, constant = Random(5), (1 / 8, 1 / 4, 1 / 2, 1.0), 1.7
    steps = [math.sqrt(now - before) for before, now in zip((0.0, *shares), shares, strict=False)]
    crossed = 0
    for _ in range(20_000):
        position = 0.0
        for step in steps:
            position += random.gauss(0, step)
            if abs(position) >= constant:
                crossed += 1
                break
    assert crossing_probability(shares, constant) == pytest.approx(crossed / 20_000, abs=0.006)


@pytest.mark.parametrize(("degrees", "t", "tail"), [(7, 2.998, 0.01), (7, 1.895, 0.05), (31, 2.453, 0.01)])
def test_t_statistics_are_replaced_by_normal_ones_of_the_same_tail(degrees, t, tail):
    assert normal_of_t(t, degrees) == pytest.approx(NormalDist().inv_cdf(1 - tail), rel=0.01)


def test_stages_double_up_to_all_episodes():
    assert stages(64) == STAGES
    assert stages(8) == (8,)
    assert stages(3) == (3,)
    assert stages(100) == (8, 16, 32, 64, 100)
    assert stages(64, lanes=64) == (64,)
    assert stages(256, lanes=64) == (64, 128, 256)
    assert len(stages(100_000)) == racing.MOST_STAGES


@pytest.mark.long
@pytest.mark.parametrize("paired", [True, False])
def test_equal_policies_are_decided_apart_as_often_as_stated(paired):
    random, decided, trials = Random(7), 0, 3000
    for _ in range(trials):
        reference = [random.gauss(0, 1) for _ in range(64)]
        returns = [random.gauss(0, 1) for _ in range(64)]
        bar = Bar(fmean(reference), 1 / 8, tuple(reference) if paired else ())
        decided += race(returns, bar)[0] != "continue"
    # Three standard errors of the share, 0.0055 each.
    assert decided / trials == pytest.approx(racing.ERROR, abs=0.017)


def test_a_better_policy_is_rarely_decided_to_be_behind():
    random, wrong = Random(8), 0
    for _ in range(2000):
        returns = [random.gauss(0.2, 1) for _ in range(64)]
        wrong += race(returns, Bar(0.0, 0.0, (0.0,) * 64))[0] == "behind"
    assert wrong / 2000 < 0.005


@pytest.mark.long
def test_an_obviously_worse_policy_stops_after_the_first_stages():
    random = Random(9)
    counts = []
    for _ in range(200):
        decision, count = race([random.gauss(-5, 1) for _ in range(64)], Bar(0.0, 0.1))
        assert decision == "behind"
        counts.append(count)
    assert max(counts) <= 16


def test_common_episodes_decide_earlier():
    random, paired, unpaired = Random(10), 0, 0
    for _ in range(200):
        common = [random.gauss(0, 1) for _ in range(64)]
        reference = [value + random.gauss(0, 0.3) for value in common]
        returns = [value - 0.5 + random.gauss(0, 0.3) for value in common]
        bar = Bar(fmean(reference), 1 / 8)
        unpaired += race(returns, bar)[1]
        paired += race(returns, Bar(bar.score, bar.standard_error, tuple(reference)))[1]
    assert paired < 0.6 * unpaired


def test_equal_returns_decide_by_their_constant_difference_and_a_tie_continues():
    bar = Bar(5.0, 0.0, (5.0,) * 64)
    assert race([4.0] * 64, bar) == ("behind", 8)
    assert race([6.0] * 64, bar) == ("ahead", 8)
    assert race([5.0] * 64, bar) == ("continue", 64)


def test_a_bar_with_too_few_common_episodes_is_compared_by_its_score():
    bar = Bar(0.0, 0.1, (100.0,) * 8)
    returns = [-2.0, 2.0] * 32
    assert decide(Sample.of(returns[:16]), bar, STAGES) == "continue"
    assert decide(Sample.of(returns[:8]), bar, STAGES) == "behind"


def test_a_sample_without_returns_is_compared_by_its_mean():
    assert decide(Sample(-9.0, 1.0, 32), Bar(0.0, 0.1, (0.0,) * 64), STAGES) == "behind"
    assert decide(Sample(-0.1, 1.0, 32), Bar(0.0, 0.1, (0.0,) * 64), STAGES) == "continue"
    assert decide(Sample(-9.0, 0.0, 1), Bar(0.0, 0.1), (1, 64)) == "continue"
