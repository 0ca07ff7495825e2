"""Tasks whose observations and rewards encode lane, episode and step."""

import torch

from isaacgymenvs.tasks.vec_task import VecTask


class Counter(VecTask):
    """Observes (episode, its steps, 2000, which is clipped to 1000).

    Lane i terminates when action i is above 0.5, otherwise after 4 steps. The reward is 100 x episode + steps.
    """

    observations, actions = 3, 1
    max_episode_length = 5

    def __init__(self, num_envs, rl_device):
        super().__init__(num_envs, rl_device)
        self.clip_obs = 1000.0
        self.episode = torch.full((num_envs,), -1.0)
        self.steps = torch.zeros(num_envs)

    def simulate(self):
        self.steps += 1

    def reset_idx(self, env_ids):
        self.episode[env_ids] += 1
        self.steps[env_ids] = 0
        self.progress_buf[env_ids] = 0
        self.reset_buf[env_ids] = 0

    def compute_observations(self):
        self.obs_buf[:] = torch.stack([self.episode, self.steps, torch.full_like(self.steps, 2000.0)], dim=1)

    def compute_reward(self, actions):
        self.rew_buf[:] = 100 * self.episode + self.steps
        # A lane that has just been reset has not received an action yet.
        dead = (actions[:, 0] > 0.5) & (self.steps > 0)
        over = dead | (self.progress_buf >= self.max_episode_length - 1)
        self.reset_buf[:] = torch.where(over, torch.ones_like(self.reset_buf), self.reset_buf)


class LateCounter(Counter):
    """Resets as the hand tasks do: before the physics step, with more arguments than the lanes."""

    def pre_physics_step(self, actions):
        env_ids = self.reset_buf.nonzero(as_tuple=False).flatten()
        if len(env_ids) > 0:
            self.reset_idx(env_ids, env_ids)
        super().pre_physics_step(actions)

    def reset_idx(self, env_ids, goal_env_ids):
        super().reset_idx(env_ids)
        # The simulation later in the same step counts up.
        self.steps[goal_env_ids] = -1

    def post_physics_step(self):
        self.progress_buf += (self.steps > 0).long()
        self.compute_observations()
        self.compute_reward(self.applied)


class Crashing(Counter):
    """Fails on command: raises an exception for an action above 0.9, kills its process for one below -0.9."""

    def pre_physics_step(self, actions):
        if (actions > 0.9).any():
            raise RuntimeError("PhysX: out of\n  memory")
        if (actions < -0.9).any():
            import os
            import sys

            print("Segmentation fault (core dumped)", file=sys.stderr, flush=True)
            os._exit(139)
        super().pre_physics_step(actions)
