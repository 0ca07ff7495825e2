"""The interface of isaacgymenvs.tasks.base.vec_task.VecTask, with its order of updates."""

import numpy as np
import torch


class Box:
    """The used part of gym.spaces.Box."""

    def __init__(self, low, high):
        self.low, self.high, self.shape = low, high, low.shape


class VecTask:
    """Its buffers live as long as the task; `step` returns them without copying, except for the clipped
    observations."""

    observations = 0
    actions = 0
    max_episode_length = 1000

    def __init__(self, num_envs, rl_device):
        self.num_envs, self.rl_device, self.device = num_envs, rl_device, rl_device
        self.observation_space = Box(np.full(self.observations, -np.inf), np.full(self.observations, np.inf))
        self.action_space = Box(np.full(self.actions, -1.0), np.full(self.actions, 1.0))
        self.clip_obs, self.clip_actions = 5.0, 1.0
        self.obs_buf = torch.zeros(num_envs, self.observations, device=self.device)
        self.rew_buf = torch.zeros(num_envs, device=self.device)
        self.reset_buf = torch.ones(num_envs, device=self.device, dtype=torch.long)
        self.timeout_buf = torch.zeros(num_envs, device=self.device, dtype=torch.long)
        self.progress_buf = torch.zeros(num_envs, device=self.device, dtype=torch.long)
        self.obs_dict, self.extras = {}, {}

    def step(self, actions):
        """Applies actions, simulates, resets the lanes that ended one step ago (in most tasks), observes."""
        self.pre_physics_step(torch.clamp(actions, -self.clip_actions, self.clip_actions))
        self.simulate()
        self.post_physics_step()
        self.timeout_buf = (self.progress_buf >= self.max_episode_length - 1) & (self.reset_buf != 0)
        self.extras["time_outs"] = self.timeout_buf.to(self.rl_device)
        self.obs_dict["obs"] = torch.clamp(self.obs_buf, -self.clip_obs, self.clip_obs).to(self.rl_device)
        return self.obs_dict, self.rew_buf.to(self.rl_device), self.reset_buf.to(self.rl_device), self.extras

    def zero_actions(self):
        """Returns zero actions for all lanes."""
        return torch.zeros([self.num_envs, self.actions], dtype=torch.float32, device=self.rl_device)

    def reset(self):
        """Resets nothing and returns the current buffer, which is initially zero."""
        self.obs_dict["obs"] = torch.clamp(self.obs_buf, -self.clip_obs, self.clip_obs).to(self.rl_device)
        return self.obs_dict

    def pre_physics_step(self, actions):
        """Stores the actions."""
        self.applied = actions.clone().to(self.device)

    def post_physics_step(self):
        """Resets, then observes and rewards, as the locomotion tasks do."""
        self.progress_buf += 1
        env_ids = self.reset_buf.nonzero(as_tuple=False).flatten()
        if len(env_ids) > 0:
            self.reset_idx(env_ids)
        self.compute_observations()
        self.compute_reward(self.applied)
