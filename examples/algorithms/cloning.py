"""Behavior cloning: makes the recorded actions of a data set likely (Pomerleau 1991, Neural Computation 3)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from agentpod.algorithms.autograd import Batch, RolloutAlgorithm, RolloutSettings, hyperparameter
from podrace.tensor_transport.codec import decode


@dataclass(frozen=True)
class CloningSettings(RolloutSettings):
    """The inherited hyperparameters, and the file of the data set."""

    learning_rate: float = 1e-3
    normalize_observations: bool = False
    horizon: int = 64
    epochs: int = 8
    minibatch_size: int = 128
    dataset: str = hyperparameter("", "safetensors file with observation [R, D] and action [R]; ROOT:PATH in services")


class DataSet(nn.Module):
    """Rows of observations and actions, which are constants of the training."""

    def __init__(self, path: str) -> None:
        super().__init__()
        if not path:
            raise ValueError("hyperparameter dataset is empty: name a file")
        tensors = decode(Path(path).read_bytes())[0]
        self.observation, self.action = tensors["observation"].float(), tensors["action"]
        if len(self.observation) != len(self.action) or not len(self.action):
            raise ValueError(f"dataset: {len(self.observation)} observations and {len(self.action)} actions")


class Cloning(RolloutAlgorithm):
    """Minimizes the mean of -log pi(a | s) over rows of a data set; rollouts only count the steps between updates."""

    settings_type, action_kinds = CloningSettings, frozenset({"discrete", "continuous"})

    def modules(self) -> Mapping[str, nn.Module]:
        """Reads the data set; it has no parameters."""
        data = DataSet(self.hyperparameters.dataset)
        if data.observation.shape[1:] != (self.observation_size,):
            shape = list(data.observation.shape[1:])
            raise ValueError(f"dataset: observations have the shape {shape}, the environment's {self.observation_size}")
        return {"data": data}

    def loss(self, batch: Batch) -> Tensor:
        """Returns the loss [] of as many rows of the data set as the batch has."""
        data, device = self.module("data"), batch["reward"].device
        rows = torch.randint(len(data.action), batch["reward"].shape, generator=self.generator, device=device).cpu()
        observation = self.policy.normalize(data.observation[rows].to(device))
        return -self.log_prob(self.actor(observation), data.action[rows].to(device)).mean()
