"""Wraps one of podrace's simulators as a vector environment of Stable-Baselines3."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from stable_baselines3.common.vec_env import VecEnv

from simulators import make


class Batch(VecEnv):
    """N lanes of a simulator, whose episodes start with one seed."""

    def __init__(self, id: str, options: Mapping[str, Any], count: int, seed: int) -> None:
        self.simulator, self._seed = make(id, count, options=options), seed
        observed, acted = self.simulator.observation_space, self.simulator.action_space
        super().__init__(
            count,
            Box(-np.inf, np.inf, observed.shape, np.float32),
            Box(
                np.array(acted.low, np.float32).reshape(acted.shape),
                np.array(acted.high, np.float32).reshape(acted.shape),
            ),
        )

    def reset(self) -> Any:
        return self.simulator.reset(self._seed).numpy().copy()

    def step_async(self, actions: Any) -> None:
        self._step = self.simulator.step(torch.as_tensor(actions, dtype=torch.float32))

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

    def measures(self) -> dict[str, float]:
        return self.simulator.report().metrics

    def close(self) -> None:
        self.simulator.close()

    def env_method(self, method_name: str, *_: Any, indices: Any = None, **__: Any) -> list[Any]:
        return [getattr(self, method_name)()]

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError(attr_name)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs
