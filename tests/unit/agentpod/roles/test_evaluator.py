"""A score is the mean over the episodes that were asked for, with their returns listed if they can be repeated."""

import math

import pytest
import torch

from agentpod.roles.evaluation_check import MOST_RETURNS
from agentpod.roles.evaluator import Episodes, add_measures, add_returns, score, valued
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.errors import DataLoss
from simulators import Report


def episodes(count: int) -> Episodes:
    return Episodes(torch.arange(count, dtype=torch.float64), torch.ones(count, dtype=torch.int64))


def test_the_score_is_the_mean_with_the_unbiased_variance():
    evaluation = score(Episodes(torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64), torch.tensor([1, 2, 3])))
    assert evaluation.mean_return == 3.0
    assert evaluation.variance == 7.0
    assert evaluation.episodes == 3
    assert evaluation.mean_length_steps == 2.0
    assert score(Episodes(torch.tensor([4.0]), torch.tensor([1]))).variance == 0.0


def test_returns_are_listed_in_the_order_of_the_episodes():
    evaluation = Evaluation()
    add_returns(evaluation, episodes(3), "")
    assert list(evaluation.episode_returns) == [0.0, 1.0, 2.0]
    assert evaluation.unpaired_reason == ""


@pytest.mark.parametrize(("count", "reason"), [(3, "it rolls dice"), (MOST_RETURNS + 1, "")])
def test_without_returns_the_reason_is_stated(count, reason):
    evaluation = Evaluation()
    add_returns(evaluation, episodes(count), reason)
    assert not evaluation.episode_returns
    assert evaluation.unpaired_reason == reason or f"more than the {MOST_RETURNS}" in evaluation.unpaired_reason


MEASURED = Episodes(
    torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64),
    torch.tensor([1, 2, 3]),
    Report(
        episode_metrics={
            "sharpe_ratio": [0.5, 1.5, 1.0],
            "broken": [1.0, math.nan, 2.0],
            "short": [1.0],
            "fold": [2.0, 1.0, 2.0],
        }
    ),
)


def test_without_an_objective_an_episode_is_worth_its_return():
    assert valued(MEASURED, "") is MEASURED
    evaluation = score(MEASURED)
    add_measures(evaluation, MEASURED, "")
    assert evaluation.objective == ""
    assert not evaluation.HasField("undiscounted_return")


def test_the_score_is_of_the_objective_and_the_return_is_stated_too():
    worth = valued(MEASURED, "sharpe_ratio")
    evaluation = score(worth)
    add_returns(evaluation, worth, "")
    add_measures(evaluation, MEASURED, "sharpe_ratio")
    assert (evaluation.mean_return, evaluation.variance) == (1.0, 0.25)
    assert list(evaluation.episode_returns) == [0.5, 1.5, 1.0]
    assert (evaluation.objective, evaluation.undiscounted_return) == ("sharpe_ratio", 3.0)


def test_means_of_finite_measures_and_the_folds_are_listed():
    evaluation = score(MEASURED)
    add_returns(evaluation, MEASURED, "")
    add_measures(evaluation, MEASURED, "")
    assert dict(evaluation.episode_metrics) == {"sharpe_ratio": 1.0}
    assert list(evaluation.episode_folds) == [2, 1, 2]


def test_folds_are_listed_only_with_the_episodes():
    evaluation = score(MEASURED)
    add_returns(evaluation, MEASURED, "it rolls dice")
    add_measures(evaluation, MEASURED, "")
    assert not evaluation.episode_folds


@pytest.mark.parametrize(
    ("measures", "message"),
    [
        ({f"m{number}": [1.0] for number in range(33)}, "reports 33 measures of an episode, at most 32"),
        ({"fold": [0.0]}, "in fold 0, expected a whole number from 1"),
        ({"fold": [1.5]}, "in fold 1.5, expected a whole number from 1"),
        ({"fold": [math.nan]}, "in fold nan, expected a whole number from 1"),
    ],
)
def test_measures_out_of_bounds_are_refused(measures, message):
    given = Episodes(torch.zeros(1), torch.ones(1), Report(episode_metrics=measures))
    with pytest.raises(DataLoss, match=message):
        add_measures(Evaluation(), given, "")
