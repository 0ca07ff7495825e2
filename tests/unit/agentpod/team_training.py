"""Collects rollouts of teams and makes algorithms for them, in one process."""

from typing import Any

import torch
from torch import Tensor

from agentpod import algorithms
from agentpod.experience.rollout import Lanes, collect, rollout_fields
from simulators import Simulator

Tensors = dict[str, Tensor]
SETTINGS: dict[str, Any] = {"horizon": 6, "minibatch_size": 36, "hidden_sizes": [8], "epochs": 2}


def made(name: str, simulator: Simulator, **settings: Any) -> Any:
    spaces = simulator.observation_space, simulator.action_space
    return algorithms.make(name, *spaces, {**SETTINGS, **settings}, seed=3)


def rollout_of(algorithm: Any, simulator: Simulator, horizon: int = 6) -> Tensors:
    fields = rollout_fields(simulator.observation_space, simulator.action_space, horizon, simulator.count)
    found = {name: torch.zeros(field.shape, dtype=field.dtype) for name, field in fields.items()}
    lanes = Lanes.start(simulator.reset(1), 0, simulator.observation_space.lanes)
    collect(simulator, algorithm.policy, found, lanes, torch.Generator().manual_seed(4))
    return found
