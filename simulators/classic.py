"""Steps the classic control tasks as one batch: a step is a few operations over all lanes, on the CPU or a GPU.

The CPU version uses numpy, which takes a quarter of torch's time for a few lanes and no more for thousands. The other
uses torch and never waits for the device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from podrace.errors import InvalidArgument
from simulators.base import Report, Step
from simulators.classic_tasks import TASKS, ClassicTask
from simulators.noise import EpisodeNoise
from simulators.options import parse_options

Lanes = NDArray[np.int64]
Numbers = NDArray[np.float32]
FIRST_STATES = 64
"""Number of first states drawn at a time for each lane."""


@dataclass(frozen=True)
class ClassicOptions:
    """Options of a specification."""

    max_episode_steps: int = 0
    """Steps after which an episode is truncated; 0 = Gymnasium's limit."""


def make(id: str, count: int, options: Mapping[str, object], device: str) -> "ClassicOnCpu | ClassicOnDevice":
    """Makes `count` lanes of a task.

    Args:
        id: Key of `simulators.classic_tasks.TASKS`.
        count: Number of lanes.
        options: Fields of ClassicOptions.
        device: Where the lanes are stepped.

    Raises:
        InvalidArgument: An option is unknown, or its value cannot be used.
    """
    steps = parse_options(id, options, ClassicOptions).max_episode_steps
    if steps < 0:
        raise InvalidArgument(
            f"{id}: option 'max_episode_steps' must be at least 1, or 0 for Gymnasium's limit, not {steps}"
        )
    task = TASKS[id]()
    if torch.device(device).type == "cpu":
        return ClassicOnCpu(task, count, steps or task.maximum_steps)
    return ClassicOnDevice(task, count, steps or task.maximum_steps, device)


class ClassicOnCpu:
    """N lanes stepped by numpy. See simulators.base.Simulator for the methods.

    Attributes:
        observation_space: See simulators.base.Space.
        action_space: See simulators.base.Space.
        count: Number of lanes, N.
    """

    def __init__(self, task: ClassicTask, count: int, maximum_steps: int) -> None:
        """Starts episodes with seed 0; `reset` chooses another seed."""
        self.observation_space, self.action_space, self.count = task.observation_space, task.action_space, count
        self._task, self._maximum_steps = task, maximum_steps
        self._live = _empty_step(task, count, "cpu")
        # Transposed views: the equations return one array per element of an observation.
        self._observed = self._live.observation.numpy().T
        self._final_observed = self._live.final_observation.numpy().T
        self._reward = self._live.reward.numpy()
        self._terminated, self._truncated = self._live.terminated.numpy(), self._live.truncated.numpy()
        self._state = np.zeros((task.state_size, count), np.float32)
        self._first_states = np.zeros((count, FIRST_STATES, task.state_size), np.float32)
        self._steps, self._episode = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.reset(0)

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator; the seed determines the states in which episodes start."""
        self._noise = EpisodeNoise(seed)
        self._episode.fill(0)
        self._begin_episodes(np.arange(self.count))
        return self._live.observation

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        wanted = action.numpy().reshape(self.count).astype(np.float32, copy=False)
        outcome = self._task.advance(np, tuple(self._state), wanted)
        self._state[:] = outcome.state
        self._reward[:], self._terminated[:] = outcome.reward, outcome.terminated
        self._steps += 1
        np.greater(self._steps >= self._maximum_steps, self._terminated, out=self._truncated)
        self._observed[:] = self._task.observe(np, outcome.state)
        ended = np.flatnonzero(self._terminated | self._truncated)
        if len(ended):
            self._final_observed[:, ended] = self._observed[:, ended]
            self._episode[ended] += 1
            self._begin_episodes(ended)
        return self._live

    def _begin_episodes(self, lanes: Lanes) -> None:
        place = self._episode[lanes] % FIRST_STATES
        # Many are drawn at a time: drawn one by one they would cost more than the step.
        self._draw(lanes[place == 0])
        self.set_state(lanes, self._first_states[lanes, place].T)

    def _draw(self, lanes: Lanes) -> None:
        """Draws the first states of the next FIRST_STATES episodes."""
        if len(lanes):
            episodes = self._episode[lanes, None] + np.arange(FIRST_STATES)
            which = np.broadcast_to(lanes[:, None], episodes.shape)
            noise = self._noise.uniform(which.ravel(), episodes.ravel(), self._task.state_size)
            states = np.stack(self._task.begin(tuple(noise.T)), axis=-1)
            self._first_states[lanes] = states.reshape(*episodes.shape, -1)

    def set_state(self, lanes: Lanes, state: Numbers) -> None:
        """Starts episodes in given states.

        Args:
            lanes: [K].
            state: [S, K], its elements in the task's order.
        """
        self._state[:, lanes] = state
        self._steps[lanes] = 0
        self._observed[:, lanes] = self._task.observe(np, tuple(self._state[:, lanes]))

    @property
    def state(self) -> Numbers:
        """The present states, [S, N]; do not write to them."""
        return self._state

    def report(self) -> Report:
        """Returns an empty report: the classic tasks have no measure except the return."""
        return Report()

    def close(self) -> None:
        """Has no resources to free."""


class ClassicOnDevice:
    """N lanes stepped by torch on an accelerator; a mask resets the lanes that ended, so the host never waits.

    See ClassicOnCpu for the other attributes. First states come from a single generator on the device: they depend on
    the number of lanes and on when episodes end.

    Attributes:
        generator: Draws the first states.
    """

    def __init__(self, task: ClassicTask, count: int, maximum_steps: int, device: str) -> None:
        """Starts episodes with seed 0; `reset` chooses another seed."""
        self.observation_space, self.action_space, self.count = task.observation_space, task.action_space, count
        self._task, self._maximum_steps, self._device = task, maximum_steps, torch.device(device)
        self._live = _empty_step(task, count, device)
        self._state = torch.zeros(task.state_size, count, device=self._device)
        self._steps = torch.zeros(count, dtype=torch.int32, device=self._device)
        self.generator = torch.Generator(self._device)
        self.reset(0)

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator; the seed determines the states in which episodes start."""
        self.generator.manual_seed(seed)
        self._state.copy_(self._first_states())
        self._steps.zero_()
        self._observe(self._live.observation)
        return self._live.observation

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        live = self._live
        outcome = self._task.advance(torch, self._state.unbind(), action.reshape(self.count).float())
        self._state.copy_(torch.stack(outcome.state))
        _put(live.reward, outcome.reward)
        _put(live.terminated, outcome.terminated)
        self._steps += 1
        torch.gt(self._steps >= self._maximum_steps, live.terminated, out=live.truncated)
        self._observe(live.final_observation)
        ended = live.terminated | live.truncated
        self._state.copy_(torch.where(ended, self._first_states(), self._state))
        self._steps.masked_fill_(ended, 0)
        self._observe(live.observation)
        return live

    @property
    def capturable(self) -> "ClassicOnDevice":
        """See simulators.cuda_graph.Capturable."""
        return self

    @property
    def graph_generators(self) -> Sequence[torch.Generator]:
        """See simulators.cuda_graph.Capturable."""
        return (self.generator,)

    def _first_states(self) -> Tensor:
        noise = torch.rand(self._state.shape, generator=self.generator, device=self._device)
        return torch.stack(self._task.begin(noise.unbind()))

    def _observe(self, observation: Tensor) -> None:
        torch.stack(self._task.observe(torch, self._state.unbind()), dim=1, out=observation)

    def report(self) -> Report:
        """Returns an empty report: the classic tasks have no measure except the return."""
        return Report()

    def close(self) -> None:
        """Has no resources to free: the tensors are freed with the simulator."""


def _put(destination: Tensor, value: Tensor | float | bool) -> None:
    if isinstance(value, Tensor):
        destination.copy_(value)
    else:
        destination.fill_(value)


def _empty_step(task: ClassicTask, count: int, device: str) -> Step:
    shape = (count, *task.observation_space.shape)
    return Step(
        observation=torch.zeros(shape, device=device),
        reward=torch.zeros(count, device=device),
        terminated=torch.zeros(count, dtype=torch.bool, device=device),
        truncated=torch.zeros(count, dtype=torch.bool, device=device),
        final_observation=torch.zeros(shape, device=device),
    )
