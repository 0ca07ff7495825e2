"""A score is the mean over whole episodes, with the number of episodes of each lane decided in advance."""

import torch

from agentpod.roles.evaluator import Episodes, EpisodeTally, score
from simulators import Step


def step(rewards: list[float], ends: list[bool]) -> Step:
    nothing = torch.zeros(len(rewards), 1)
    ended = torch.tensor(ends)
    return Step(nothing, torch.tensor(rewards), ended, torch.zeros_like(ended), nothing)


def test_short_episodes_are_not_favored():
    # Episodes on lane 0 take one step and return 1, those on lane 1 three steps and return 30. The first two return 1.
    tally = EpisodeTally.of(2, 2)
    tally.add(step([1.0, 10.0], [True, False]))
    assert not tally.complete
    tally.add(step([1.0, 10.0], [True, False]))
    tally.add(step([1.0, 10.0], [True, True]))
    assert tally.complete
    assert sorted(tally.episodes().returns.tolist()) == [1.0, 30.0]
    assert sorted(tally.episodes().lengths.tolist()) == [1, 3]


def test_episodes_are_distributed_over_the_lanes_in_advance():
    assert EpisodeTally.of(4, 6).quota.tolist() == [2, 2, 1, 1]
    assert EpisodeTally.of(4, 3).quota.tolist() == [1, 1, 1, 0]


def test_a_lane_starts_from_zero_after_an_episode():
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
