"""Implements proximal policy optimization (PPO; Schulman et al. 2017, arXiv 1707.06347).

Each derivative is written next to its formula. tests/unit/agentpod/algorithms/test_ppo.py compares all of them with
automatic differentiation of the paper's equations in float64.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from agentpod.algorithms.fusible import Fusible
from agentpod.algorithms.on_policy import (
    OnPolicy,
    OnPolicySettings,
    backpropagate_policy,
    backpropagate_value,
    standardize,
)
from agentpod.experience.rollout_batch import RolloutBatch
from agentpod.models.actor_critic import ActorCritic
from agentpod.seeding import derive_generator
from podrace.errors import InvalidArgument

RATE_FACTOR, LOWEST_RATE, HIGHEST_RATE = 1.5, 1e-5, 1e-2
"""Factor and bounds of the adaptive learning rate (Rudin et al. 2022, table 7 and implementation)."""
INITIAL_RATE = "initial_learning_rate"
"""Name of the hyperparameter `learning_rate` in the state."""


@dataclass(frozen=True)
class PPOHyperparameters(OnPolicySettings):
    """Hyperparameters of PPO, with defaults that suit many tasks."""

    algorithm = "ppo"

    clip_range: float = 0.2
    """Epsilon: distance of the probability ratio from 1 beyond which its gradient vanishes."""
    value_clip_range: float = 0.0
    """Distance of a value from its old value beyond which its gradient vanishes; 0 = no value clipping."""
    epochs: int = 4
    """Passes over each rollout."""
    minibatch_size: int = 512
    """Steps per gradient step; minibatches are smaller if it does not divide the rollout, and a smaller rollout is one
    minibatch. With recurrent_size, minibatches consist of as many whole lanes as fit into this number, at least one."""
    target_kl: float = 0.0
    """Ends the update after an epoch whose mean approximate KL divergence exceeds this; 0 = off."""
    desired_kl: float = 0.0
    """Adapts the learning rate after every update to keep the KL divergence of the last epoch near this; 0 = off."""

    def __post_init__(self) -> None:
        """Validates the values; see Settings."""
        super().__post_init__()
        if self.desired_kl and self.changes_learning_rate:
            name = "learning_rate_steps" if self.learning_rate_steps else "learning_rate_schedule"
            raise InvalidArgument(
                f"hyperparameters desired_kl and {name} both change the learning rate: leave one of them out"
            )


def adaptive_learning_rate(rate: float, divergence: float, desired: float) -> float:
    """Adapts the learning rate to the KL divergence of an update (Rudin et al. 2022, arXiv 2109.11978, section 3).

    Args:
        rate: The present learning rate.
        divergence: KL divergence of the update.
        desired: Desired divergence.

    Returns:
        A lower rate if the divergence is more than twice the desired one, a higher rate if it is less than half of it.
    """
    # An initial rate outside the bounds must not be moved in the wrong direction by them.
    if divergence > 2.0 * desired:
        return max(rate / RATE_FACTOR, min(rate, LOWEST_RATE))
    if divergence < 0.5 * desired:
        return min(rate * RATE_FACTOR, max(rate, HIGHEST_RATE))
    return rate


Surrogate = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]
"""Computes an objective for each sample, and its derivative; see `clipped_surrogate`."""


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip_range: float) -> tuple[Tensor, Tensor]:
    """Computes the clipped objective of each sample (Schulman et al. 2017, equation 7) and its derivative.

        ratio = exp(log_ratio)
        L = min(ratio A, clip(ratio, 1 - clip_range, 1 + clip_range) A)
        d L / d log_ratio = ratio A where ratio A is the minimum, else 0

    Args:
        log_ratio: [B], log-probability under the present policy minus that under the acting policy.
        advantage: A, [B].
        clip_range: Epsilon.

    Returns:
        L: [B]; dL / d log_ratio: [B].
    """
    ratio = log_ratio.exp()
    objective = ratio * advantage
    clipped = ratio.clamp(1.0 - clip_range, 1.0 + clip_range) * advantage
    return torch.minimum(objective, clipped), torch.where(objective <= clipped, objective, 0.0)


def squared_value_error(value: Tensor, old_value: Tensor, target: Tensor, clip_range: float) -> tuple[Tensor, Tensor]:
    """Computes the squared error of each value (Schulman et al. 2017, equation 9) and its derivative.

        E = (V - target)^2
        d E / d V = 2 (V - target)

    With clip_range > 0, E is the larger error of V and of V clipped to old_value +- clip_range (OpenAI's
    implementation; Engstrom et al. 2020, section 3). Where the clipped value has the larger error, the derivative is 0.

    Args:
        value: V, [B].
        old_value: [B], before the update.
        target: [B].
        clip_range: 0 = no clipping.

    Returns:
        E: [B]; dE / dV: [B].
    """
    difference = value - target
    error, gradient = difference.square(), difference * 2.0
    if clip_range == 0:
        return error, gradient
    # clamp leaves values inside the range unchanged to the bit, so both errors are equal and the gradient is kept.
    clipped_error = (value.clamp(old_value - clip_range, old_value + clip_range) - target).square()
    return torch.maximum(error, clipped_error), gradient * (error >= clipped_error)


def policy_gradient(
    batch: RolloutBatch, networks: ActorCritic, settings: PPOHyperparameters, surrogate: Surrogate = clipped_surrogate
) -> tuple[Tensor, ...]:
    """Writes the gradient of the actor's part of the loss (Schulman et al. 2017, equation 9).

        -mean(L) - entropy_coefficient mean(H)

    Args:
        batch: B steps.
        networks: The trained networks; the gradient of the actor is overwritten.
        settings: Coefficients and ranges.
        surrogate: L.

    Returns:
        Four tensors []: mean(-L); mean(H); the approximate KL divergence mean((ratio - 1) - log ratio) (Schulman 2020,
        "Approximating KL divergence", k3); the fraction of ratios outside the clip range.
    """
    advantage = standardize(batch.advantage) if settings.normalize_advantages else batch.advantage

    def objective(log_prob: Tensor) -> tuple[Tensor, Tensor]:
        return surrogate(log_prob - batch.log_prob, advantage, settings.clip_range)

    log_prob, mean_objective, entropy = backpropagate_policy(batch, networks, objective, settings.entropy_coefficient)
    log_ratio = log_prob - batch.log_prob
    change = log_ratio.expm1()
    clip_fraction = (change.abs() > settings.clip_range).float().mean()
    return -mean_objective, entropy, (change - log_ratio).mean(), clip_fraction


def value_gradient(batch: RolloutBatch, networks: ActorCritic, settings: PPOHyperparameters) -> Tensor:
    """Writes the gradient of the critic's part of the loss (Schulman et al. 2017, equation 9).

        value_coefficient mean(E)

    The arguments are those of `policy_gradient`.

    Returns:
        mean(E): [].
    """

    def error(value: Tensor) -> tuple[Tensor, Tensor]:
        return squared_value_error(value, batch.value, batch.target, settings.value_clip_range)

    return backpropagate_value(batch, networks, error, settings.value_coefficient)


class PPO(OnPolicy):
    """Trains for several epochs of minibatches on each rollout; see agentpod.algorithms.base.Algorithm for the loop.

    Attributes:
        surrogate: The objective of each sample.
    """

    settings_type: ClassVar[type[PPOHyperparameters]] = PPOHyperparameters
    METRICS = ("value_loss", "policy_loss", "entropy", "approximate_kl", "clip_fraction", "gradient_norm")
    surrogate = staticmethod(clipped_surrogate)

    def _train(self, batch: RolloutBatch) -> Tensor:
        settings = self.hyperparameters
        generator = derive_generator(self._device, self._seed, "update", self.update_number)
        epochs: list[Tensor] = []
        for _ in range(settings.epochs):
            order = torch.randperm(batch.units, generator=generator, device=self._device)
            epochs.append(torch.stack([self._step(minibatch) for minibatch in self._minibatches(batch, order)]))
            # Evaluated only if target_kl is set, because reading the value synchronizes with the device.
            if settings.target_kl > 0 and self._mean_kl(epochs[-1]) > settings.target_kl:
                break
        if settings.desired_kl > 0:
            rate = self._optimizer.rate
            rate.fill_(adaptive_learning_rate(float(rate), self._mean_kl(epochs[-1]), settings.desired_kl))
        return torch.cat(epochs)

    def _minibatches(self, batch: RolloutBatch, order: Tensor) -> Iterator[RolloutBatch]:
        """Yields the minibatches of an epoch, whose units are in the order of `order`."""
        return batch.minibatches(order, self.hyperparameters.minibatch_size)

    def _mean_kl(self, metrics: Tensor) -> float:
        """Returns the mean approximate KL divergence of an epoch, averaged over learners that share gradients."""
        divergence = metrics[:, self.METRICS.index("approximate_kl")].mean()
        if self._optimizer.reduce:
            self._optimizer.reduce(divergence)
        return float(divergence)

    def _gradient_step(self, minibatch: RolloutBatch) -> Tensor:
        value_loss = value_gradient(minibatch, self._networks, self.hyperparameters)
        terms = policy_gradient(minibatch, self._networks, self.hyperparameters, self.surrogate)
        return torch.stack((value_loss, *terms, self._optimizer.step()))

    def state_dict(self) -> dict[str, Tensor]:
        """Adds the adaptive learning rate and its initial value; see Algorithm.state_dict."""
        return {
            **super().state_dict(),
            "learning_rate": self._optimizer.rate.clone(),
            INITIAL_RATE: torch.tensor(self.hyperparameters.learning_rate, dtype=torch.float64),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See Algorithm.load_state_dict.

        An adapted rate is multiplied by the ratio of the hyperparameter to that of the saved algorithm, which may be a
        parent's. Release 0.1.0 did not save it; the ratio is then 1.
        """
        own = self.hyperparameters.learning_rate
        saved = {INITIAL_RATE: torch.tensor(own, dtype=torch.float64), **state}
        super().load_state_dict(saved)
        # Without adaptation the hyperparameters determine the rate, which may differ between parent and child.
        if self.hyperparameters.desired_kl > 0:
            rate, initial = saved["learning_rate"], float(saved[INITIAL_RATE])
            self._optimizer.rate.copy_(rate if own == initial else rate * (own / initial))

    def fusible(self) -> Fusible:
        """See Algorithm.fusible."""
        rates = {"learning_rate": self._optimizer.rate} if self.hyperparameters.desired_kl > 0 else {}
        return replace(super().fusible(), rates=rates)
