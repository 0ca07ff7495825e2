"""Implements soft actor-critic for discrete actions (Christodoulou 2019, arXiv 1910.07207)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from agentpod.algorithms.soft import SoftActorCritic, SoftSettings, Temperature
from agentpod.algorithms.trainable import Trainable, reduce_critics
from agentpod.experience.transitions import TransitionBatch


@dataclass(frozen=True)
class SACDiscreteHyperparameters(SoftSettings):
    """Hyperparameters of discrete SAC. The target entropy is log(n) target_entropy_scale, for n choices."""

    algorithm = "sac-discrete"

    target_entropy_scale: float = 0.5
    """Target entropy as a fraction of that of the uniform policy."""


class SACDiscrete(SoftActorCritic):
    """Maximizes return plus entropy, with exact expectations over actions; see agentpod.algorithms.base.Algorithm.

    V(s') = sum_a pi(a|s') (min_c Q_target_c(s', a) - alpha log pi(a|s'))
    critic loss = sum over critics of mean(weight (Q_c(s, a) - R - discount V(s'))^2)
    actor loss = mean(sum_a pi(a|s) (alpha log pi(a|s) - min_c Q_c(s, a)))

    With an action mask, pi is 0 for invalid actions, and n of the target entropy counts the valid ones.
    In gradient steps in which no step of the actor is due, the metric entropy is that in s'.
    """

    settings_type = SACDiscreteHyperparameters
    action_kinds = frozenset({"discrete"})
    METRICS = (
        "value_loss",
        "mean_value",
        "critic_gradient_norm",
        "policy_loss",
        "entropy",
        "temperature",
        "actor_gradient_norm",
    )

    def _build_networks(self, generator: torch.Generator) -> dict[str, Trainable]:
        settings, choices = self.hyperparameters, self._action_space.n
        self._temperature = Temperature(settings, settings.target_entropy_scale * math.log(choices), self._device)
        return {
            "actor": self._actor(target=False),
            "critic": self._critics(generator, self._inputs, choices, settings.critics),
        }

    def _gradient_step(self, batch: TransitionBatch, noise: Tensor) -> tuple[Tensor, Tensor]:
        actor, critics, size = self._trained["actor"], self._trained["critic"], len(batch.reward)
        # Observations and next observations share one forward pass: the actor does not change before its own step.
        both, mask = (batch.observation, batch.next_observation), self.policy.mask
        seen = torch.cat(both) if self._due.actor else batch.next_observation
        trace = actor.network.trace(seen)
        logits = mask.apply(trace[-1], seen) if mask else trace[-1]
        log_probabilities = logits.log_softmax(-1)
        probabilities, temperature = log_probabilities.exp(), self._temperature.value()
        negative_entropy = (probabilities * log_probabilities).sum(-1)

        next_values = self._target_value(critics.target.forward(batch.next_observation))
        expected = (probabilities[-size:] * next_values).sum(-1)
        soft_value = torch.addcmul(expected, temperature, negative_entropy[-size:], value=-1.0)
        target = torch.addcmul(batch.reward, batch.discount, soft_value)
        loss, errors, mean_value, critic_norm = self._step_critics(batch, target)

        entropy, (policy_loss, actor_norm) = -negative_entropy[:size].mean(), self._policy_metrics
        if self._due.actor:
            halves = probabilities[:size], log_probabilities[:size]
            policy_loss, actor_norm = self._latest(
                *self._actor_step(batch.observation, *halves, [tensor[:size] for tensor in trace], temperature)
            )
            self._temperature.descend(-entropy - self._lost_entropy(batch.observation))
        metrics = (loss, mean_value, critic_norm, policy_loss, entropy, temperature, actor_norm)
        return torch.stack(metrics), errors

    def _actor_step(
        self,
        observation: Tensor,
        probabilities: Tensor,
        log_probabilities: Tensor,
        trace: list[Tensor],
        temperature: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Updates the actor by the values of the critics; returns its loss [] and the gradient norm []."""
        actor, critics, mask = self._trained["actor"], self._trained["critic"], self.policy.mask
        values, _ = reduce_critics(critics.network.forward(observation), self.hyperparameters.critic_reduction)
        # L = sum_a p_a (alpha log p_a - Q_a);  d L / d logit_i = p_i (alpha log p_i - Q_i - L)
        advantage = torch.addcmul(-values, temperature, log_probabilities)
        each = (probabilities * advantage).sum(-1, keepdim=True)
        gradient = probabilities * (advantage - each) / len(observation)
        gradient = mask.backward(gradient, observation) if mask else gradient
        actor.network.backward(gradient, trace, actor.gradient)
        return each.mean(), actor.optimizer.step()

    def _lost_entropy(self, observation: Tensor) -> Tensor | float:
        """Returns by how much an action mask lowers the target entropy, which is that of the valid choices then: []."""
        if self.policy.mask is None:
            return 0.0
        valid = self.policy.mask.valid(observation).sum(-1).clamp(min=1)
        most = math.log(self._action_space.n)
        scale: float = self.hyperparameters.target_entropy_scale
        return (most - valid.log().mean()) * scale

    def _step_critics(self, batch: TransitionBatch, target: Tensor) -> tuple[Tensor, ...]:
        """Makes one gradient step of every critic at the taken actions; returns what `trainable.step_critics` does."""
        critics, size = self._trained["critic"], len(target)
        trace = critics.network.trace(batch.observation)
        values = trace[-1]
        index = batch.action.expand(len(values), size).unsqueeze(-1)
        error = values.gather(-1, index).squeeze(-1) - target
        weighted = error * batch.weight
        slope = torch.zeros_like(values).scatter_(-1, index, (weighted * (2.0 / size)).unsqueeze(-1))
        critics.network.backward(slope, trace, critics.gradient)
        return (weighted * error).sum() / size, error.abs().mean(0), values.mean(), critics.optimizer.step()
