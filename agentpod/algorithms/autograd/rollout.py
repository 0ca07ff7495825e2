"""Implements the base of user's algorithms that learn from each rollout once."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from agentpod.algorithms.autograd.learner import LossDifferentiation
from agentpod.algorithms.autograd.settings import RolloutSettings
from agentpod.algorithms.fusible import Fusible
from agentpod.algorithms.on_policy import STEPS, OnPolicy
from agentpod.experience.rollout import Rollout
from agentpod.models.policy import Policy
from agentpod.seeding import derive_generator
from podrace.errors import DataLoss
from podrace.plugins.user_calls import calls_user_code, unusable
from simulators.base import Space

PREPARE = "prepare"
Batch = dict[str, Tensor]
"""Steps by field: observation [B, D] and next_observation [B, D] as networks receive them, action, log_prob, reward,
terminated, truncated [B]; and what `prepare` added."""


class _PreparedSteps(NamedTuple):
    """All steps of a rollout, flattened over time and lanes."""

    fields: Batch
    rows: int
    recurrent_states: None = None

    def diagnostics(self) -> dict[str, float]:
        return {}


class RolloutAlgorithm(LossDifferentiation, OnPolicy):
    """Base class of user's algorithms that learn from rollouts, by automatic differentiation of their loss.

        class Reinforce(RolloutAlgorithm):
            settings_type = ReinforceSettings

            def prepare(self, rollout):
                return rollout | {"return": returns_of(rollout["reward"])}

            def loss(self, batch):
                return -(self.log_prob(self.actor(batch["observation"]), batch["action"]) * batch["return"]).mean()

    Advantages, clipping of gradients, normalization, schedules, checkpoints, resume and fusion need no code. See
    agentpod.algorithms.base.Algorithm for the loop that uses it.
    """

    settings_type: ClassVar[type[Any]] = RolloutSettings
    METRICS = ("training_loss", "gradient_norm")

    def prepare(self, rollout: Batch) -> Batch:
        """Returns the fields that `loss` gets, from those of a rollout [T, N, ...]. Default: the rollout itself."""
        return rollout

    def _build(self, observation_space: Space, action_space: Space) -> None:
        self._measure(observation_space, action_space)
        policy = Policy(observation_space, action_space, self.network, device=self._device)
        policy.initialize(derive_generator(self._device, self._seed, "initialize"))
        policy.set_head_parameter("log_std", self.hyperparameters.initial_log_std)
        self._trained_networks = self._build_trained_networks(policy, self._seed)
        self.policy, self._optimizer = self._trained_networks.policy, self._trained_networks.optimizer

    def update(self, experience: Rollout) -> dict[str, float]:
        """See OnPolicy.update."""
        try:
            return super().update(experience)
        except DataLoss as error:
            raise self._explained(error) from None

    def _prepare(self, rollout: Rollout, reward: Tensor) -> Any:
        horizon, count = reward.shape
        seen = self.policy.normalize(rollout["observation"].flatten(0, 1)).view(horizon + 1, count, -1)
        following, truncated = seen[1:].clone(), rollout["truncated"]
        if truncated.any():
            following[truncated] = self.policy.normalize(rollout["final_observation"][truncated])
        names = ("action", "log_prob", "terminated", "truncated")
        fields = {"observation": seen[:-1], "next_observation": following, "reward": reward}
        with calls_user_code(type(self), PREPARE), torch.no_grad():
            prepared: object = self.prepare(fields | {name: rollout[name] for name in names})
        if not isinstance(prepared, Mapping):
            raise unusable(type(self), PREPARE, f"returned a {type(prepared).__name__}, expected a dictionary")
        for name, field in prepared.items():
            if not isinstance(field, Tensor) or field.shape[:2] != reward.shape:
                found = f"shape {list(field.shape)}" if isinstance(field, Tensor) else f"type {type(field).__name__}"
                wanted = f"a tensor [{horizon}, {count}, ...]: one row for each step of each environment"
                raise unusable(type(self), PREPARE, f"returned the field {name!r} of {found}, expected {wanted}")
        return _PreparedSteps({name: field.flatten(0, 1) for name, field in prepared.items()}, horizon * count)

    def _train(self, batch: Any) -> Tensor:
        self.generator = derive_generator(self._device, self._seed, "loss", self.update_number)
        return torch.stack([self._differentiate(minibatch)[0] for minibatch in self._minibatches(batch)])

    def _minibatches(self, steps: _PreparedSteps) -> Iterator[Batch]:
        settings, (fields, rows, _) = self.hyperparameters, steps
        generator = derive_generator(self._device, self._seed, "update", self.update_number)
        for _ in range(settings.epochs):
            if not 0 < settings.minibatch_size < rows:
                yield fields
                continue
            order = torch.randperm(rows, generator=generator, device=self._device)
            for chosen in order.tensor_split(math.ceil(rows / settings.minibatch_size)):
                yield {name: field.index_select(0, chosen) for name, field in fields.items()}

    def _trained_tensors(self) -> list[Tensor]:
        return [*self._trained_networks.tensors().values(), self._optimizer.rate]

    def _state_tensors(self) -> dict[str, Tensor]:
        return self._trained_networks.tensors()

    def fusible(self) -> Fusible:
        """See Algorithm.fusible."""
        statistics = {"observations": self._observations, "returns": self._returns}
        return self._fusible_networks({STEPS: self._environment_steps}, statistics)
