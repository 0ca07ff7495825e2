"""A point on a line that has to stay near 0: cheap enough to learn on."""

import torch

from isaacgymenvs.tasks.vec_task import VecTask


class Point(VecTask):
    """Position and speed; terminates far from 0."""

    observations, actions = 2, 1
    max_episode_length = 51

    def __init__(self, num_envs, rl_device):
        super().__init__(num_envs, rl_device)
        self.state = torch.zeros(num_envs, 2)

    def simulate(self):
        self.state[:, 1] += 0.2 * self.applied[:, 0]
        self.state[:, 0] += 0.2 * self.state[:, 1]

    def reset_idx(self, env_ids):
        self.state[env_ids] = torch.rand(len(env_ids), 2) - 0.5
        self.progress_buf[env_ids] = 0
        self.reset_buf[env_ids] = 0

    def compute_observations(self):
        self.obs_buf[:] = self.state

    def compute_reward(self, actions):
        self.rew_buf[:] = 1.0 - self.state[:, 0].square()
        over = (self.state[:, 0].abs() > 2.0) | (self.progress_buf >= self.max_episode_length - 1)
        self.reset_buf[:] = torch.where(over, torch.ones_like(self.reset_buf), self.reset_buf)
