"""What episodes are worth by the objective, and the penalty for differences between folds."""

import math
import random
from statistics import fmean, stdev, variance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpod.roles.objectives import episode_values, penalize_folds, score_folds
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.errors import DataLoss, InvalidArgument

MEASURES = {"sharpe_ratio": [1.5, -0.5, 2.0], "calmar_ratio": [3.0, math.nan, 1.0], "fold": [1.0, 2.0, 1.0]}
RETURNS = [10.0, 20.0, 30.0]


def test_the_default_objective_is_the_return() -> None:
    assert episode_values("", RETURNS, MEASURES) == episode_values("return", RETURNS, {}) == RETURNS


def test_an_objective_names_a_measure_of_the_simulator() -> None:
    assert episode_values("sharpe_ratio", RETURNS, MEASURES) == [1.5, -0.5, 2.0]


@pytest.mark.parametrize("name", ["sortino_ratio", "fold"])
def test_an_unknown_objective_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(
        InvalidArgument, match=rf"objective = '{name}'.* use one of: return, calmar_ratio, sharpe_ratio$"
    ):
        episode_values(name, RETURNS, MEASURES)
    with pytest.raises(InvalidArgument, match=r"use one of: return$"):
        episode_values(name, RETURNS, {})


def test_an_episode_without_a_finite_measure_is_an_error() -> None:
    with pytest.raises(DataLoss, match="reported 2 finite values for 3 episodes"):
        episode_values("calmar_ratio", RETURNS, MEASURES)
    with pytest.raises(DataLoss, match="reported 3 finite values for 2 episodes"):
        episode_values("sharpe_ratio", RETURNS[:2], MEASURES)


def test_two_folds_computed_by_hand() -> None:
    # The means of the folds are 2 and 6: their deviation is 2 sqrt(2), the mean of the episodes is 4.
    scored = score_folds([1.0, 3.0, 6.0, 6.0], [1, 1, 2, 2], 0.5)
    assert scored.deviation == pytest.approx(2 * math.sqrt(2))
    assert fmean(scored.values) == pytest.approx(4 - math.sqrt(2))
    # Weights are (2 - 4) / deviation * 4 / 2 = -sqrt(2) in the first fold.
    expected = [1 - math.sqrt(2) - math.sqrt(2) / 2, 3 - math.sqrt(2) + math.sqrt(2) / 2, *[6 - math.sqrt(2)] * 2]
    assert scored.values == pytest.approx(expected)


@given(
    st.lists(st.tuples(st.floats(-1e3, 1e3), st.integers(1, 5)), min_size=1, max_size=60),
    st.floats(0, 10),
)
def test_the_mean_of_the_penalized_episodes_is_the_score(episodes: list[tuple[float, int]], deviations: float) -> None:
    values, folds = [value for value, _ in episodes], [fold for _, fold in episodes]
    scored = score_folds(values, folds, deviations)
    means = [fmean(value for value, own in episodes if own == fold) for fold in set(folds)]
    spread = stdev(means) if len(means) > 1 else 0.0
    assert scored.deviation == pytest.approx(spread, abs=1e-9)
    assert fmean(scored.values) == pytest.approx(fmean(values) - deviations * spread, rel=1e-6, abs=1e-6)


def test_an_agent_that_is_good_in_all_folds_leads_one_that_is_very_good_in_one() -> None:
    folds = [1, 2, 3] * 4
    steady, lucky = [5.0] * 12, [14.0, 1.0, 1.0] * 4
    assert fmean(score_folds(lucky, folds, 0.0).values) > fmean(score_folds(steady, folds, 0.0).values)
    assert fmean(score_folds(lucky, folds, 0.5).values) < fmean(score_folds(steady, folds, 0.5).values)


@pytest.mark.long
def test_paired_differences_of_penalized_episodes_vary_as_differences_of_scores_do() -> None:
    """The delta method: its variance, compared with 4,000 evaluations of two agents on common episodes."""
    generator = random.Random(3)
    folds, level = [1, 2, 3, 4] * 12, {1: 0.0, 2: 2.0, 3: -1.0, 4: 5.0}
    differences, errors = [], []
    for _ in range(4000):
        common = [generator.gauss(level[fold], 1.0) for fold in folds]
        one = score_folds([value + generator.gauss(0.0, 0.3) for value in common], folds, 1.0)
        other = score_folds([0.5 * value + generator.gauss(1.0, 0.3) for value in common], folds, 1.0)
        paired = [a - b for a, b in zip(one.values, other.values, strict=True)]
        differences.append(fmean(paired))
        # Within folds, because every evaluation has the same number of episodes in each.
        within = [variance([v for v, own in zip(paired, folds, strict=True) if own == fold]) for fold in (1, 2, 3, 4)]
        errors.append(fmean(within) / len(folds))
    assert fmean(errors) == pytest.approx(variance(differences), rel=0.1)


def evaluation(values: list[float], folds: list[int]) -> Evaluation:
    return Evaluation(
        mean_return=fmean(values), variance=1.0, episodes=len(values), episode_returns=values, episode_folds=folds
    )


def test_without_a_penalty_the_deviation_is_stated_and_the_score_unchanged() -> None:
    given = evaluation([1.0, 3.0, 6.0, 6.0], [1, 1, 2, 2])
    found = penalize_folds(given, 0.0, required=True)
    assert found.fold_deviation == pytest.approx(2 * math.sqrt(2))
    found.ClearField("fold_deviation")
    assert found == given


def test_a_penalty_changes_the_score_and_the_episodes_together() -> None:
    found = penalize_folds(evaluation([1.0, 3.0, 6.0, 6.0], [1, 1, 2, 2]), 0.5, required=True)
    assert found.mean_return == pytest.approx(4 - math.sqrt(2))
    assert fmean(found.episode_returns) == pytest.approx(found.mean_return)
    assert found.variance == pytest.approx(variance(found.episode_returns))


def test_a_penalty_without_folds_is_refused_where_folds_are_required() -> None:
    given = Evaluation(mean_return=1.0, episodes=1, episode_returns=[1.0])
    assert penalize_folds(given, 1.0, required=False) is given
    assert penalize_folds(given, 0.0, required=True) is given
    with pytest.raises(InvalidArgument, match=r"fold_deviations = 1: the simulator reports no folds.*set it to 0"):
        penalize_folds(given, 1.0, required=True)
