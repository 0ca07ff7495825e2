import math
from random import Random
from statistics import fmean, variance

import pytest

from leaderboard.ranking.fresh_scores import FreshScore, fresh_of, lead, shrunken, without_shared_luck
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation


def played(returns: list[float]) -> FreshScore:
    error = math.sqrt(variance(returns) / len(returns))
    return FreshScore(fmean(returns), error, len(returns), tuple(returns))


def test_returns_count_only_if_there_is_a_finite_one_for_each_episode() -> None:
    whole = Evaluation(mean_return=2.0, variance=1.0, episodes=3, episode_returns=[1.0, 2.0, 3.0])
    assert fresh_of(whole) == FreshScore(2.0, math.sqrt(1 / 3), 3, (1.0, 2.0, 3.0))
    for returns in ([1.0, 2.0], [], [1.0, 2.0, math.inf]):
        partial = Evaluation(mean_return=2.0, variance=1.0, episodes=3, episode_returns=returns)
        assert fresh_of(partial).returns == ()


def test_scores_are_shrunk_in_proportion_to_their_noise() -> None:
    # Mean 20, variance of the scores 100, noise (64 + 36 + 50) / 3 = 50, so that the true variance is 50.
    scores = [FreshScore(30.0, 8.0), FreshScore(20.0, 6.0), FreshScore(10.0, math.sqrt(50.0))]
    assert shrunken(scores) == pytest.approx([20 + 10 * 50 / 114, 20.0, 20 - 10 * 50 / 100])


def test_scores_that_differ_only_by_noise_are_shrunk_to_their_mean() -> None:
    assert shrunken([FreshScore(11.0, 5.0), FreshScore(9.0, 5.0)]) == [10.0, 10.0]
    assert shrunken([FreshScore(11.0, 0.0), FreshScore(9.0, 0.0)]) == [11.0, 9.0]
    assert shrunken([FreshScore(3.0, 2.0)]) == [3.0]
    assert shrunken([FreshScore(3.0, 0.0), FreshScore(3.0, 0.0)]) == [3.0, 3.0]


def test_the_luck_that_all_share_is_no_noise() -> None:
    # The second policy earns 1 more in each episode, whose returns differ by much: no noise is left.
    first = [0.0, 100.0, 50.0, -80.0]
    scores = [played(first), played([value + 1.0 for value in first])]
    assert [one.standard_error for one in without_shared_luck(scores)] == pytest.approx([0.0, 0.0], abs=1e-9)
    assert shrunken(scores) == pytest.approx([17.5, 18.5])


def test_without_common_episodes_the_errors_are_those_of_the_scores() -> None:
    scores = [played([1.0, 2.0, 4.0, 8.0]), FreshScore(3.0, 0.5, 4)]
    assert without_shared_luck(scores) == scores
    few = [played([1.0, 2.0, 4.0]), played([2.0, 2.0, 5.0])]
    assert without_shared_luck(few) == few


def test_errors_without_shared_luck_are_those_of_independent_episodes_on_average() -> None:
    random, squares = Random(3), []
    for _ in range(400):
        scores = [played([random.gauss(0.0, 2.0) for _ in range(16)]) for _ in range(3)]
        squares += [one.standard_error**2 for one in without_shared_luck(scores)]
    assert fmean(squares) == pytest.approx(4.0 / 16, rel=0.05)


def test_a_lead_is_paired_only_where_episodes_correlate() -> None:
    first = [0.0, 10.0, 20.0, 30.0]
    shifted = played([value + shift for value, shift in zip(first, (1.0, 3.0, 1.0, 3.0), strict=True)])
    # The differences are 1, 3, 1, 3 with variance 4/3.
    assert lead(shifted, played(first)) == pytest.approx((2.0, math.sqrt(4 / 3 / 4)))
    reverse = played(first[::-1])
    assert lead(reverse, played(first)) == pytest.approx(
        (0.0, math.hypot(reverse.standard_error, reverse.standard_error))
    )
    assert lead(FreshScore(5.0, 3.0), FreshScore(1.0, 4.0)) == (4.0, 5.0)
