"""Scores: whole episodes, quotas decided beforehand, the mean of what was counted."""

import torch

from agentpod.roles.evaluator import Episodes, EpisodeTally, score
from simulators import Step


def step(rewards: list[float], ends: list[bool]) -> Step:
    nothing = torch.zeros(len(rewards), 1)
    ended = torch.tensor(ends)
    return Step(nothing, torch.tensor(rewards), ended, torch.zeros_like(ended), nothing)


def test_short_episodes_are_not_favoured():
    # Lane 0 ends at every step with 1, lane 1 after three steps with 30: taking the first two to end would give 1, 1.
    tally = EpisodeTally.of(2, 2)
    tally.add(step([1.0, 10.0], [True, False]))
    assert not tally.complete
    tally.add(step([1.0, 10.0], [True, False]))
    tally.add(step([1.0, 10.0], [True, True]))
    assert tally.complete
    assert sorted(tally.episodes().returns.tolist()) == [1.0, 30.0]
    assert sorted(tally.episodes().lengths.tolist()) == [1, 3]


def test_an_uneven_number_of_episodes_is_shared_out_beforehand():
    assert EpisodeTally.of(4, 6).quota.tolist() == [2, 2, 1, 1]
    assert EpisodeTally.of(4, 3).quota.tolist() == [1, 1, 1, 0]


def test_lanes_begin_anew_after_an_episode():
    tally = EpisodeTally.of(1, 2)
    tally.add(step([1.0], [False]))
    tally.add(step([2.0], [True]))
    tally.add(step([5.0], [True]))
    assert tally.episodes().returns.tolist() == [3.0, 5.0]


def test_the_score_is_the_mean_with_the_unbiased_variance():
    evaluation = score(Episodes(torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64), torch.tensor([1, 2, 3])))
    assert evaluation.mean_return == 3.0
    assert evaluation.variance == 7.0
    assert evaluation.episodes == 3
    assert evaluation.mean_length_steps == 2.0
    assert score(Episodes(torch.tensor([4.0]), torch.tensor([1]))).variance == 0.0
