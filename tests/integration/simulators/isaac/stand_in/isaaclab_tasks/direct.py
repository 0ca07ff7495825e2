"""MuJoCo's ant with the interface of isaaclab.envs.DirectRLEnv: lanes reset in the step that ends their episode."""

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from simulators.mujoco.batch import PhysicsBatch
from simulators.mujoco.simulator import _assets

EPISODE_STEPS = 20


class AntEnv(gymnasium.Env):
    """Runs along x; both flags may be set in the same step."""

    def __init__(self, cfg):
        self.cfg, self.num_envs, self.device = cfg, cfg.num_envs, torch.device(cfg.device)
        unbounded = spaces.Box(-np.inf, np.inf, (27,))
        self.single_observation_space = spaces.Dict({"policy": unbounded})
        self.single_action_space = spaces.Box(-np.inf, np.inf, (8,))
        self.physics = PhysicsBatch(_assets() / "ant.xml", self.num_envs, 1)
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)
        self.extras = {}

    def reset(self, seed=None, options=None):
        torch.manual_seed(seed)
        self._reset_idx(torch.arange(self.num_envs))
        return self._get_observations(), self.extras

    def step(self, action):
        self.physics.ctrl[:] = action.clamp(-1, 1).numpy()
        before = self.physics.qpos[:, 0].copy()
        self.physics.step(5)
        self.episode_length_buf += 1
        before_reset = self._get_observations()
        self.reward_buf = torch.from_numpy((self.physics.qpos[:, 0] - before) / 0.05).float() + 0.5
        self.reset_terminated = torch.from_numpy(self.physics.qpos[:, 2] < 0.31)
        self.reset_time_outs = self.episode_length_buf >= EPISODE_STEPS
        self.extras.pop("final_obs", None)
        env_ids = (self.reset_terminated | self.reset_time_outs).nonzero(as_tuple=False).squeeze(-1)
        if len(env_ids) > 0:
            if getattr(self.cfg, "compute_final_obs", False):
                self.extras["final_obs"] = before_reset
            self._reset_idx(env_ids)
        observations = self._get_observations()
        return observations, self.reward_buf, self.reset_terminated, self.reset_time_outs, self.extras

    def _reset_idx(self, env_ids):
        lanes = env_ids.numpy()
        noise = 0.2 * torch.rand(len(lanes), self.physics.model.nq + self.physics.model.nv) - 0.1
        noise[:, :7] = 0.0
        self.physics.reset(lanes)
        self.physics.qpos[lanes] = self.physics.model.qpos0 + noise[:, : self.physics.model.nq].numpy()
        self.physics.qvel[lanes] = noise[:, self.physics.model.nq :].numpy()
        self.physics.forward(lanes)
        self.episode_length_buf[env_ids] = 0

    def _get_observations(self):
        rows = np.concatenate([self.physics.qpos[:, 2:], self.physics.qvel], axis=1)
        return {"policy": torch.from_numpy(rows).float()}

    def close(self):
        self.physics.close()


class DictAntEnv(AntEnv):
    """The same ant, whose terms of observation are not concatenated, as with `concatenate_terms = False`."""

    def __init__(self, cfg):
        super().__init__(cfg)
        boxes = [spaces.Box(-np.inf, np.inf, (size,)) for size in (5, 8, 14)]
        torso = spaces.Dict({"height": boxes[0], "joints": boxes[1]})
        self.single_observation_space = spaces.Dict({"policy": spaces.Dict({"position": torso, "speeds": boxes[2]})})

    def _get_observations(self):
        row = super()._get_observations()["policy"]
        torso = {"joints": row[:, 5:13], "height": row[:, :5]}
        return {"policy": {"speeds": row[:, 13:], "position": torso}}


class BytesAntEnv(AntEnv):
    """States an image of bytes among its observations."""

    def __init__(self, cfg):
        super().__init__(cfg)
        camera = spaces.Box(0, 255, (4, 4, 3), np.uint8)
        self.single_observation_space = spaces.Dict({"policy": spaces.Dict({"camera": camera})})
