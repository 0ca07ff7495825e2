import math
import random
import statistics
from typing import Any

import pytest

from podrace.cli.grid.statistics import (
    BestScorePoint,
    Estimate,
    best_so_far,
    bootstrap_interval,
    bootstrap_mean,
    mean_curve,
    running_seconds,
)
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate


def test_the_interval_of_two_values_spans_both() -> None:
    # A mean of two draws is 0 or 10 with probability 1/4 each: more than the 2.5 % of a tail.
    assert bootstrap_mean([0.0, 10.0]) == Estimate(5.0, 0.0, 10.0)


def test_the_interval_of_three_values_follows_from_the_binomial_distribution() -> None:
    # Of values 0, 0 and 3 the sum of three draws is 3k with k binomial (3, 1/3): k = 3 has 1/27 = 3.7 % > 2.5 %,
    # k = 0 has 8/27.
    assert bootstrap_mean([0.0, 0.0, 3.0]) == Estimate(1.0, 0.0, 3.0)
    # Of eight values with one 8, k is binomial (8, 1/8): P(k <= 2) = 0.932, P(k <= 3) = 0.990 >= 0.975.
    assert bootstrap_mean([0.0] * 7 + [8.0]) == Estimate(1.0, 0.0, 3.0)


def test_the_interval_equals_that_of_individually_drawn_resamples() -> None:
    # With so many values, no two resamples have the same mean.
    values = [math.sin(7 * number) for number in range(30)]
    generator = random.Random(3)
    means = sorted(sum(generator.choices(values, k=30)) / 30 for _ in range(10_000))
    found = bootstrap_mean(values, seed=3)
    assert found.low == pytest.approx(means[249], abs=1e-12)
    assert found.high == pytest.approx(means[9749], abs=1e-12)
    assert found.mean == pytest.approx(sum(values) / 30)


def test_the_interval_of_a_median_follows_from_the_binomial_distribution() -> None:
    # The median of five draws is above the third value with the probability that three or more of them are, which is
    # P(binomial(5, 2/5) >= 3) = 31.7 %; above the fourth: binomial(5, 1/5), 5.8 %; so the 95th percentile is the fifth.
    values = [1.0, 2.0, 3.0, 4.0, 50.0]
    assert bootstrap_interval(values, statistics.median, confidence=0.9) == (1.0, 50.0)
    assert bootstrap_interval(values, statistics.median, confidence=0.8) == (2.0, 4.0)
    assert bootstrap_interval([7.0], statistics.median) == (7.0, 7.0)


def test_the_interval_depends_only_on_values_and_seed() -> None:
    values = [float(number * number) for number in range(9)]
    assert bootstrap_mean(values) == bootstrap_mean(list(values))
    assert bootstrap_mean(values, seed=1) != bootstrap_mean(values, seed=0)


def test_one_value_has_no_interval_and_equal_values_have_one_of_width_0() -> None:
    assert bootstrap_mean([4.0]) == Estimate(4.0, None, None)
    assert bootstrap_mean([4.0] * 5) == Estimate(4.0, 4.0, 4.0)


def test_the_interval_covers_the_true_mean_at_about_its_confidence() -> None:
    generator = random.Random(0)
    found = [bootstrap_mean([generator.gauss(2.0, 1.0) for _ in range(20)], resamples=1000) for _ in range(200)]
    covered = sum(estimate.low <= 2.0 <= estimate.high for estimate in found)  # type: ignore[operator]
    # Percentile intervals of 20 values cover a little less than 95 %; 3 standard errors of 200 draws are 4.6 %.
    assert 176 <= covered <= 198


@pytest.mark.parametrize(
    ("moment", "running"), [(5.0, 5.0), (10.0, 10.0), (14.0, 10.0), (20.0, 10.0), (25.0, 15.0), (45.0, 30.0)]
)
def test_running_time_does_not_advance_in_a_pause(moment: float, running: float) -> None:
    assert running_seconds(moment, [(10.0, 20.0), (30.0, 35.0)]) == running


def submission(number: int, agent: str, own_steps: int, score: float) -> Any:
    return Candidate(candidate_id=f"c{number}", agent_id=agent, agent_environment_steps=own_steps, score=score)


def test_the_best_so_far_rises_at_the_summed_steps_of_all_agents() -> None:
    arrived = [
        submission(0, "a0", 100, 5.0),
        submission(1, "a1", 100, 3.0),
        submission(2, "a0", 200, 9.0),
        submission(3, "a1", 200, 12.0),
        submission(4, "a2", 100, 11.0),
    ]
    seconds = {f"c{number}": 10.0 * number for number in range(5)}
    assert best_so_far(arrived, seconds, end_steps=600, end_seconds=55.0) == (
        BestScorePoint(100, 0.0, 5.0),
        BestScorePoint(300, 20.0, 9.0),
        BestScorePoint(400, 30.0, 12.0),
        BestScorePoint(600, 55.0, 12.0),
    )


def test_a_curve_does_not_end_before_its_last_rise_and_is_empty_without_a_score() -> None:
    (rise, end) = best_so_far([submission(0, "a0", 100, 5.0)], {"c0": 7.0}, end_steps=0, end_seconds=0.0)
    assert rise == end == BestScorePoint(100, 7.0, 5.0)
    assert best_so_far([], {}, end_steps=10, end_seconds=1.0) == ()


def test_the_mean_of_curves_starts_where_all_have_started_and_keeps_last_values() -> None:
    first = [(1.0, 10.0), (3.0, 20.0), (4.0, 20.0)]
    second = [(2.0, 0.0), (5.0, 40.0), (9.0, 40.0)]
    mean = mean_curve([first, second])
    assert mean is not None
    assert mean.positions == (2.0, 3.0, 4.0, 5.0, 9.0)
    assert [estimate.mean for estimate in mean.estimates] == [5.0, 10.0, 10.0, 30.0, 30.0]
    assert [(estimate.low, estimate.high) for estimate in mean.estimates][-1] == (20.0, 40.0)


def test_the_mean_of_one_curve_is_that_curve_and_of_none_is_none() -> None:
    mean = mean_curve([[(0.0, 1.0), (2.0, 5.0)]])
    assert mean is not None
    assert list(zip(mean.positions, mean.estimates, strict=True)) == [
        (0.0, Estimate(1.0, None, None)),
        (2.0, Estimate(5.0, None, None)),
    ]
    assert mean_curve([]) is None
