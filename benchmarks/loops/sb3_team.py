"""Trains a team with PPO of Stable-Baselines3 for `ippo_peer.py`: every agent is a lane, and all share one policy.

This is the recipe of PettingZoo's tutorial (SuperSuit's `pettingzoo_env_to_vec_env_v1` and `concat_vec_envs_v1`). It
does not tell PPO that episodes are truncated, so their ends count as terminal. The copies of the environment that
SuperSuit makes have the same random generator; they are seeded differently here.

Runs in an interpreter with Stable-Baselines3, SuperSuit and mpe2, without podrace:

    python -m loops.sb3_team REQUEST POLICY     # a JSON object, see Request in ippo_peer.py; file to write
"""

import importlib
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import supersuit
import torch
from pettingzoo.utils import BaseParallelWrapper
from stable_baselines3 import PPO
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecNormalize


class Team(BaseParallelWrapper):
    """Shows the learning agents alone, each rewarded with the sum of their rewards; the others act at random."""

    def __init__(self, environment: Any, silent: list[str]) -> None:
        super().__init__(environment)
        self.possible_agents = [name for name in environment.possible_agents if name not in silent]
        self.agents = list(self.possible_agents)
        self._silent, self._generator = silent, np.random.default_rng(0)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self._generator = np.random.default_rng(seed)
        observations, infos = self.env.reset(seed=seed, options=options)
        self.agents = list(self.possible_agents)
        return self._own(observations), self._own(infos)

    def step(self, actions: Mapping[str, Any]) -> Any:
        drawn = {name: int(self._generator.integers(self.env.action_space(name).n)) for name in self._silent}
        observations, rewards, *others = self.env.step({**actions, **drawn})
        total = sum(self._own(rewards).values())
        return self._own(observations), dict.fromkeys(self.possible_agents, total), *map(self._own, others)

    def _own(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: values[name] for name in self.possible_agents}


def make_lanes(request: Mapping[str, Any]) -> Any:
    """Makes the vector environment, normalized if requested."""
    module = importlib.import_module(request["module"])
    team = Team(module.parallel_env(**request["options"]), request["silent"])
    lanes = supersuit.concat_vec_envs_v1(
        supersuit.pettingzoo_env_to_vec_env_v1(team), request["count"], num_cpus=0, base_class="stable_baselines3"
    )
    for number, one in enumerate(lanes.venv.vec_envs):
        one.reset(seed=1000 * request["seed"] + number)
    if not request["normalize"]:
        return lanes
    return VecNormalize(lanes, gamma=request["settings"].get("gamma", 0.99))


def policy_tensors(model: Any, lanes: Any) -> dict[str, torch.Tensor]:
    """Returns weights and biases of the actor from the first layer to the last, and the statistics it normalizes by."""
    layers = [one for one in model.policy.mlp_extractor.policy_net if isinstance(one, torch.nn.Linear)]
    tensors = {}
    for number, layer in enumerate([*layers, model.policy.action_net]):
        tensors[f"weight{number}"], tensors[f"bias{number}"] = layer.weight.detach(), layer.bias.detach()
    if isinstance(lanes, VecNormalize):
        tensors["mean"] = torch.from_numpy(lanes.obs_rms.mean).float()
        tensors["deviation"] = torch.from_numpy(np.sqrt(lanes.obs_rms.var + lanes.epsilon)).float()
    return tensors


def main() -> None:
    """Trains, writes the policy, and prints environment steps and processor seconds."""
    request, file = json.loads(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    set_random_seed(request["seed"])
    began = time.process_time()
    lanes = make_lanes(request)
    agents = lanes.num_envs // request["count"]
    # Without its argument `seed`, which SuperSuit's vector environment does not support.
    model = PPO("MlpPolicy", lanes, device="cpu", **request["settings"])
    model.learn(request["steps"] * agents)
    seconds = time.process_time() - began
    torch.save(policy_tensors(model, lanes), file)
    print(json.dumps({"steps": model.num_timesteps // agents, "seconds": round(seconds, 1)}))


if __name__ == "__main__":
    main()
