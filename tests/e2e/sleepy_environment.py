"""An environment that sleeps, so that the rate of a pod depends on time and not on the cores of the machine."""

import time
from typing import Any

import gymnasium
import numpy as np

STEP_SECONDS = 0.005
EPISODE_STEPS = 40


class Sleepy(gymnasium.Env[np.ndarray, int]):
    """Rewards the action 1; every step takes STEP_SECONDS."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(STEP_SECONDS)
        self._steps += 1
        return np.zeros(4, np.float32), float(action), False, self._steps >= EPISODE_STEPS, {}
