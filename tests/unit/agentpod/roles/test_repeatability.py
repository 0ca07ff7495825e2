"""Simulators that do not repeat their episodes for equal seeds are detected before scores are paired."""

import pytest
import torch

from agentpod.roles.repeatability import NOT_REPEATED, find_difference
from simulators import make
from simulators.wrappers.wrapper import Wrapper


class Dice(Wrapper):
    """Ignores the seed from some step on."""

    def __init__(self, inner, from_step: int) -> None:
        super().__init__(inner)
        self._from, self._step = from_step, 0
        self._generator = torch.Generator().manual_seed(1)

    def reset(self, seed):
        self._step = 0
        observation = super().reset(seed)
        return observation + self._noise(observation) if self._from == 0 else observation

    def step(self, action):
        self._step += 1
        step = super().step(action)
        if self._step == self._from:
            step.reward.add_(torch.rand(1, generator=self._generator))
        return step

    def _noise(self, observation):
        return torch.rand(observation.shape, generator=self._generator)


@pytest.mark.parametrize(
    "id", ["cartpole", "pendulum", "CartPole-v1", "Pendulum-v1", "python:examples.custom.sorting:make"]
)
def test_a_simulator_that_repeats_its_episodes_is_accepted(id):
    assert find_difference(make(id, 3), 5) == ""


@pytest.mark.parametrize(("from_step", "where"), [(0, "in the first observation"), (2, "at step 2")])
def test_a_simulator_that_ignores_the_seed_is_detected(from_step, where):
    found = find_difference(Dice(make("cartpole", 3), from_step), 5)
    assert found == f"{NOT_REPEATED}: two runs differ {where}"


def test_randomness_that_begins_later_is_not_detected():
    # A limit of the check: the measured correlation of the episodes shows it.
    assert find_difference(Dice(make("cartpole", 3), 50), 5) == ""
