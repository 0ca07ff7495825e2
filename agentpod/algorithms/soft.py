"""Implements what both soft actor-critics share: hyperparameters, the temperature, and the critic targets."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from agentpod.algorithms.flat_adam import FlatAdam
from agentpod.algorithms.off_policy import OffPolicy, OffPolicySettings
from agentpod.models.policy import NetworkSpec
from podrace.errors import InvalidArgument


@dataclass(frozen=True)
class SoftSettings(OffPolicySettings):
    """Hyperparameters of both soft actor-critics."""

    critics: int = 2
    """Critics in the ensemble."""
    critic_subset: int = 0
    """Critics drawn at random for each target, whose minimum is used (REDQ, Chen et al. 2021, arXiv 2101.05982); 0 =
    all critics."""
    critic_reduction: str = "min"
    """Reduction over critics, `min` or `mean`, for the actor loss and for targets without a subset."""
    initial_temperature: float = 1.0
    """Initial alpha, the weight of the entropy relative to the return. With an automatic temperature, a child begins
    with the present alpha of its parent."""
    automatic_temperature: bool = True
    """Whether the temperature is adapted to reach the target entropy."""
    target_entropy_scale: float = 1.0
    """Factor of the target entropy of the paper."""
    policy_delay: int = 1
    """Gradient steps of the critics per gradient step of the actor and of the temperature."""

    def __post_init__(self) -> None:
        """Validates the values; see Settings."""
        super().__post_init__()
        if self.critic_subset > self.critics:
            raise InvalidArgument(
                f"hyperparameter critic_subset = {self.critic_subset} exceeds critics = {self.critics}: lower it"
            )

    @property
    def network(self) -> NetworkSpec:
        """Structure of the policy."""
        return replace(super().network, head="squashed")


class Temperature:
    """The weight alpha of the entropy, learned as its logarithm (Haarnoja et al. 2018b, arXiv 1812.05905, equation 18).

        loss = -log_alpha (mean(log pi) + target_entropy)

    Attributes:
        optimizer: Steps log_alpha, [1] float32.
    """

    def __init__(self, settings: SoftSettings, target_entropy: float, device: torch.device) -> None:
        """Starts at the initial temperature."""
        self._initial = math.log(settings.initial_temperature)
        self._log = torch.full((1,), self._initial, device=device)
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
        """Returns alpha, [] float32; later steps do not change the returned tensor."""
        return self._log.exp().squeeze(0)

    def descend(self, mean_log_prob: Tensor) -> None:
        """Makes one gradient step, given mean(log pi) []; a fixed temperature is unchanged."""
        if self._automatic:
            torch.add(mean_log_prob, self._target_entropy, out=self._gradient[0]).neg_()
            self.optimizer.step()

    def refresh(self) -> None:
        """Sets a fixed temperature to the hyperparameter again, because parents and siblings may have another one."""
        if not self._automatic:
            self._log.fill_(self._initial)

    def tensors(self) -> dict[str, Tensor]:
        """Returns all live tensors that training changes."""
        optimizer = {f"temperature.optimizer.{name}": tensor for name, tensor in self.optimizer.tensors().items()}
        return {"temperature.log": self._log, **optimizer}


class SoftActorCritic(OffPolicy):
    """Base class of continuous and discrete SAC."""

    settings_type: ClassVar[type[SoftSettings]]
    _temperature: Temperature

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        """Creates new networks; see Algorithm."""
        super().__init__(*arguments, **settings)
        self._members = torch.arange(self.hyperparameters.critic_subset, device=self._device)
        # Loss and gradient norm of the last step of the actor, which are reported again until the next one.
        self._policy_metrics = torch.zeros(2, device=self._device)

    def _is_actor_due(self) -> bool:
        return bool((self.gradient_steps + 1) % self.hyperparameters.policy_delay == 0)

    def _latest(self, loss: Tensor, gradient_norm: Tensor) -> tuple[Tensor, Tensor]:
        """Returns loss and gradient norm of a step of the actor, and keeps them if some steps have none."""
        if self.hyperparameters.policy_delay > 1:
            self._policy_metrics.copy_(torch.stack((loss, gradient_norm)))
        return loss, gradient_norm

    def _optimizers(self) -> list[FlatAdam]:
        return [*super()._optimizers(), self._temperature.optimizer]

    def _live_tensors(self) -> dict[str, Tensor]:
        delayed = {"policy_metrics": self._policy_metrics} if self.hyperparameters.policy_delay > 1 else {}
        return super()._live_tensors() | self._temperature.tensors() | delayed

    def refresh(self) -> None:
        """See Algorithm.refresh."""
        super().refresh()
        self._temperature.refresh()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See Algorithm.load_state_dict."""
        # A parent without a delay has no metrics of an earlier step.
        super().load_state_dict({"policy_metrics": torch.zeros(2), **state})
        self._temperature.refresh()

    def _draw(self, generator: torch.Generator) -> None:
        """Draws the critics of the next target."""
        settings = self.hyperparameters
        if settings.critic_subset:
            members = torch.randperm(settings.critics, generator=generator, device=self._device)
            self._members.copy_(members[: settings.critic_subset])

    def _target_value(self, values: Tensor) -> Tensor:
        """Reduces the target critics' values [C, ...] to [...]: all of them, or the subset that was drawn last."""
        settings = self.hyperparameters
        if settings.critic_subset:
            return values.index_select(0, self._members).amin(0)
        return values.mean(0) if settings.critic_reduction == "mean" else values.amin(0)
