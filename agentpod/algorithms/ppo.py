"""Owns proximal policy optimization (Schulman et al. 2017, arXiv 1707.06347): the loss, its gradient and the update.

Every derivative is written beside its formula; tests/unit/agentpod/test_ppo.py checks each against automatic
differentiation of the paper's equations in float64.
"""

import math
from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from agentpod.actor_critic import ActorCritic
from agentpod.algorithms.base import parse_hyperparameters
from agentpod.algorithms.ppo_hyperparameters import PPOHyperparameters
from agentpod.normalizer import RewardScale, RunningMoments
from agentpod.optimizer import FlatAdam
from agentpod.policy import NetworkSpec
from agentpod.randomness import derive_generator
from agentpod.returns import generalized_advantages
from agentpod.rollout import Rollout
from podrace.errors import DataLoss, InvalidArgument
from simulators.base import Space

METRICS = ("value_loss", "policy_loss", "entropy", "approximate_kl", "clip_fraction", "gradient_norm")
DIVERGENCE = METRICS.index("approximate_kl")


class Batch(NamedTuple):
    """Steps of all environments, in any order; every field has B rows."""

    observation: Tensor
    """[B, D] float32, as the networks see it."""
    action: Tensor
    """[B] int64 or [B, A] float32."""
    log_prob: Tensor
    """[B], under the policy that acted."""
    advantage: Tensor
    """[B]."""
    value: Tensor
    """[B], V(s) before the update."""
    target: Tensor
    """[B], what V(s) should have been: advantage + value."""

    def minibatches(self, order: Tensor, minibatch_size: int) -> Iterator["Batch"]:
        """Every row once, in the order of `order` [B] int64, in near-equal pieces of at most `minibatch_size` rows."""
        pieces = math.ceil(len(order) / minibatch_size)
        shuffled = (tensor.index_select(0, order).tensor_split(pieces) for tensor in self)
        return map(Batch._make, zip(*shuffled, strict=True))


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip_range: float) -> tuple[Tensor, Tensor]:
    """The clipped objective of each sample (Schulman et al. 2017, equation 7) and its derivative.

        ratio = exp(log_ratio)
        L = min(ratio A, clip(ratio, 1 - clip_range, 1 + clip_range) A)
        d L / d log_ratio = ratio A where ratio A is the smaller, else 0

    Args:
        log_ratio: [B], log-probability now minus log-probability when acting.
        advantage: [B].
        clip_range: Epsilon.

    Returns:
        L: [B]; dL / d log_ratio: [B].
    """
    ratio = log_ratio.exp()
    objective = ratio * advantage
    clipped = ratio.clamp(1.0 - clip_range, 1.0 + clip_range) * advantage
    return torch.minimum(objective, clipped), torch.where(objective <= clipped, objective, 0.0)


def squared_value_error(value: Tensor, old_value: Tensor, target: Tensor, clip_range: float) -> tuple[Tensor, Tensor]:
    """The squared error of each value (Schulman et al. 2017, equation 9) and its derivative.

        E = (V - target)^2
        d E / d V = 2 (V - target)

    With clip_range > 0, of V and of V clipped to old_value +- clip_range the worse counts, so that a value gains
    nothing by moving further (as in OpenAI's implementation; Engstrom et al. 2020, section 3); where the clipped one
    counts, the derivative is 0.

    Args:
        value: [B].
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
    # clamp leaves values inside the range as they are, to the last bit: both errors are equal and the gradient stays.
    clipped_error = (value.clamp(old_value - clip_range, old_value + clip_range) - target).square()
    return torch.maximum(error, clipped_error), gradient * (error >= clipped_error)


def standardize(advantage: Tensor) -> Tensor:
    """Advantages [B] with mean 0 and standard deviation 1."""
    deviation, mean = torch.std_mean(advantage, correction=0)
    return (advantage - mean) / (deviation + 1e-8)


def policy_gradient(batch: Batch, networks: ActorCritic, settings: PPOHyperparameters) -> tuple[Tensor, ...]:
    """Writes the actor's part of the gradient of the loss (Schulman et al. 2017, equation 9): of

        -mean(L) - entropy_coefficient mean(H)

    Args:
        batch: B steps.
        networks: What is trained; the gradient it held for the actor is overwritten.
        settings: Coefficients and ranges.

    Returns:
        mean(-L); mean(H); the estimated KL divergence mean((ratio - 1) - log ratio) (Schulman 2020, "k3"); the fraction
        of ratios outside the clip range: [] each.
    """
    trace = networks.policy.actor.trace(batch.observation)
    log_prob, entropy, backward = networks.policy.distribution.evaluate(trace[-1], batch.action)
    advantage = standardize(batch.advantage) if settings.normalize_advantages else batch.advantage
    log_ratio = log_prob - batch.log_prob
    objective, gradient = clipped_surrogate(log_ratio, advantage, settings.clip_range)

    outputs_gradient, log_std_gradient = backward(gradient.mul_(-1.0 / len(gradient)), -settings.entropy_coefficient)
    networks.policy.actor.backward(outputs_gradient, trace, networks.actor_gradient)
    if log_std_gradient is not None:
        networks.gradients["log_std"].copy_(log_std_gradient)

    change = log_ratio.expm1()
    clip_fraction = (change.abs() > settings.clip_range).float().mean()
    return -objective.mean(), entropy, (change - log_ratio).mean(), clip_fraction


def value_gradient(batch: Batch, networks: ActorCritic, settings: PPOHyperparameters) -> Tensor:
    """Writes the critic's part of the gradient of the loss (Schulman et al. 2017, equation 9): of

        value_coefficient mean(E)

    Arguments are those of `policy_gradient`. Returns mean(E): [].
    """
    trace = networks.critic.trace(batch.observation)
    error, gradient = squared_value_error(trace[-1].squeeze(1), batch.value, batch.target, settings.value_clip_range)
    gradient.mul_(settings.value_coefficient / len(gradient))
    networks.critic.backward(gradient.unsqueeze(1), trace, networks.critic_gradient)
    return error.mean()


def explained_variance(value: Tensor, target: Tensor) -> float:
    """The share of the variance of targets [B] that values [B] account for: 1 is perfect, 0 as good as a constant."""
    return 1.0 - float((target - value).var(correction=0) / target.var(correction=0).clamp(min=1e-8))


class PPO:
    """See agentpod.algorithms.base.Algorithm for the loop and the meaning of every attribute."""

    settings_type: ClassVar[type[PPOHyperparameters]] = PPOHyperparameters
    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous", "discrete"})

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        hyperparameters: Mapping[str, object],
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """Draws new networks.

        Args:
            observation_space: Of the simulator.
            action_space: Of the simulator.
            hyperparameters: Of PPOHyperparameters, by name.
            seed: Of the agent: decides the networks and the order of minibatches.
            device: Where it trains.

        Raises:
            InvalidArgument: A hyperparameter or a space cannot be used.
        """
        self.hyperparameters = settings = parse_hyperparameters(PPOHyperparameters, hyperparameters)
        self.network = NetworkSpec(settings.hidden_sizes, settings.activation, settings.normalize_observations)
        self.horizon, self.update_number = settings.horizon, 0
        self._seed, self._device = seed, torch.device(device)
        self._networks = ActorCritic(observation_space, action_space, self.network, device)
        self._networks.initialize(derive_generator(device, seed, "initialize"), settings.initial_log_std)
        self.policy = self._networks.policy
        self._optimizer = FlatAdam(
            self._networks.parameters,
            self._networks.gradient,
            learning_rate=settings.learning_rate,
            epsilon=settings.adam_epsilon,
            maximum_norm=settings.maximum_gradient_norm,
        )
        self._observation_moments = RunningMoments.empty((math.prod(observation_space.shape),), device)
        self._reward_scale = RewardScale.empty(device)

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Epochs of minibatches over one rollout; see Algorithm.update.

        Observations are normalised by the statistics of the policy being trained, rewards by statistics that include
        this rollout. Observations join the statistics afterwards, so that they reach workers with the next version.
        """
        done = rollout["terminated"] | rollout["truncated"]
        reward_scale = self._reward_scale
        if self.hyperparameters.normalize_rewards:
            reward_scale = reward_scale.advance(rollout["reward"], done, self.hyperparameters.discount)
        batch = self._prepare(rollout, rollout["reward"] / reward_scale.deviation)
        last_good = [tensor.clone() for tensor in self._trained_tensors()]
        metrics = self._train(batch)
        self._check_finite(metrics, last_good)
        self._reward_scale = reward_scale
        self._observe(rollout["observation"][:-1])
        self.update_number += 1
        means = dict(zip(METRICS, metrics.mean(0).tolist(), strict=True))
        return means | {"explained_variance": explained_variance(batch.value, batch.target)}

    def _prepare(self, rollout: Rollout, reward: Tensor) -> Batch:
        """Values, advantages and targets under the critic as it is, flattened over time and lanes."""
        settings, (horizon, count) = self.hyperparameters, reward.shape
        if settings.minibatch_size > horizon * count:
            raise InvalidArgument(
                f"minibatch_size {settings.minibatch_size} exceeds the {horizon * count} steps of a rollout "
                f"(horizon {horizon} x {count} environments): lower minibatch_size, or raise horizon or environments"
            )
        observation = self.policy.normalize(rollout["observation"].flatten(0, 1))
        values = self._value(observation).view(horizon + 1, count)
        value, next_value = values[:-1], values[1:].clone()
        terminated, truncated = rollout["terminated"], rollout["truncated"]
        if truncated.any():
            next_value[truncated] = self._value(self.policy.normalize(rollout["final_observation"][truncated]))
        advantage = generalized_advantages(
            reward, value, next_value, terminated, truncated, settings.discount, settings.gae_lambda
        )
        fields = (rollout["action"], rollout["log_prob"], advantage, value, advantage + value)
        return Batch(observation[: horizon * count], *(field.flatten(0, 1) for field in fields))

    def _value(self, observation: Tensor) -> Tensor:
        return self._networks.critic.forward(observation).squeeze(1)

    def _train(self, batch: Batch) -> Tensor:
        """Descends the loss; returns METRICS of every minibatch: [minibatches, metrics]."""
        settings = self.hyperparameters
        generator = derive_generator(self._device, self._seed, "update", self.update_number)
        epochs: list[Tensor] = []
        for _ in range(settings.epochs):
            order = torch.randperm(len(batch.log_prob), generator=generator, device=self._device)
            minibatches = batch.minibatches(order, settings.minibatch_size)
            epochs.append(torch.stack([self._descend(minibatch) for minibatch in minibatches]))
            # Read only if it decides something: reading makes a device wait.
            if settings.target_kl > 0 and float(epochs[-1][:, DIVERGENCE].mean()) > settings.target_kl:
                break
        return torch.cat(epochs)

    def _descend(self, minibatch: Batch) -> Tensor:
        """One step of the optimizer; returns METRICS [metrics]."""
        value_loss = value_gradient(minibatch, self._networks, self.hyperparameters)
        terms = policy_gradient(minibatch, self._networks, self.hyperparameters)
        return torch.stack((value_loss, *terms, self._optimizer.step()))

    def _check_finite(self, metrics: Tensor, last_good: list[Tensor]) -> None:
        """Looks once an update, so that a device is not made to wait at every minibatch."""
        if metrics.isfinite().all():
            return
        for tensor, good in zip(self._trained_tensors(), last_good, strict=True):
            tensor.copy_(good)
        minibatch, metric = (~metrics.isfinite()).nonzero()[0].tolist()
        raise DataLoss(
            f"{METRICS[metric]} is not finite in minibatch {minibatch}, update {self.update_number}, which was undone; "
            "lower learning_rate or maximum_gradient_norm, or look at the scale of the rewards",
            reason="ERROR_REASON_NON_FINITE",
        )

    def _observe(self, observation: Tensor) -> None:
        """Adds observations [T, N, *shape] to the policy's statistics."""
        if self.hyperparameters.normalize_observations:
            samples = observation.flatten(0, 1).flatten(1)
            self._observation_moments = self._observation_moments.merge(RunningMoments.of(samples))
            self.policy.set_statistics(self._observation_moments.mean, self._observation_moments.variance)

    def _trained_tensors(self) -> list[Tensor]:
        """What a minibatch changes."""
        return [self._optimizer.parameters, *self._optimizer.tensors().values()]

    def _state_tensors(self) -> dict[str, Tensor]:
        """What can be copied into in place; statistics and counters are replaced instead."""
        optimizer = {f"optimizer.{name}": tensor for name, tensor in self._optimizer.tensors().items()}
        return self._networks.critic_tensors | optimizer

    def begin_episodes(self) -> None:
        """See Algorithm.begin_episodes: running returns begin at zero."""
        self._reward_scale = self._reward_scale.begin_episodes()

    def state_dict(self) -> dict[str, Tensor]:
        """Critic, optimizer, statistics and counter; see Algorithm.state_dict."""
        return {
            **{name: tensor.clone() for name, tensor in self._state_tensors().items()},
            **self._observation_moments.state_dict("observation_moments"),
            **self._reward_scale.moments.state_dict("return_moments"),
            "return_carry": self._reward_scale.carry.clone(),
            "update_number": torch.tensor(self.update_number),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See Algorithm.load_state_dict; the policy is loaded apart, by `policy.load`."""
        for name, tensor in self.state_dict().items():
            if name not in state or (name != "return_carry" and state[name].shape != tensor.shape):
                found = list(state[name].shape) if name in state else "none"
                raise InvalidArgument(
                    f"tensor {name!r} of the training state must have shape {list(tensor.shape)}, found {found}: "
                    "it was saved with other spaces or hidden_sizes"
                )
        for name, tensor in self._state_tensors().items():
            tensor.copy_(state[name])
        self._observation_moments = RunningMoments.from_state_dict(state, "observation_moments", self._device)
        return_moments = RunningMoments.from_state_dict(state, "return_moments", self._device)
        self._reward_scale = RewardScale(return_moments, state["return_carry"].to(self._device, copy=True))
        self.update_number = int(state["update_number"])
