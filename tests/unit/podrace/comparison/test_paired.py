"""Differences and correlations of returns on common episodes."""

import math
import statistics
from random import Random

import pytest

from podrace.comparison.paired import PRIOR_WEIGHT, PooledCorrelation, Returns, correlation, paired_difference


def common_returns(random: Random, count: int, share: float) -> tuple[list[float], list[float]]:
    """Draws returns of two policies, of variance 1, of which a share of the variance is common."""
    common = [random.gauss(0, math.sqrt(share)) for _ in range(count)]
    own = math.sqrt(1 - share)
    return [c + random.gauss(0, own) for c in common], [c + random.gauss(0, own) for c in common]


def test_the_difference_is_the_mean_over_the_common_prefix_with_its_standard_error():
    # Differences 1, 2, 3 of the first three episodes: deviation 1, so the error is 1 / sqrt(3).
    value, error = paired_difference([2.0, 4.0, 6.0, 100.0], [1.0, 2.0, 3.0])
    assert value == 2.0
    assert error == pytest.approx(1 / math.sqrt(3))


def test_a_constant_lead_has_no_error():
    assert paired_difference([3.0, 5.0], [1.0, 3.0]) == (2.0, 0.0)


def test_the_correlation_is_that_of_pearson_over_the_common_prefix():
    one, other = [1.0, 2.0, 4.0, 3.0, 9.0], [2.0, 1.0, 5.0, 4.0, 7.0, 50.0]
    assert correlation(one, other) == pytest.approx(statistics.correlation(one, other[:5]))


@pytest.mark.parametrize(("one", "other"), [([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]), ([1.0] * 8, [1.0, 2.0] * 4)])
def test_too_few_episodes_or_equal_returns_have_no_correlation(one, other):
    assert correlation(one, other) is None


@pytest.mark.parametrize("lengths", [(16, 16), (16, 9), (9, 16), (3, 16)])
def test_prepared_returns_have_the_very_same_correlation(lengths):
    random = Random(3)
    one, other = ([random.gauss(0, 1) for _ in range(length)] for length in lengths)
    assert correlation(Returns(one), Returns(other)) == correlation(one, other)


def test_one_pair_of_64_episodes_weighs_as_much_as_the_prior():
    random, pooled = Random(1), PooledCorrelation()
    one, other = common_returns(random, 64, 0.8)
    pooled.add(one, other)
    assert PRIOR_WEIGHT == 61
    assert pooled.value == pytest.approx(math.tanh(math.atanh(correlation(one, other)) / 2))
    assert pooled.pairs == 1


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_many_pairs_give_the_correlation_of_the_returns(share):
    random, pooled = Random(2), PooledCorrelation()
    for _ in range(200):
        pooled.add(*common_returns(random, 32, share))
    assert pooled.value == pytest.approx(share, abs=0.03)


def test_equal_policies_do_not_make_the_correlation_infinite():
    pooled = PooledCorrelation()
    pooled.add([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0])
    assert 0 < pooled.value < 1


def test_pairs_without_a_correlation_are_ignored():
    pooled = PooledCorrelation()
    pooled.add([1.0] * 8, [2.0] * 8)
    assert (pooled.pairs, pooled.value) == (0, 0.0)


def test_the_paired_error_is_the_deviation_of_the_difference():
    # 4,000 differences of 16 episodes with a correlation of 0.8: the deviation is sqrt(2 (1 - 0.8) / 16).
    random = Random(3)
    found = [paired_difference(*common_returns(random, 16, 0.8)) for _ in range(4000)]
    deviation = math.sqrt(2 * 0.2 / 16)
    assert statistics.pstdev(value for value, _ in found) == pytest.approx(deviation, rel=0.05)
    assert math.sqrt(statistics.fmean(error**2 for _, error in found)) == pytest.approx(deviation, rel=0.05)
