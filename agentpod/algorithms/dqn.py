"""Implements deep Q-learning (Mnih et al. 2015, Nature 518), with switches for its double and dueling variants."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from agentpod.algorithms.base import linear_schedule
from agentpod.algorithms.off_policy import OffPolicy, OffPolicySettings
from agentpod.algorithms.trainable import Trainable
from agentpod.experience.transitions import TransitionBatch
from agentpod.models.action_heads import dueling_backward, dueling_values
from agentpod.models.policy import NetworkSpec


@dataclass(frozen=True)
class DQNHyperparameters(OffPolicySettings):
    """What a specification can set."""

    algorithm = "dqn"

    hidden_sizes: tuple[int, ...] = (128, 128)
    """Units of each hidden layer."""
    horizon: int = 8
    """Steps of each environment between two policy versions."""
    learning_rate: float = 5e-4
    """Step size of Adam."""
    n_step: int = 5
    """Rewards summed before bootstrapping from a value."""
    batch_size: int = 128
    """Replayed steps per gradient step."""
    replay_capacity: int = 100_000
    """Environment steps in the replay buffer, over all environments."""
    updates_per_step: float = 0.25
    """Gradient steps for each environment step, over all environments."""
    target_rate: float = 0.01
    """Tau: fraction of the way that the target network moves towards the network (Polyak averaging)."""
    maximum_gradient_norm: float = 10.0
    """Gradients with a larger norm are scaled down to it; 0 = no clipping."""
    initial_exploration: float = 1.0
    """Initial epsilon: fraction of steps with a random choice."""
    final_exploration: float = 0.05
    """Final epsilon."""
    exploration_steps: int = 20_000
    """Environment steps over which epsilon decreases linearly."""
    huber_delta: float = 1.0
    """Errors above this are weighted linearly instead of quadratically; 0 = always quadratically."""

    @property
    def network(self) -> NetworkSpec:
        """Structure of the policy, which acts on the action values themselves."""
        return replace(super().network, head="values")


def huber(error: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    """Computes the Huber loss of each error (Huber 1964) and its derivative.

    It is half the square within +-delta and linear beyond. With delta = 0 it is half the square everywhere.

    Args:
        error: [B].
        delta: Where the loss becomes linear.

    Returns:
        Loss and derivative, [B] each.
    """
    if delta == 0:
        return error.square() * 0.5, error
    clipped = error.clamp(-delta, delta)
    # delta (|e| - delta / 2) where clipped, e^2 / 2 elsewhere.
    return clipped * (error - clipped * 0.5), clipped


class DQN(OffPolicy):
    """Learns action values; see agentpod.algorithms.base.Algorithm for the loop.

        y = R + discount Q_target(s', a*),  a* = argmax Q_target(s', .)
        loss = mean(weight huber(Q(s, a) - y))

    With an action mask, a* is a valid action of s'.

    Attributes:
        double: Whether a* is selected by Q instead of Q_target.
        dueling: Whether Q is composed of a value and advantages.
    """

    settings_type: ClassVar[type[DQNHyperparameters]] = DQNHyperparameters
    action_kinds = frozenset({"discrete"})
    METRICS = ("value_loss", "mean_value", "gradient_norm")
    double: ClassVar[bool] = False
    dueling: ClassVar[bool] = False

    def _build_networks(self, generator: torch.Generator) -> dict[str, Trainable]:
        return {"actor": self._actor(target=True)}

    def _set_exploration(self) -> None:
        settings = self.hyperparameters
        progress = self.environment_steps / settings.exploration_steps
        self.policy.set_head_parameter(
            "exploration", linear_schedule(settings.initial_exploration, settings.final_exploration, progress)
        )

    def _values(self, outputs: Tensor) -> Tensor:
        return dueling_values(outputs) if self.dueling else outputs

    def _gradient_step(self, batch: TransitionBatch, noise: Tensor) -> tuple[Tensor, Tensor]:
        trained = self._trained["actor"]
        next_value = self._values(trained.target.forward(batch.next_observation))
        selecting = self._values(trained.network.forward(batch.next_observation)) if self.double else next_value
        if self.policy.mask:
            selecting = self.policy.mask.choices(selecting, batch.next_observation)
        best = selecting.argmax(-1, keepdim=True)
        target = torch.addcmul(batch.reward, batch.discount, next_value.gather(-1, best).squeeze(-1))

        trace = trained.network.trace(batch.observation)
        values, index = self._values(trace[-1]), batch.action.unsqueeze(-1)
        error = values.gather(-1, index).squeeze(-1) - target
        loss, slope = huber(error, self.hyperparameters.huber_delta)
        slope = (slope * batch.weight).mul_(1.0 / len(slope)).unsqueeze(-1)
        gradient = torch.zeros_like(values).scatter_(-1, index, slope)
        gradient = dueling_backward(gradient) if self.dueling else gradient
        trained.network.backward(gradient, trace, trained.gradient)
        norm = trained.optimizer.step()
        return torch.stack(((loss * batch.weight).mean(), values.mean(), norm)), error.abs()
