"""The deflated Sharpe ratio, compared with the worked example of Bailey and Lopez de Prado (2014)."""

import math
import random
from statistics import fmean, stdev

import pytest

from podrace.cli.results.deflated_sharpe import (
    Track,
    deflate,
    expected_maximum_sharpe_ratio,
    independent_trials,
    probabilistic_sharpe_ratio,
    track_of,
)

DAYS = 250
"""Observations a year in the example."""
EXAMPLE = Track(2.5 / math.sqrt(DAYS), 1250, skewness=-3.0, kurtosis=10.0)


def test_the_example_of_the_paper() -> None:
    """A strategy of Sharpe ratio 2.5 over five years, the best of 100 whose ratios have a variance of 1/2."""
    benchmark = expected_maximum_sharpe_ratio(0.5 / DAYS, 100)
    assert benchmark == pytest.approx(0.1132, abs=5e-5)
    assert probabilistic_sharpe_ratio(EXAMPLE, benchmark) == pytest.approx(0.9004, abs=5e-5)


@pytest.mark.parametrize(("trials", "skewness", "kurtosis"), [(46, -3.0, 10.0), (88, 0.0, 3.0)])
def test_the_numbers_of_trials_at_which_the_paper_is_95_percent_sure(
    trials: int, skewness: float, kurtosis: float
) -> None:
    track = Track(EXAMPLE.sharpe_ratio, EXAMPLE.returns, skewness, kurtosis)
    benchmark = expected_maximum_sharpe_ratio(0.5 / DAYS, trials)
    assert probabilistic_sharpe_ratio(track, benchmark) == pytest.approx(0.9505, abs=5e-5)


def test_the_expected_maximum_is_that_of_normal_numbers() -> None:
    generator = random.Random(1)
    for trials in (10, 100):
        highest = [max(generator.gauss(0.0, 0.2) for _ in range(trials)) for _ in range(4000)]
        assert expected_maximum_sharpe_ratio(0.04, trials) == pytest.approx(fmean(highest), rel=0.03)


def test_the_expected_maximum_of_a_single_trial_is_zero() -> None:
    assert expected_maximum_sharpe_ratio(0.5, 1) == 0.0
    assert expected_maximum_sharpe_ratio(0.5, 1.05) >= 0.0


def test_correlated_candidates_count_as_fewer_trials() -> None:
    assert independent_trials(100, 0.0) == 100
    assert independent_trials(100, 0.5) == 50.5
    assert independent_trials(100, 1.0) == 1
    assert independent_trials(100, -0.3) == 100


def test_the_moments_of_an_account_computed_by_hand() -> None:
    track = track_of([100.0, 110.0, 99.0, 108.9, 119.79])
    assert track is not None
    # Returns 0.1, -0.1, 0.1, 0.1: mean 0.05, centered 0.05, -0.15, 0.05, 0.05.
    assert track.sharpe_ratio == pytest.approx(0.05 / stdev([0.1, -0.1, 0.1, 0.1]))
    assert track.returns == 4
    second, third, fourth = 0.0075, (3 * 0.05**3 - 0.15**3) / 4, (3 * 0.05**4 + 0.15**4) / 4
    assert track.skewness == pytest.approx(third / second**1.5)
    assert track.kurtosis == pytest.approx(fourth / second**2)


def test_normal_returns_have_skewness_0_and_kurtosis_3() -> None:
    generator, values = random.Random(2), [100.0]
    for _ in range(20_000):
        values.append(values[-1] * (1 + generator.gauss(1e-4, 0.01)))
    track = track_of(values)
    assert track is not None
    assert track.skewness == pytest.approx(0.0, abs=0.06)
    assert track.kurtosis == pytest.approx(3.0, abs=0.12)


def test_the_more_candidates_were_tried_the_less_a_good_result_means() -> None:
    generator, account = random.Random(4), [100.0]
    for _ in range(500):
        account.append(account[-1] * (1 + generator.gauss(8e-4, 0.01)))
    ratios = [generator.gauss(0.5, 1.0) for _ in range(400)]
    found = [deflate(account, ratios[:count], 0.0) for count in (2, 20, 400)]
    sure = [one.deflated_sharpe_ratio for one in found if one]
    assert sure == sorted(sure, reverse=True)
    assert len(sure) == 3
    whole = found[-1]
    assert whole is not None
    assert (whole.candidates, whole.independent_trials) == (400, 400)
    assert whole.deflated_sharpe_ratio < whole.probabilistic_sharpe_ratio
    related = deflate(account, ratios, 0.9)
    assert related is not None
    assert related.deflated_sharpe_ratio > whole.deflated_sharpe_ratio


@pytest.mark.parametrize("account", [[], [1.0], [1.0, 1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 3.0]])
def test_an_account_without_a_sharpe_ratio_is_not_deflated(account: list[float]) -> None:
    assert track_of(account) is None
    assert deflate(account, [1.0, 2.0], 0.0) is None


def test_one_candidate_has_no_variance() -> None:
    assert deflate([1.0, 1.1, 1.0, 1.2, 1.3], [1.0], 0.0) is None
