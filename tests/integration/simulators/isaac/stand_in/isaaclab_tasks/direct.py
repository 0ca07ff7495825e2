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


class ChoicesEnv(gymnasium.Env):
    """Pick the number that the entry `target` shows, if the mask allows it, else the next one; ten steps.

    Its observations have entries of every kind. Isaac Lab's tensors of numbers of choices are [N, 1] and [N, elements],
    and it gets actions in this form.
    """

    choices = 4

    def __init__(self, cfg):
        self.cfg, self.num_envs, self.device = cfg, cfg.num_envs, torch.device(cfg.device)
        parts = {
            "target": spaces.Discrete(4),
            "pair": spaces.MultiDiscrete([2, 3]),
            "lamps": spaces.MultiBinary(2),
            "camera": spaces.Box(0, 255, (2, 2, 1), np.uint8),
            "more": spaces.Tuple((spaces.Box(-1.0, 1.0, (1,)), spaces.Box(0, 9, (1,), np.int32))),
            "action_mask": spaces.Box(0.0, 1.0, (self.choices,)),
        }
        self.single_observation_space = spaces.Dict({"policy": spaces.Dict(parts)})
        self.single_action_space = self._action_space()
        self.extras = {}

    def _action_space(self):
        return spaces.Discrete(4)

    def reset(self, seed=None, options=None):
        torch.manual_seed(seed)
        self._steps = 0
        return self._get_observations(), self.extras

    def _get_observations(self):
        count = self.num_envs
        self.target, refused = torch.randint(4, (2, count))
        self.mask = torch.ones(count, self.choices)
        self.mask[torch.arange(count), refused] = 0
        self.best = torch.where(self.target == refused, (self.target + 1) % 4, self.target)
        parts = {
            "action_mask": self.mask,
            "more": (torch.full((count, 1), 0.5), torch.full((count, 1), 7, dtype=torch.int32)),
            "target": self.target.unsqueeze(1),
            "pair": torch.stack((self.target % 2, self.target % 3), 1),
            "lamps": torch.stack((self.target > 1, self.target < 1), 1),
            "camera": torch.full((count, 2, 2, 1), 9, dtype=torch.uint8),
        }
        return {"policy": parts}

    def _picked(self, action):
        assert (tuple(action.shape), action.dtype) == ((self.num_envs, 1), torch.int64), "not an action of this space"
        return action[:, 0]

    def step(self, action):
        picked = self._picked(action)
        assert (self.mask.gather(1, picked.unsqueeze(1)) > 0).all(), "an invalid action was taken"
        reward = (picked == self.best).float()
        self._steps += 1
        over = torch.full((self.num_envs,), self._steps == 10)
        self._steps %= 10
        return self._get_observations(), reward, over, torch.zeros_like(over), self.extras

    def close(self):
        pass


class PairsEnv(ChoicesEnv):
    """As ChoicesEnv, with a second choice of two, which must be 1."""

    choices = 6

    def _action_space(self):
        return spaces.MultiDiscrete([4, 2])

    def _picked(self, action):
        assert (tuple(action.shape), action.dtype) == ((self.num_envs, 2), torch.int64), "not an action of this space"
        return torch.where(action[:, 1] == 1, action[:, 0], self.mask.argmax(1))


class NumberEnv(ChoicesEnv):
    """As ChoicesEnv; it observes the target alone, without a Dict."""

    def __init__(self, cfg):
        super().__init__(cfg)
        self.single_observation_space = spaces.Dict({"policy": spaces.Discrete(4)})

    def _get_observations(self):
        parts = super()._get_observations()["policy"]
        self.mask.fill_(1)
        return {"policy": parts["target"]}


class TextEnv(ChoicesEnv):
    """States an observation that no policy can use."""

    def __init__(self, cfg):
        super().__init__(cfg)
        self.single_observation_space = spaces.Dict({"policy": spaces.Dict({"order": spaces.Text(4)})})


class ShortMaskEnv(ChoicesEnv):
    """States a mask that does not fit its actions."""

    choices = 3
