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


class TeamRecall:
    """Two agents are both shown the right one of two choices at the first step, and must both choose it at the last.

    Observations are [1 or -1 at the first step and 0 later, 1 at the last step]. A team without memory gets 1 in at
    most half of the episodes. Episodes of even environments terminate, those of odd ones are truncated.
    """

    observation_space = Space("continuous", (2,), torch.float32, agents=("left", "right"))
    action_space = Space("discrete", (), torch.int64, n=2)

    def __init__(self, environments: int, steps: int = 3) -> None:
        self.count, self._steps, self._step = environments * 2, steps, 0
        self._cue, self._generator = torch.zeros(environments), torch.Generator()

    def reset(self, seed: int) -> Tensor:
        self._generator.manual_seed(seed)
        return self._begin()

    def _begin(self) -> Tensor:
        self._cue = torch.randint(2, (len(self._cue),), generator=self._generator) * 2.0 - 1.0
        self._step = 0
        return self._observe()

    def _observe(self) -> Tensor:
        shown = self._cue if self._step == 0 else torch.zeros_like(self._cue)
        last = torch.full_like(shown, float(self._step == self._steps - 1))
        return torch.stack((shown, last), 1).repeat_interleave(2, 0)

    def step(self, action: Tensor) -> Step:
        ends = self._step == self._steps - 1
        right = (action.view(-1, 2) * 2 - 1 == self._cue.unsqueeze(1)).all(1)
        reward = (right & ends).float().repeat_interleave(2) / 2
        self._step += 1
        final = self._observe()
        even = torch.arange(len(self._cue)).repeat_interleave(2) % 2 == 0
        terminated, truncated = even & ends, ~even & ends
        return Step(self._begin() if ends else final, reward, terminated, truncated, final)

    def report(self) -> Report:
        return Report()

    def close(self) -> None:
        pass


class OwnNumber:
    """Two agents observe the same, and each gets 1 if it chooses its own number; episodes have one step."""

    observation_space = Space("continuous", (1,), torch.float32, agents=("zero", "one"))
    action_space = Space("discrete", (), torch.int64, n=2)

    def __init__(self, environments: int) -> None:
        self.count, self._own = environments * 2, torch.arange(2).repeat(environments)
        self._seen = torch.ones(self.count, 1)

    def reset(self, seed: int) -> Tensor:
        return self._seen

    def step(self, action: Tensor) -> Step:
        ended = torch.ones(self.count, dtype=torch.bool)
        return Step(self._seen, (action == self._own).float(), ended, torch.zeros_like(ended), self._seen)

    def report(self) -> Report:
        return Report()

    def close(self) -> None:
        pass
