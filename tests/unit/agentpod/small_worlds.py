"""Simulators in which a single ability determines the return; addressed as `python:small_worlds:<class>`."""

import torch
from torch import Tensor

from simulators.base import Report, Space, Step


class Recall:
    """Shows the right one of two choices at the first step only, and rewards it at the last step.

    Observations are [1 or -1 at the first step and 0 later, 1 at the last step]. The right choice at the last step is
    worth 1, earlier choices 0. Without memory the mean return is 0.5. Even lanes terminate, odd lanes
    are truncated.
    """

    observation_space = Space("continuous", (2,), torch.float32)
    action_space = Space("discrete", (), torch.int64, n=2)

    def __init__(self, count: int, steps: int = 6) -> None:
        self.count, self._steps = count, steps
        self._cue, self._step = torch.zeros(count), torch.zeros(count, dtype=torch.int64)
        self._generator = torch.Generator()

    def _observe(self) -> Tensor:
        shown = torch.where(self._step == 0, self._cue, 0.0)
        return torch.stack((shown, (self._step == self._steps - 1).float()), 1)

    def _begin(self, lanes: Tensor) -> None:
        cue = torch.randint(2, (self.count,), generator=self._generator) * 2.0 - 1.0
        self._cue = torch.where(lanes, cue, self._cue)
        self._step[lanes] = 0

    def reset(self, seed: int) -> Tensor:
        self._generator.manual_seed(seed)
        self._begin(torch.ones(self.count, dtype=torch.bool))
        return self._observe()

    def step(self, action: Tensor) -> Step:
        done = self._step == self._steps - 1
        reward = (done & (action * 2 - 1 == self._cue)).float()
        self._step += 1
        final_observation = self._observe()
        self._begin(done)
        even = torch.arange(self.count) % 2 == 0
        return Step(self._observe(), reward, done & even, done & ~even, final_observation)

    def report(self) -> Report:
        return Report()

    def close(self) -> None:
        pass


class Dot:
    """Shows a bright dot in a dark, noisy image [1, 12, 12]; choosing its side, left or right, gives a reward of 1.

    Episodes have eight steps; the dot moves at every step.
    """

    observation_space = Space("continuous", (1, 12, 12), torch.uint8, low=(0.0,) * 144, high=(255.0,) * 144)
    action_space = Space("discrete", (), torch.int64, n=2)

    def __init__(self, count: int) -> None:
        self.count, self._step, self._generator = count, 0, torch.Generator()

    def _observe(self) -> Tensor:
        self._side = torch.randint(2, (self.count,), generator=self._generator)
        column = torch.randint(6, (self.count,), generator=self._generator) + 6 * self._side
        row = torch.randint(12, (self.count,), generator=self._generator)
        picture = torch.randint(60, (self.count, 1, 12, 12), generator=self._generator, dtype=torch.uint8)
        picture[torch.arange(self.count), 0, row, column] = 255
        return picture

    def reset(self, seed: int) -> Tensor:
        self._generator.manual_seed(seed)
        self._step = 0
        return self._observe()

    def step(self, action: Tensor) -> Step:
        reward = (action == self._side).float()
        self._step = (self._step + 1) % 8
        observation, never = self._observe(), torch.zeros(self.count, dtype=torch.bool)
        return Step(observation, reward, torch.full_like(never, self._step == 0), never, observation)

    def report(self) -> Report:
        return Report()

    def close(self) -> None:
        pass


class SignedDot(Dot):
    """Dot with continuous actions, whose sign chooses the side."""

    action_space = Space("continuous", (2,), torch.float32, low=(-1.0, -1.0), high=(1.0, 1.0))

    def step(self, action: Tensor) -> Step:
        return super().step((action[:, 0] > 0).long())
