"""Isaac Gym Preview 4 with IsaacGymEnvs, whose lanes reset in the step after the one that ended an episode.

Here a lane has to begin its next episode in the same step. A task whose `reset_idx(ids)` and `compute_observations()`
can be called by themselves (Ant, Humanoid, Cartpole and most others) is told to do at once what it would have done
within its next step: no transition is lost, and none is made up. (A task that keeps a history in
`compute_observations()` has an entry twice after such a step.) Where a task resets in another way, its next step
remains void: it is passed on as the first step of the new episode, from the old episode's last observation, with a
reward of 0.

The time limit and a death in the very same step cannot be told apart: `time_outs` is set for both, so both are
truncated.
"""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

from .serving import seed_everything

if TYPE_CHECKING:
    import torch


class Engine:
    """A vectorized task.

    Attributes:
        observation_shape: Of one lane.
        action_shape: Of one lane.
        low: Lower bound of each element of an action.
        high: Upper bound of each.
        device: Where its tensors lie.
        note: What whoever uses it should know.
    """

    def __init__(self, opening: dict[str, Any]) -> None:
        """Makes the task.

        Args:
            opening: `task`, `count`, `device`.
        """
        # Before torch: it refuses to be imported after it.
        importlib.import_module("isaacgym")
        environments = importlib.import_module("isaacgymenvs")
        import torch

        # `make` takes a seed and does nothing with it.
        seed_everything(0)
        self.device = opening["device"]
        self._env = environments.make(
            seed=0,
            task=opening["task"],
            num_envs=opening["count"],
            sim_device=self.device,
            rl_device=self.device,
            graphics_device_id=-1,
            headless=True,
            multi_gpu=False,
            virtual_screen_capture=False,
            force_render=False,
        )
        space = self._env.action_space
        self.observation_shape = tuple(self._env.observation_space.shape)
        self.action_shape = tuple(space.shape)
        self.low, self.high = space.low.ravel().tolist(), space.high.ravel().tolist()
        self._resets_at_once = _takes(self._env, "reset_idx", 1) and _takes(self._env, "compute_observations", 0)
        self.note = "" if self._resets_at_once else "the first step of every episode is void: the task resets late"
        self._void = torch.zeros(opening["count"], dtype=torch.bool, device=self.device)

    def reset(self, seed: int) -> torch.Tensor:
        """Begins an episode in every lane and returns the first observations.

        The task's own `reset` returns zeros. Lanes that are marked as ended begin anew within a step.
        """
        seed_everything(seed)
        self._env.reset_buf.fill_(1)
        self._void.fill_(False)
        observation: torch.Tensor = self._env.step(self._env.zero_actions())[0]["obs"].clone()
        return observation

    def step(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Steps; returns observation, reward, terminated, truncated and final observation."""
        said, reward, reset, extras = self._env.step(action)
        # All of these may be the task's own buffers, which change when lanes are reset.
        observation, reward = said["obs"].clone(), reward.masked_fill(self._void, 0.0)
        ended = reset != 0
        truncated = ended & extras["time_outs"].bool()
        terminated = ended & ~truncated
        self._void.fill_(False)
        final_observation = observation
        lanes = ended.nonzero(as_tuple=False).flatten()
        if len(lanes):
            if self._resets_at_once:
                observation = observation.clone()
                observation[lanes] = self._begin(lanes)
            else:
                self._void[lanes] = True
        return observation, reward, terminated, truncated, final_observation

    def _begin(self, lanes: torch.Tensor) -> torch.Tensor:
        """Begins episodes in some lanes and returns their first observations, clipped as `step` clips them."""
        import torch

        env = self._env
        env.reset_idx(lanes)
        env.compute_observations()
        first: torch.Tensor = torch.clamp(env.obs_buf[lanes], -env.clip_obs, env.clip_obs)
        return first.to(self.device)

    def close(self) -> None:
        """Nothing: the process ends."""


def _takes(env: Any, name: str, arguments: int) -> bool:
    """Whether a method can be called with so many arguments."""
    method = getattr(env, name, None)
    if method is None:
        return False
    try:
        inspect.signature(method).bind(*range(arguments))
    except TypeError:
        return False
    return True
