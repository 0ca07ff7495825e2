"""Which answers of an evaluator plugin are accepted as scores."""

import math

import pytest

from agentpod.roles.evaluation_check import find_fault
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation


def evaluation(**changes) -> Evaluation:
    values = {"mean_return": -3.0, "variance": 2.0, "episodes": 4, "mean_length_steps": 7.0, "policy_digest": "d" * 64}
    return Evaluation(**{**values, **changes})


def test_a_score_of_the_policy_over_enough_episodes_is_accepted():
    assert find_fault(evaluation(), 4, ["d" * 64]) == ""
    assert find_fault(evaluation(episodes=9, variance=0.0, mean_length_steps=0.0), 4, ["d" * 64]) == ""


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"mean_return": math.nan}, "mean_return = nan is not finite"),
        ({"variance": math.inf}, "variance = inf is not finite"),
        ({"variance": -1.0}, "variance = -1 is negative"),
        ({"mean_length_steps": -1.0}, "mean_length_steps = -1 is negative"),
        ({"metrics": {"sharpe": -math.inf}}, "metrics['sharpe'] = -inf is not finite"),
        ({"episode_metrics": {"sharpe": math.nan}}, "episode_metrics['sharpe'] = nan is not finite"),
        ({"episode_metrics": {f"m{number}": 1.0 for number in range(33)}}, "it lists 33 episode_metrics, at most 32"),
        ({"episode_returns": [-3.0] * 4, "episode_folds": [1]}, "it lists 1 episode_folds for 4 episode_returns"),
        ({"episodes": 0}, "it scored 0 episodes instead of 4"),
        ({"episodes": 3}, "it scored 3 episodes instead of 4"),
        ({"policy_digest": ""}, f"it scored another policy: digest none instead of {'d' * 12}"),
        ({"policy_digest": "e" * 64}, f"it scored another policy: digest {'e' * 12} instead of {'d' * 12}"),
        ({"member_policy_digests": ["e" * 64]}, "it scored another policy"),
    ],
)
def test_every_invalid_field_is_named(changes, fault):
    assert find_fault(evaluation(**changes), 4, ["d" * 64]).startswith(fault)


def test_a_missing_member_is_detected():
    assert "another policy" in find_fault(evaluation(), 4, ["d" * 64, "e" * 64])


def returns(*values: float, mean: float = 2.0) -> Evaluation:
    return evaluation(mean_return=mean, variance=1.0, episodes=3, episode_returns=values)


def test_returns_of_single_episodes_are_optional_and_must_agree_with_the_score():
    assert find_fault(returns(1.0, 2.0, 3.0), 3, ["d" * 64]) == ""
    assert find_fault(returns(1.0, 2.0, 3.0 + 1e-9), 3, ["d" * 64]) == ""


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (returns(1.0, 3.0), "it lists 2 episode_returns for 3 episodes"),
        (returns(1.0, math.nan, 3.0), "episode_returns[1] = nan is not finite"),
        (returns(1.0, 2.0, 3.3), "mean_return = 2, but the mean of episode_returns is 2.1"),
    ],
)
def test_returns_that_do_not_agree_are_refused(answer, fault):
    assert find_fault(answer, 3, ["d" * 64]) == fault
