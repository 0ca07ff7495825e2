"""Algorithms of a user who makes mistakes."""

from dataclasses import dataclass
from typing import Any

import torch

from agentpod.algorithms.autograd import (
    ReplayAlgorithm,
    ReplaySettings,
    RolloutAlgorithm,
    RolloutSettings,
    hyperparameter,
)


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


class Metrics(RolloutAlgorithm):
    """Its loss returns metrics where errors are expected."""

    settings_type = Small

    def loss(self, batch: Any) -> Any:
        return self.actor(batch["observation"]).sum(), {"entropy": 1.0}


class Flattened(RolloutAlgorithm):
    """Its prepare returns a field that is divided by environments only."""

    settings_type = Small

    def prepare(self, rollout: Any) -> Any:
        return rollout | {"episode": rollout["reward"].sum(0)}

    def loss(self, batch: Any) -> Any:
        return self.actor(batch["observation"]).sum()


class OwnUpdate(RolloutAlgorithm):
    """Its own update fails."""

    settings_type = Small

    def update(self, experience: Any) -> dict[str, float]:
        return {"loss": self.metrics["loss"]}  # type: ignore[attr-defined]

    def loss(self, batch: Any) -> Any:
        return self.actor(batch["observation"]).sum()


class OwnState(Raising):
    """Its state cannot be saved."""

    def update(self, experience: Any) -> dict[str, float]:
        return {}

    def state_dict(self) -> Any:
        return {"step": self.step}  # type: ignore[attr-defined]


@dataclass(frozen=True)
class SmallReplay(ReplaySettings):
    horizon: int = 16
    batch_size: int = 16
    warmup_steps: int = 0
    prioritized: bool = True


class Column(ReplayAlgorithm):
    """Its errors are a column."""

    settings_type, action_kinds = SmallReplay, frozenset({"discrete"})

    def loss(self, batch: Any) -> Any:
        errors = self.actor(batch.observation).sum(-1, keepdim=True)
        return errors.square().mean(), errors


class Exploring(Column):
    """Its exploration rate divides by zero."""

    def exploration(self) -> float:
        return 1.0 / self.gradient_steps


class InPlace(torch.nn.Module):
    """A network that changes what its gradient needs."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(shape[0], outputs)

    def forward(self, observation: Any) -> Any:
        hidden = torch.sigmoid(self.layer(observation))
        hidden *= 2.0
        return hidden


class WithoutGradients(InPlace):
    """A network whose outputs have no gradient."""

    @torch.no_grad()
    def forward(self, observation: Any) -> Any:
        return self.layer(observation)


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
