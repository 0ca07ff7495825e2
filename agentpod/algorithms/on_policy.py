"""Owns what algorithms share that learn from one rollout and forget it: values, advantages, statistics, state.

A subclass descends a loss of its own over the prepared batch (`_train`).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from agentpod.actor_critic import ActorCritic
from agentpod.algorithms.base import Settings, load_tensors, non_finite, parse_hyperparameters
from agentpod.normalizer import RewardScale, RunningMoments
from agentpod.optimizer import FlatAdam
from agentpod.randomness import derive_generator
from agentpod.returns import generalized_advantages
from agentpod.rollout import Rollout
from simulators.base import Space


@dataclass(frozen=True)
class OnPolicySettings(Settings):
    """What a specification can set of every on-policy algorithm."""

    learning_rate: float = 3e-4
    """Step size of Adam."""
    discount: float = 0.99
    """Gamma: worth of a reward one step later."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation: 0 trusts the critic alone, 1 the rewards alone."""
    entropy_coefficient: float = 0.001
    """Weight of the entropy bonus."""
    value_coefficient: float = 0.5
    """Weight of the squared value error."""
    maximum_gradient_norm: float = 0.5
    """Gradients longer than this are scaled down to it; 0 = off."""
    normalize_rewards: bool = True
    """Whether rewards are divided by the running deviation of the discounted return."""
    normalize_advantages: bool = True
    """Whether advantages are standardised within each minibatch."""
    adam_epsilon: float = 1e-5
    """Added to the denominator of Adam."""
    initial_log_std: float = 0.0
    """Logarithm of the first standard deviation of continuous actions, in units of half the action range."""


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


def standardize(advantage: Tensor) -> Tensor:
    """Advantages [B] with mean 0 and standard deviation 1."""
    deviation, mean = torch.std_mean(advantage, correction=0)
    return (advantage - mean) / (deviation + 1e-8)


Objective = Callable[[Tensor], tuple[Tensor, Tensor]]
"""What is to grow or shrink, for each of B numbers, and its derivative: [B] -> ([B], [B])."""


def descend_policy(
    batch: Batch, networks: ActorCritic, objective: Objective, entropy_coefficient: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Writes the gradient of -mean(objective(log_prob)) - entropy_coefficient mean(H) for the actor.

    Args:
        batch: B steps.
        networks: What is trained; the gradient it held for the actor is overwritten.
        objective: Of each log-probability, as the actor gives it now.
        entropy_coefficient: Weight of the mean entropy H.

    Returns:
        Log-probabilities [B], mean objective [], mean entropy [].
    """
    trace = networks.policy.actor.trace(batch.observation)
    log_prob, entropy, backward = networks.distribution.evaluate(trace[-1], batch.action)
    value, gradient = objective(log_prob)
    outputs_gradient, log_std_gradient = backward(gradient * (-1.0 / len(gradient)), -entropy_coefficient)
    networks.policy.actor.backward(outputs_gradient, trace, networks.actor_gradient)
    if log_std_gradient is not None:
        networks.gradients["log_std"].copy_(log_std_gradient)
    return log_prob, value.mean(), entropy


def descend_value(batch: Batch, networks: ActorCritic, error: Objective, coefficient: float) -> Tensor:
    """Writes the gradient of coefficient mean(error(V)) for the critic, and returns mean(error(V)): []."""
    trace = networks.critic.trace(batch.observation)
    value, gradient = error(trace[-1].squeeze(1))
    gradient = (gradient * (coefficient / len(gradient))).unsqueeze(1)
    networks.critic.backward(gradient, trace, networks.critic_gradient)
    return value.mean()


def explained_variance(value: Tensor, target: Tensor) -> float:
    """The share of the variance of targets [B] that values [B] account for: 1 is perfect, 0 as good as a constant."""
    return 1.0 - float((target - value).var(correction=0) / target.var(correction=0).clamp(min=1e-8))


class OnPolicy:
    """See agentpod.algorithms.base.Algorithm for the loop and the meaning of every attribute.

    Attributes:
        METRICS: Names of the metrics of a minibatch, in the order in which `_train` gives them.
    """

    settings_type: ClassVar[type[OnPolicySettings]]
    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous", "discrete"})
    METRICS: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        hyperparameters: Mapping[str, object],
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """Draws new networks; see Algorithm. The seed also decides the order of minibatches."""
        self.hyperparameters: Any = parse_hyperparameters(self.settings_type, hyperparameters)
        settings = self.hyperparameters
        self.network, self.memory, self.update_number = settings.network, settings.memory, 0
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

    def update(self, experience: Rollout) -> dict[str, float]:
        """Descends the loss over one rollout; see Algorithm.update.

        Observations are normalised by the statistics of the policy being trained, rewards by statistics that include
        this rollout. Observations join the statistics afterwards, so that they reach workers with the next version.
        """
        done = experience["terminated"] | experience["truncated"]
        reward_scale = self._reward_scale
        if self.hyperparameters.normalize_rewards:
            reward_scale = reward_scale.advance(experience["reward"], done, self.hyperparameters.discount)
        batch = self._prepare(experience, experience["reward"] / reward_scale.deviation)
        last_good = [tensor.clone() for tensor in self._trained_tensors()]
        metrics = self._train(batch)
        self._check_finite(metrics, last_good)
        self._reward_scale = reward_scale
        self._observe(experience["observation"][:-1])
        self.update_number += 1
        means = dict(zip(self.METRICS, metrics.mean(0).tolist(), strict=True))
        return means | {"explained_variance": explained_variance(batch.value, batch.target)}

    def _train(self, batch: Batch) -> Tensor:
        """Descends the loss; returns METRICS of every minibatch: [minibatches, metrics]."""
        raise NotImplementedError

    def _prepare(self, rollout: Rollout, reward: Tensor) -> Batch:
        """Values, advantages and targets under the critic as it is, flattened over time and lanes."""
        settings, (horizon, count) = self.hyperparameters, reward.shape
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

    def _check_finite(self, metrics: Tensor, last_good: list[Tensor]) -> None:
        """Looks once an update, so that a device is not made to wait at every minibatch."""
        if metrics.isfinite().all():
            return
        for tensor, good in zip(self._trained_tensors(), last_good, strict=True):
            tensor.copy_(good)
        raise non_finite(self.METRICS, metrics, self.update_number)

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
        load_tensors(self._state_tensors(), self.state_dict(), state, any_shape=("return_carry",))
        self._observation_moments = RunningMoments.from_state_dict(state, "observation_moments", self._device)
        return_moments = RunningMoments.from_state_dict(state, "return_moments", self._device)
        self._reward_scale = RewardScale(return_moments, state["return_carry"].to(self._device, copy=True))
        self.update_number = int(state["update_number"])
