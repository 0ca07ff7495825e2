"""A team whose agents leave at different times, for tests of what is counted and trained on."""

import torch
from torch import Tensor

from simulators.base import Report, Space, Step

NAMES = ("first", "second", "third")


class Leaving:
    """N environments of three agents. Agent a leaves after a + 1 steps, so an environment ends after three.

    The reward of a step is 1 for the first agent, 10 for the second, 100 for the third. An observation is the number of
    the step, and 0 for an absent agent.
    """

    observation_space = Space("continuous", (1,), torch.float32, agents=NAMES)
    action_space = Space("discrete", (), torch.int64, n=2)

    def __init__(self, environments: int) -> None:
        self.count, self._environments, self._step = environments * len(NAMES), environments, 0

    def reset(self, seed: int) -> Tensor:
        self._step = 0
        return self._observe()

    def _observe(self) -> Tensor:
        present = torch.tensor([float(self._step <= agent) for agent in range(len(NAMES))])
        return ((1 + self._step) * present).repeat(self._environments).unsqueeze(1)

    def step(self, action: Tensor) -> Step:
        present = torch.tensor([float(self._step <= agent) for agent in range(len(NAMES))])
        reward = torch.tensor([1.0, 10.0, 100.0]) * present
        self._step += 1
        terminated = torch.tensor([self._step > agent for agent in range(len(NAMES))])
        final = self._observe()
        self._step %= len(NAMES)
        flags = terminated.repeat(self._environments)
        return Step(self._observe(), reward.repeat(self._environments), flags, torch.zeros_like(flags), final)

    def report(self) -> Report:
        return Report()

    def close(self) -> None:
        pass
