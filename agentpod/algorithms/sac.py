"""Implements soft actor-critic for continuous actions (Haarnoja et al. 2018, arXiv 1801.01290 and 1812.05905).

With `critics = 10`, `critic_subset = 2`, `critic_reduction = "mean"`, `updates_per_step = 20` and `policy_delay = 20`
it is REDQ (Chen et al. 2021, arXiv 2101.05982).
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from agentpod.algorithms.soft import SoftActorCritic, SoftSettings, Temperature
from agentpod.algorithms.trainable import Trainable, reduce_critics, step_critics
from agentpod.experience.transitions import TransitionBatch
from agentpod.models.action_heads import SquashedGaussian, SquashedSample
from agentpod.models.distributions import output_count


@dataclass(frozen=True)
class SACHyperparameters(SoftSettings):
    """Hyperparameters of SAC. The target entropy is -A target_entropy_scale, for A action dimensions."""

    algorithm = "sac"


class SAC(SoftActorCritic):
    """Maximizes return plus entropy; see agentpod.algorithms.base.Algorithm for the loop.

    y = R + discount (min_c Q_target_c(s', a') - alpha log pi(a'|s')),  a' ~ pi(.|s')
    critic loss = sum over critics of mean(weight (Q_c(s, a) - y)^2)
    actor loss = mean(alpha log pi(a|s) - min_c Q_c(s, a)),  a = tanh(mean + std noise)

    In gradient steps in which no step of the actor is due, the metric log_prob is that of actions in s'.
    """

    settings_type = SACHyperparameters
    action_kinds = frozenset({"continuous"})
    METRICS = (
        "value_loss",
        "mean_value",
        "critic_gradient_norm",
        "policy_loss",
        "log_prob",
        "temperature",
        "actor_gradient_norm",
    )

    def _build_networks(self, generator: torch.Generator) -> dict[str, Trainable]:
        settings, self._dimensions = self.hyperparameters, output_count(self._action_space)
        self._temperature = Temperature(settings, -settings.target_entropy_scale * self._dimensions, self._device)
        critics = self._critics(generator, self._inputs + self._dimensions, 1, settings.critics)
        return {"actor": self._actor(target=False), "critic": critics}

    def _noise(self, updates: int, generator: torch.Generator) -> Tensor:
        shape = (updates, 2 * self.hyperparameters.batch_size, self._dimensions)
        return torch.randn(shape, generator=generator, device=generator.device)

    def _gradient_step(self, batch: TransitionBatch, noise: Tensor) -> tuple[Tensor, Tensor]:
        actor, critics, size = self._trained["actor"], self._trained["critic"], len(batch.reward)
        head = cast(SquashedGaussian, self.policy.head)
        # Observations and next observations share one forward pass: the actor does not change before its own step.
        both = (batch.observation, batch.next_observation)
        trace = actor.network.trace(torch.cat(both) if self._due.actor else batch.next_observation)
        drawn = head.rsample(trace[-1], noise[-len(trace[-1]) :])
        temperature = self._temperature.value()
        mean_log_prob = drawn.log_prob[:size].mean()
        if self._due.actor:
            self._temperature.descend(mean_log_prob)

        next_inputs = torch.cat((batch.next_observation, drawn.action[-size:]), -1)
        next_values = self._target_value(critics.target.forward(next_inputs).squeeze(-1))
        soft_value = torch.addcmul(next_values, temperature, drawn.log_prob[-size:], value=-1.0)
        target = torch.addcmul(batch.reward, batch.discount, soft_value)
        inputs = torch.cat((batch.observation, batch.action), -1)
        loss, errors, mean_value, critic_norm = step_critics(critics, inputs, target, batch.weight)

        policy_loss, actor_norm = self._policy_metrics
        if self._due.actor:
            first_half = SquashedSample(*(tensor[:size] for tensor in drawn))
            policy_value, actor_norm = self._actor_step(
                batch.observation, first_half, [tensor[:size] for tensor in trace], temperature
            )
            policy_loss, actor_norm = self._latest(temperature * mean_log_prob - policy_value, actor_norm)
        metrics = (loss, mean_value, critic_norm, policy_loss, mean_log_prob, temperature, actor_norm)
        return torch.stack(metrics), errors

    def _actor_step(
        self, observation: Tensor, drawn: SquashedSample, trace: list[Tensor], temperature: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Updates the actor by the gradient of the critics; returns their mean value [] and the gradient norm []."""
        actor, critics, size = self._trained["actor"], self._trained["critic"], len(observation)
        critic_trace = critics.network.trace(torch.cat((observation, drawn.action), -1))
        values, slope = reduce_critics(critic_trace[-1], self.hyperparameters.critic_reduction)
        parts = critics.network.input_gradient(slope.mul_(-1.0 / size), critic_trace, slice(self._inputs, None))
        actor.network.backward(drawn.backward(parts.sum(0), temperature / size), trace, actor.gradient)
        return values.mean(), actor.optimizer.step()
