"""Lanes rest after one episode where the caller asks for it, so an evaluation does not step what it ignores."""

from typing import Any

import gymnasium
import pytest
import torch
from torch import Tensor

from agentpod.roles.episodes import play
from simulators import make
from simulators.base import SingleEpisodes
from simulators.gym.simulator import GymSimulator


class Threshold:
    """Pushes a cart in the direction of its pole; lane i has another threshold, so episodes differ in length."""

    def begin(self, batch: int) -> None:
        pass

    def act(self, observation: Tensor) -> Tensor:
        thresholds = torch.linspace(-0.1, 0.1, len(observation))
        return (observation[:, 2] > thresholds).long()

    def reset(self, done: Tensor) -> None:
        pass


class Counting(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Counts the steps and resets of an environment."""

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.steps = self.resets = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        return super().step(action)

    def reset(self, **arguments: Any) -> Any:
        self.resets += 1
        return super().reset(**arguments)


@pytest.mark.parametrize("options", [{}, {"processes": 2}])
def test_an_episode_is_the_same_whether_other_lanes_rest_or_not(
    options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator = make("CartPole-v1", 6, options=options)
    resting = play(simulator, Threshold(), 15, seed=3)
    monkeypatch.setattr(GymSimulator, "reset_for_single_episodes", GymSimulator.reset)
    stepped = play(simulator, Threshold(), 15, seed=3)
    simulator.close()
    assert resting.returns.tolist() == stepped.returns.tolist()
    assert resting.lengths.tolist() == stepped.lengths.tolist()
    assert len(set(resting.lengths.tolist())) > 5


def test_a_lane_whose_episode_has_ended_is_not_stepped_until_the_next_reset() -> None:
    lanes = [Counting(gymnasium.make("CartPole-v1")) for _ in range(4)]
    simulator = GymSimulator("CartPole-v1", lanes)
    played = play(simulator, Threshold(), 4, seed=3)
    assert [lane.steps for lane in lanes] == played.lengths.tolist()
    assert [lane.resets for lane in lanes] == [1, 1, 1, 1]
    simulator.reset(seed=3)
    for _ in range(600):
        simulator.step(torch.zeros(4, dtype=torch.int64))
    assert all(lane.steps == length + 600 for lane, length in zip(lanes, played.lengths.tolist(), strict=True))
    simulator.close()


def test_a_lane_that_rests_returns_its_last_observation_without_reward() -> None:
    simulator = make("CartPole-v1", 2)
    assert isinstance(simulator, SingleEpisodes)
    simulator.reset_for_single_episodes(seed=3)
    last: dict[int, Tensor] = {}
    # One lane falls at once, the other is balanced a little longer.
    for number in range(200):
        step = simulator.step(torch.tensor([0, number % 2]))
        for lane in range(2):
            if lane in last:
                assert step.reward[lane] == 0.0
                assert not step.terminated[lane]
                assert torch.equal(step.observation[lane], last[lane])
            elif step.terminated[lane]:
                assert step.reward[lane] == 1.0
                last[lane] = step.observation[lane].clone()
                assert torch.equal(step.final_observation[lane], last[lane])
    assert len(last) == 2
    simulator.close()
