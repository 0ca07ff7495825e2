"""Implements deep deterministic policy gradients (DDPG; Lillicrap et al. 2016, arXiv 1509.02971)."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from agentpod.algorithms.off_policy import OffPolicy, OffPolicySettings
from agentpod.algorithms.trainable import Trainable, step_critics
from agentpod.experience.transitions import TransitionBatch
from agentpod.models.distributions import output_count
from agentpod.models.policy import NetworkSpec


@dataclass(frozen=True)
class DDPGHyperparameters(OffPolicySettings):
    """Hyperparameters of DDPG."""

    algorithm = "ddpg"

    learning_rate: float = 1e-3
    """Step size of Adam."""
    critics: int = 1
    """Critics in the ensemble; the target is the minimum of their values."""
    initial_exploration: float = 1.0
    """Standard deviation of the action noise during the warm-up, in units of half the action range."""
    exploration: float = 0.1
    """Standard deviation of the action noise after the warm-up, in units of half the action range."""

    @property
    def network(self) -> NetworkSpec:
        """Structure of the policy."""
        return replace(super().network, head="deterministic")


class DDPG(OffPolicy):
    """Trains an actor by gradient ascent on its critic; see agentpod.algorithms.base.Algorithm for the loop.

    y = R + discount min_c Q_target_c(s', pi_target(s'))
    critic loss = sum over critics of mean(weight (Q_c(s, a) - y)^2)
    actor loss = -mean(Q_1(s, pi(s)))
    """

    settings_type: ClassVar[type[DDPGHyperparameters]] = DDPGHyperparameters
    action_kinds = frozenset({"continuous"})
    METRICS = ("value_loss", "mean_value", "critic_gradient_norm", "policy_loss", "actor_gradient_norm")

    def _build_networks(self, generator: torch.Generator) -> dict[str, Trainable]:
        self._policy_metrics = torch.zeros(2, device=self._device)
        critics = self._critics(generator, self._critic_size(), 1, self.hyperparameters.critics)
        self._first_critic = critics.network.member(0)
        return {"actor": self._actor(target=True), "critic": critics}

    def _live_tensors(self) -> dict[str, Tensor]:
        # Metrics of the last actor step, which are reported again until the next one.
        return super()._live_tensors() | {"policy_metrics": self._policy_metrics}

    def _set_exploration(self) -> None:
        warm = self.environment_steps >= self.hyperparameters.warmup_steps
        settings = self.hyperparameters
        self.policy.set_head_parameter("exploration", settings.exploration if warm else settings.initial_exploration)

    @property
    def _own_action(self) -> slice:
        """Columns of the inputs of a critic in which the action is that the actor's gradient is computed for."""
        return slice(self._inputs, self._inputs + output_count(self._action_space))

    def _critic_size(self) -> int:
        """Returns the number of inputs of a critic, which begin with the observation and the action."""
        return int(self._own_action.stop)

    def _critic_inputs(self, observation: Tensor, action: Tensor) -> Tensor:
        """Returns the inputs of the critics in new memory: [B, _critic_size()]."""
        return torch.cat((observation, action), -1)

    def _next_action(self, next_observation: Tensor, noise: Tensor) -> Tensor:
        """Returns the target policy's actions: [B, A]."""
        return self._trained["actor"].target.forward(next_observation).tanh_()

    def _gradient_step(self, batch: TransitionBatch, noise: Tensor) -> tuple[Tensor, Tensor]:
        critics = self._trained["critic"]
        next_action = self._next_action(batch.next_observation, noise)
        next_values = critics.target.forward(self._critic_inputs(batch.next_observation, next_action)).squeeze(-1)
        target = torch.addcmul(batch.reward, batch.discount, next_values.amin(0))
        inputs = self._critic_inputs(batch.observation, batch.action)
        loss, errors, mean_value, norm = step_critics(critics, inputs, target, batch.weight)
        if self._due.actor:
            self._policy_metrics.copy_(self._actor_step(batch.observation, inputs, noise))
        return torch.cat((torch.stack((loss, mean_value, norm)), self._policy_metrics)), errors

    def _actor_slope(self, values: Tensor) -> Tensor:
        """Returns the derivative of the actor's loss with respect to the critic's values: [B, 1], as `values`."""
        return torch.full_like(values, -1.0 / len(values))

    def _actor_step(self, observation: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        """Updates the actor by the first critic's gradient; returns the actor's loss and its gradient norm: [2].

        Args:
            observation: [B, D].
            inputs: [B, _critic_size()], those of the critics for the replayed actions, which are overwritten.
            noise: Of the gradient step; not used for continuous actions.
        """
        actor = self._trained["actor"]
        trace = actor.network.trace(observation)
        action = trace[-1].tanh()
        inputs[:, self._own_action] = action
        critic_trace = self._first_critic.trace(inputs)
        slope = self._actor_slope(critic_trace[-1])
        action_gradient = self._first_critic.input_gradient(slope, critic_trace, self._own_action)
        # d tanh(u) / d u = 1 - tanh(u)^2
        outputs_gradient = torch.addcmul(action_gradient, action_gradient * action, action, value=-1.0)
        actor.network.backward(outputs_gradient, trace, actor.gradient)
        return torch.stack(((slope * critic_trace[-1]).sum(), actor.optimizer.step()))
