"""MuJoCo's ant in place of PhysX's."""

import numpy as np
import torch

from isaacgymenvs.tasks.vec_task import VecTask
from simulators.mujoco.batch import PhysicsBatch
from simulators.mujoco.simulator import _assets

TERMINATION_HEIGHT = 0.31
DEATH_COST = -2.0
ALIVE_REWARD = 0.5
SUBSTEPS = 5


class Ant(VecTask):
    """Runs along x; terminates when its torso is low."""

    observations, actions = 27, 8
    max_episode_length = 21

    def __init__(self, num_envs, rl_device):
        super().__init__(num_envs, rl_device)
        self.physics = PhysicsBatch(_assets() / "ant.xml", num_envs, 1)
        self.potentials = torch.zeros(num_envs)
        self.prev_potentials = torch.zeros(num_envs)

    def simulate(self):
        self.physics.ctrl[:] = self.applied.numpy()
        self.physics.step(SUBSTEPS)

    def reset_idx(self, env_ids):
        lanes = env_ids.numpy()
        positions = 0.4 * torch.rand(len(lanes), self.physics.model.nq) - 0.2
        velocities = 0.2 * torch.rand(len(lanes), self.physics.model.nv) - 0.1
        positions[:, :7] = 0.0
        self.physics.reset(lanes)
        self.physics.qpos[lanes] = self.physics.model.qpos0 + positions.numpy()
        self.physics.qvel[lanes] = velocities.numpy()
        self.physics.forward(lanes)
        self.potentials[env_ids] = self.prev_potentials[env_ids] = 0.0
        self.progress_buf[env_ids] = 0
        self.reset_buf[env_ids] = 0

    def compute_observations(self):
        rows = np.concatenate([self.physics.qpos[:, 2:], self.physics.qvel], axis=1)
        self.obs_buf[:] = torch.from_numpy(rows)
        self.prev_potentials[:] = self.potentials
        self.potentials[:] = torch.from_numpy(self.physics.qpos[:, 0]) / (SUBSTEPS * 0.01)

    def compute_reward(self, actions):
        dead = self.obs_buf[:, 0] < TERMINATION_HEIGHT
        reward = ALIVE_REWARD + self.potentials - self.prev_potentials - 0.005 * actions.square().sum(1)
        self.rew_buf[:] = torch.where(dead, torch.full_like(reward, DEATH_COST), reward)
        over = dead | (self.progress_buf >= self.max_episode_length - 1)
        self.reset_buf[:] = torch.where(over, torch.ones_like(self.reset_buf), self.reset_buf)
