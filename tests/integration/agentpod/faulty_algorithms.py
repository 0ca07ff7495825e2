"""Algorithms of a user who makes mistakes."""

from dataclasses import dataclass
from typing import Any

import torch

from agentpod.algorithms.autograd import RolloutAlgorithm, RolloutSettings, hyperparameter


@dataclass(frozen=True)
class Small(RolloutSettings):
    horizon: int = 16


class Raising(RolloutAlgorithm):
    """Its loss divides by zero."""

    settings_type = Small

    def loss(self, batch: Any) -> Any:
        return 1 / 0


class Vector(RolloutAlgorithm):
    """Its loss is no scalar."""

    settings_type = Small

    def loss(self, batch: Any) -> Any:
        return self.actor(batch["observation"])


class Infinite(RolloutAlgorithm):
    """Its loss is not finite."""

    settings_type = Small

    def loss(self, batch: Any) -> Any:
        return self.actor(batch["observation"]).sum() / torch.zeros(())


class NoNetworks(RolloutAlgorithm):
    """Its networks cannot be made."""

    settings_type = Small

    def modules(self) -> Any:
        return {"critic": torch.nn.Linear(self.observation_size, -1)}

    def loss(self, batch: Any) -> Any:
        return self.actor(batch["observation"]).sum()


class NoLoss(RolloutAlgorithm):
    """It has no loss."""


class NoAlgorithm:
    """It is no algorithm at all."""


@dataclass(frozen=True)
class Outside(RolloutSettings):
    weight: float = hyperparameter(2.0, "a weight", low=0.0, high=1.0)


class OutOfRange(Raising):
    """One of its defaults is outside its own range."""

    settings_type = Outside
