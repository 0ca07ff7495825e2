"""Steps Isaac Lab, whose lanes reset in the step that ends an episode, as the Simulator interface requires.

From version 3.0 on it can keep the last observations of episodes (`compute_final_obs`). Before that they are lost, and
the observation before the last step replaces them: a truncated episode is bootstrapped from the value of the state in
which its last step began, as in the training libraries shipped with Isaac Lab.
"""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any

from .serving import seed_everything

if TYPE_CHECKING:
    import torch

POLICY = "policy"


class IsaacLabEngine:
    """A registered environment; the attributes are those of IsaacGymEngine."""

    def __init__(self, opening: dict[str, Any]) -> None:
        """Starts the application and makes the environment.

        Args:
            opening: `task`, `count`, `device`.
        """
        # The rest of Isaac Lab can be imported only in a running application.
        launcher = importlib.import_module("isaaclab.app").AppLauncher
        self._app = launcher(headless=True, device=opening["device"]).app
        import gymnasium

        importlib.import_module("isaaclab_tasks")
        tools = importlib.import_module("isaaclab_tasks.utils")
        task = opening["task"]
        self.device = opening["device"]
        configuration = tools.parse_env_cfg(task, device=self.device, num_envs=opening["count"])
        configuration.seed = 0
        keeps_final = hasattr(configuration, "compute_final_obs")
        if keeps_final:
            configuration.compute_final_obs = True
        env: Any = gymnasium.make(task, cfg=configuration).unwrapped
        self._env = env
        space = env.single_action_space
        self.observation_shape = tuple(env.single_observation_space[POLICY].shape)
        self.action_shape = tuple(space.shape)
        # Most of its tasks have unbounded actions, and scale them themselves.
        self.low = [low if math.isfinite(low) else -1.0 for low in space.low.ravel().tolist()]
        self.high = [high if math.isfinite(high) else 1.0 for high in space.high.ravel().tolist()]
        self.note = "" if keeps_final else "the last observation of an episode is the one before its last step"
        self._before: Any = None

    def reset(self, seed: int) -> torch.Tensor:
        """Starts an episode in every lane and returns the first observations."""
        seed_everything(seed)
        observations, _ = self._env.reset(seed=seed)
        self._before = observations[POLICY].clone()
        observation: torch.Tensor = self._before
        return observation

    def step(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Steps; returns observation, reward, terminated, truncated and final observation."""
        observations, reward, terminated, truncated, extras = self._env.step(action)
        final = extras.get("final_obs")
        final_observation = self._before if final is None else final[POLICY].clone()
        self._before = observations[POLICY].clone()
        return self._before, reward, terminated, truncated & ~terminated, final_observation

    def close(self) -> None:
        """Closes the environment; the application ends with the process."""
        self._env.close()
