"""Wraps podrace's simulators as vector environments of Stable-Baselines3, and measures what that costs."""

import statistics
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, Space
from stable_baselines3.common.vec_env import VecEnv

from simulators import make


def gymnasium_space(space: Any) -> Space[Any]:
    """Translates a space."""
    if space.kind == "discrete":
        return Discrete(space.n)
    low = -np.inf if space.low is None else np.array(space.low, np.float32).reshape(space.shape)
    high = np.inf if space.high is None else np.array(space.high, np.float32).reshape(space.shape)
    return Box(low, high, space.shape, np.float32)


class SimulatorVecEnv(VecEnv):
    """The lanes of a simulator as one vector environment, stepped by one call."""

    def __init__(self, id: str, options: Mapping[str, Any], count: int, seed: int) -> None:
        """Makes the simulator.

        Args:
            id: Id of the simulator.
            options: Its options.
            count: Number of lanes.
            seed: Seed of `reset`.
        """
        self.simulator, self._seed = make(id, count, options=options), seed
        self._discrete = self.simulator.action_space.kind == "discrete"
        super().__init__(
            count,
            gymnasium_space(self.simulator.observation_space),
            gymnasium_space(self.simulator.action_space),
        )

    def reset(self) -> Any:
        return self.simulator.reset(self._seed).numpy().copy()

    def step_async(self, actions: Any) -> None:
        kind = torch.int64 if self._discrete else torch.float32
        self._step = self.simulator.step(torch.as_tensor(actions, dtype=kind))

    def step_wait(self) -> Any:
        step = self._step
        ended = (step.terminated | step.truncated).numpy().copy()
        information: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for lane in ended.nonzero()[0]:
            information[lane] = {
                "terminal_observation": step.final_observation[lane].numpy().copy(),
                "TimeLimit.truncated": bool(step.truncated[lane]),
            }
        return step.observation.numpy().copy(), step.reward.numpy().copy(), ended, information

    def close(self) -> None:
        self.simulator.close()

    def env_method(self, method_name: str, *_: Any, indices: Any = None, **__: Any) -> list[Any]:
        raise NotImplementedError(method_name)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError(attr_name)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


def overhead(id: str, options: Mapping[str, Any], count: int, steps: int) -> tuple[float, float]:
    """Measures what the wrapper adds to a step, with constant actions.

    The time of the simulator is taken within each step of the wrapper, so that other load on the machine counts for
    both.

    Args:
        id: Id of the simulator.
        options: Its options.
        count: Number of lanes.
        steps: Number of steps to measure.

    Returns:
        Medians over the steps, in seconds: of the simulator's step, and of what the wrapper adds to it.
    """
    environment = SimulatorVecEnv(id, options, count, seed=1)
    actions = np.stack([environment.action_space.sample() for _ in range(count)])
    step, inside = environment.simulator.step, 0.0

    def timed(action: torch.Tensor) -> Any:
        nonlocal inside
        began = time.perf_counter()
        answer = step(action)
        inside = time.perf_counter() - began
        return answer

    environment.simulator.step = timed  # type: ignore[method-assign]
    simulator, added = [], []
    try:
        environment.reset()
        for _ in range(steps):
            began = time.perf_counter()
            environment.step(actions)
            simulator.append(inside)
            added.append(time.perf_counter() - began - inside)
    finally:
        environment.close()
    return statistics.median(simulator), statistics.median(added)
