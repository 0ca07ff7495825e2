"""Tests acting outside training: with one policy and its recurrent state, and with an ensemble."""

import pytest
import torch
from torch import Tensor

from agentpod.models.actors import EnsembleActor, PolicyActor
from agentpod.models.policy import NetworkSpec, Policy
from simulators import Space

OBSERVED = Space("continuous", (3,), torch.float32)
SPACES = {
    "continuous": Space("continuous", (2,), torch.float32, (-4.0, 0.0), (4.0, 10.0)),
    "discrete": Space("discrete", (), torch.int64, n=5),
}
LANES = 6


class Stubborn:
    """Returns constant actions and records which lanes were reset."""

    def __init__(self, action: Tensor) -> None:
        self.action, self.ended = action, []

    def act(self, observation: Tensor) -> Tensor:
        return self.action

    def reset(self, done: Tensor) -> None:
        self.ended.append(done)


def policy(kind: str, seed: int, **network: int) -> Policy:
    made = Policy(OBSERVED, SPACES[kind], NetworkSpec((8,), **network))
    made.initialize(torch.Generator().manual_seed(seed), 1.0)
    return made


def actor(policy: Policy, *, greedy: bool, seed: int = 0) -> PolicyActor:
    return PolicyActor(policy, LANES, torch.Generator().manual_seed(seed), greedy=greedy)


@pytest.mark.parametrize("kind", SPACES)
def test_a_policy_acts_in_the_units_of_the_environment(kind: str) -> None:
    observation = torch.randn(LANES, 3, generator=torch.Generator().manual_seed(1))
    acting = policy(kind, 0)
    expected = acting.to_environment(acting.act_greedily(observation))
    assert torch.equal(actor(acting, greedy=True).act(observation), expected)


def test_samples_depend_only_on_the_generator() -> None:
    observation = torch.randn(LANES, 3, generator=torch.Generator().manual_seed(1))
    first, again, other = (actor(policy("discrete", 0), greedy=False, seed=seed) for seed in (1, 1, 2))
    drawn = [[who.act(observation).tolist() for _ in range(5)] for who in (first, again, other)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_the_recurrent_state_is_cleared_only_in_lanes_whose_episode_ended() -> None:
    remembering = policy("continuous", 0, recurrent_size=4)
    observation = torch.randn(LANES, 3, generator=torch.Generator().manual_seed(1))
    acting = actor(remembering, greedy=True)
    first, second = acting.act(observation), acting.act(observation)
    assert not torch.equal(first, second)
    fresh = actor(remembering, greedy=True)
    fresh.act(observation)
    ended = torch.zeros(LANES, dtype=torch.bool)
    ended[2] = True
    fresh.reset(ended)
    again = fresh.act(observation)
    assert torch.equal(again[2], first[2])
    assert torch.equal(again[~ended], second[~ended])


def test_an_ensemble_averages_continuous_actions() -> None:
    members = [Stubborn(torch.full((LANES, 2), value)) for value in (1.0, 2.0, 6.0)]
    assert torch.equal(EnsembleActor(members, 0).act(torch.zeros(LANES, 3)), torch.full((LANES, 2), 3.0))


def test_an_ensemble_takes_the_majority_vote_and_the_lowest_choice_of_a_tie() -> None:
    votes = [[0, 4, 3], [2, 4, 1], [2, 0, 2]]
    committee = EnsembleActor([Stubborn(torch.tensor(vote)) for vote in votes], 5)
    assert committee.act(torch.zeros(3, 3)).tolist() == [2, 4, 1]


def test_every_member_is_reset_at_the_end_of_an_episode() -> None:
    members = [Stubborn(torch.zeros(LANES)) for _ in range(2)]
    ended = torch.ones(LANES, dtype=torch.bool)
    EnsembleActor(members, 5).reset(ended)
    assert all(torch.equal(member.ended[0], ended) for member in members)


def test_an_ensemble_of_equal_members_acts_like_each_of_them() -> None:
    observation = torch.randn(LANES, 3, generator=torch.Generator().manual_seed(1))
    for kind, space in SPACES.items():
        same = [actor(policy(kind, 0), greedy=True) for _ in range(3)]
        alone = actor(policy(kind, 0), greedy=True).act(observation)
        assert torch.allclose(EnsembleActor(same, space.n).act(observation), alone)
