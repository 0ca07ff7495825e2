"""Steps Isaac Lab, whose lanes reset in the step that ends an episode, as the Simulator interface requires.

From version 3.0 on it can keep the last observations of episodes (`compute_final_obs`). Before that they are lost, and
the observation before the last step replaces them: a truncated episode is bootstrapped from the value of the state in
which its last step began, as in the training libraries shipped with Isaac Lab.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from .lab_spaces import ActionKind, elements_of, entries_of, parts_of, rows_of
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
        self.actions = ActionKind(env.single_action_space)
        observed = env.single_observation_space[POLICY]
        self._single = not parts_of(observed)
        plain = type(observed).__name__ == "Box" and np.issubdtype(observed.dtype, np.floating)
        # An observation that is no Dict is an entry named `policy`, unless its numbers are the row itself.
        path = (POLICY,) if self._single else ()
        self.entries = [] if plain else entries_of(observed, sum(self.actions.choices), path)
        elements = sum(elements_of(entry) for entry in self.entries)
        self.observation_shape = (elements,) if self.entries else tuple(observed.shape)
        self.note = "" if keeps_final else "the last observation of an episode is the one before its last step"
        self._before: Any = None

    def reset(self, seed: int) -> torch.Tensor:
        """Starts an episode in every lane and returns the first observations, [N, *observation_shape]."""
        seed_everything(seed)
        observations, _ = self._env.reset(seed=seed)
        self._before = self._observed(observations)
        observation: torch.Tensor = self._before
        return observation

    def step(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Steps all lanes with the actions [N, ...]; returns what IsaacGymEngine.step returns."""
        observations, reward, terminated, truncated, extras = self._env.step(self.actions.for_task(action))
        final = extras.get("final_obs")
        final_observation = self._before if final is None else self._observed(final)
        self._before = self._observed(observations)
        return self._before, reward, terminated, truncated & ~terminated, final_observation

    def _observed(self, observations: Any) -> torch.Tensor:
        """Returns a copy of the observations, [N, ...]; those of a Dict are one row, entry after entry."""
        if not self.entries:
            copied: torch.Tensor = observations[POLICY].clone()
            return copied
        return rows_of(self.entries, observations if self._single else observations[POLICY])

    def close(self) -> None:
        """Closes the environment; the application ends with the process."""
        self._env.close()
