"""Owns what the two soft actor-critics share: settings, the temperature, and how an ensemble's targets are reduced."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from agentpod.algorithms.flat_adam import FlatAdam
from agentpod.algorithms.off_policy import OffPolicy, OffPolicySettings
from agentpod.models.policy import NetworkSpec
from podrace.errors import InvalidArgument


@dataclass(frozen=True)
class SoftSettings(OffPolicySettings):
    """What a specification can set of both."""

    critics: int = 2
    """Critics in the ensemble."""
    critic_subset: int = 0
    """Critics drawn for each target, whose least value counts (REDQ, Chen et al. 2021); 0 = all."""
    critic_reduction: str = "min"
    """What counts for the actor, and for targets without a subset: the `min` of the critics or their `mean`."""
    initial_temperature: float = 1.0
    """First weight of the entropy beside the return."""
    automatic_temperature: bool = True
    """Whether the temperature moves to where the policy has the target entropy."""
    target_entropy_scale: float = 1.0
    """That entropy, in units of what the paper takes."""

    def __post_init__(self) -> None:
        """Refuses what cannot train; see Settings."""
        super().__post_init__()
        if self.critic_subset > self.critics:
            raise InvalidArgument(
                f"hyperparameter critic_subset = {self.critic_subset} exceeds critics = {self.critics}: lower it"
            )

    @property
    def network(self) -> NetworkSpec:
        """Of the policy."""
        return replace(super().network, head="squashed")


class Temperature:
    """The weight of the entropy, learned in its logarithm (Haarnoja et al. 2018b, arXiv 1812.05905, equation 18).

    loss = -log_alpha (mean(log pi) + target_entropy)

    Attributes:
        optimizer: Steps the logarithm, [1] float32.
    """

    def __init__(self, settings: SoftSettings, target_entropy: float, device: torch.device) -> None:
        """Starts at the initial temperature."""
        self._log = torch.full((1,), math.log(settings.initial_temperature), device=device)
        self._gradient = torch.zeros_like(self._log)
        self._target_entropy, self._automatic = target_entropy, settings.automatic_temperature
        self.optimizer = FlatAdam(
            self._log,
            self._gradient,
            learning_rate=settings.learning_rate,
            epsilon=settings.adam_epsilon,
            maximum_norm=0.0,
        )

    def value(self) -> Tensor:
        """Alpha: [] float32; later steps leave it as it is."""
        return self._log.exp().squeeze(0)

    def descend(self, mean_log_prob: Tensor) -> None:
        """One step, given mean(log pi) []; none if the temperature is fixed."""
        if self._automatic:
            torch.add(mean_log_prob, self._target_entropy, out=self._gradient[0]).neg_()
            self.optimizer.step()

    def tensors(self) -> dict[str, Tensor]:
        """All that training changes, live."""
        optimizer = {f"temperature.optimizer.{name}": tensor for name, tensor in self.optimizer.tensors().items()}
        return {"temperature.log": self._log, **optimizer}


class SoftActorCritic(OffPolicy):
    """What continuous and discrete SAC have in common."""

    settings_type: ClassVar[type[SoftSettings]]
    _temperature: Temperature
    _subset_generator: torch.Generator

    def _optimizers(self) -> list[FlatAdam]:
        return [*super()._optimizers(), self._temperature.optimizer]

    def _live_tensors(self) -> dict[str, Tensor]:
        return super()._live_tensors() | self._temperature.tensors()

    def _critic_subset(self, values: Tensor) -> Tensor:
        """The critics that a target is taken from: [C, ...] -> [M, ...], a subset drawn anew each time, or all."""
        settings = self.hyperparameters
        if not settings.critic_subset:
            return values
        members = torch.randperm(settings.critics, generator=self._subset_generator, device=self._device)
        return values[members[: settings.critic_subset]]

    def _target_value(self, values: Tensor) -> Tensor:
        """What the target critics' values [C, ...] say together: [...]."""
        settings = self.hyperparameters
        if settings.critic_reduction == "mean" and not settings.critic_subset:
            return values.mean(0)
        return self._critic_subset(values).amin(0)
