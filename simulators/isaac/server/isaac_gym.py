"""Steps Isaac Gym Preview 4 with IsaacGymEnvs, whose lanes reset in the step after the one that ended an episode.

The Simulator interface requires a lane to start its next episode in the same step. If `reset_idx(ids)` and
`compute_observations()` of a task can be called separately (in Ant, Humanoid, Cartpole and most others), they are
called at once, to do what the task would have done in its next step: no transition is lost or invented. (A task that
keeps a history in `compute_observations()` has one entry twice after such a step.) If a task resets in another way, its
next step is void. It is returned as the first step of the new episode, from the old episode's last observation, with a
reward of 0.

A termination in the very step of the time limit cannot be recognized: `time_outs` is set for both, so both are reported
as truncated.
"""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

from .lab_spaces import ActionKind
from .serving import seed_everything

if TYPE_CHECKING:
    import torch


class IsaacGymEngine:
    """A vectorized task.

    Attributes:
        observation_shape: Shape of one lane's observation.
        entries: Entries of an observation of several parts, whose elements are one row; [] of any other.
        actions: What its actions are.
        device: Where its tensors lie.
        note: A deviation from the interface that users should know about; "" if there is none.
    """

    def __init__(self, opening: dict[str, Any]) -> None:
        """Makes the task.

        Args:
            opening: `task`, `count`, `device`.
        """
        # Before torch: isaacgym refuses to be imported after it.
        importlib.import_module("isaacgym")
        environments = importlib.import_module("isaacgymenvs")
        import torch

        # `make` takes a seed and ignores it.
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
        self.observation_shape = tuple(self._env.observation_space.shape)
        self.entries: Any = []
        self.actions = ActionKind(self._env.action_space)
        self._resets_at_once = _takes(self._env, "reset_idx", 1) and _takes(self._env, "compute_observations", 0)
        self.note = (
            "" if self._resets_at_once else "the first step of every episode is void: the task resets one step late"
        )
        self._void = torch.zeros(opening["count"], dtype=torch.bool, device=self.device)

    def reset(self, seed: int) -> torch.Tensor:
        """Starts an episode in every lane and returns the first observations, [N, *observation_shape].

        The task's own `reset` returns zeros. Instead, every lane is marked as ended, and resets within a step.
        """
        seed_everything(seed)
        self._env.reset_buf.fill_(1)
        self._void.fill_(False)
        observation: torch.Tensor = self._env.step(self._env.zero_actions())[0]["obs"].clone()
        return observation

    def step(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Steps all lanes with the actions [N, ...].

        Returns:
            Observation [N, *observation_shape], reward [N], terminated [N], truncated [N] and final observation
            [N, *observation_shape], which is meaningful where an episode has ended.
        """
        observations, reward, reset, extras = self._env.step(action)
        # All of these may be the task's own buffers, which change when lanes are reset.
        observation, reward = observations["obs"].clone(), reward.masked_fill(self._void, 0.0)
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
        """Starts episodes in some lanes and returns their first observations, clipped as `step` clips them."""
        import torch

        env = self._env
        env.reset_idx(lanes)
        env.compute_observations()
        first: torch.Tensor = torch.clamp(env.obs_buf[lanes], -env.clip_obs, env.clip_obs)
        return first.to(self.device)

    def close(self) -> None:
        """Has no resources to free: the process exits."""


def _takes(env: Any, name: str, arguments: int) -> bool:
    """Whether a method exists and can be called with this number of arguments."""
    method = getattr(env, name, None)
    if method is None:
        return False
    try:
        inspect.signature(method).bind(*range(arguments))
    except TypeError:
        return False
    return True
