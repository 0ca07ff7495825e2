"""A score is the mean over the episodes that were asked for, with their returns listed if they can be repeated."""

import pytest
import torch

from agentpod.roles.evaluation_check import MOST_RETURNS
from agentpod.roles.evaluator import Episodes, add_returns, score
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation


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
