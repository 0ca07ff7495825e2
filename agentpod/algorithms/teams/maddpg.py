"""Implements multi-agent DDPG (MADDPG; Lowe et al. 2017, arXiv 1706.02275)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from agentpod.algorithms.ddpg import DDPG, DDPGHyperparameters
from agentpod.algorithms.teams.gumbel import chosen, gumbel_noise, straight_through, straight_through_backward
from agentpod.algorithms.teams.presence import Present, team_outcomes, without_absent
from agentpod.algorithms.teams.team_replay import TeamReplay
from agentpod.algorithms.trainable import Trainable
from agentpod.capture.graph_replay import Record
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.transitions import TransitionBatch
from agentpod.models.cnn import NO_TORSO
from agentpod.models.distributions import output_count
from podrace.errors import UNSUITABLE_SPACE, InvalidArgument
from podrace.specification.declaration import hyperparameter
from simulators.base import Space


@dataclass(frozen=True)
class TeamCriticHyperparameters(DDPGHyperparameters):
    """What a specification can set. Steps are those of environments, except for the capacity of the replay memory."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of each hidden layer, of the actor and of the critics."""
    horizon: int = 8
    """Steps of each environment between two policy versions."""
    learning_rate: float = 1e-3
    """Step size of Adam."""
    discount: float = 0.95
    """Gamma: discount per step."""
    replay_capacity: int = 300_000
    """Steps of agents in the replay memory: environment steps times the number of agents."""
    updates_per_step: float = 0.05
    """Gradient steps per environment step, over all environments."""
    target_rate: float = 0.01
    """Tau: fraction of the way that the target networks move towards the networks (Polyak averaging)."""
    maximum_gradient_norm: float = 0.5
    """Gradients with a larger norm are scaled down to it; 0 = no clipping."""
    shared_reward: bool = False
    """Whether each agent is rewarded with the sum of the rewards of all agents of its environment."""


@dataclass(frozen=True)
class MADDPGHyperparameters(TeamCriticHyperparameters):
    """Those of algorithms with a critic of all agents, and those of discrete actions."""

    algorithm = "maddpg"

    softmax_temperature: float = hyperparameter(
        1.0, "of the Gumbel-softmax of discrete actions", low=1e-3, high=1e3, scale="log"
    )
    """Temperature of the Gumbel-softmax through which the gradient of discrete actions is propagated."""
    logit_penalty: float = hyperparameter(1e-3, "weight of squared outputs, for discrete actions", low=0.0, high=1e3)
    """Weight of the mean square of the actor's outputs in its loss, for discrete actions."""


def joint_actions(observation: Tensor, action: Tensor, agents: int) -> Tensor:
    """Computes for each agent what all agents of its environment see and do, itself first, and which agent it is.

    Args:
        observation: [B A, D], the rows of an environment's agents one after another.
        action: [B A, K].
        agents: A.

    Returns:
        [B A, A (D + K) + A]: observation and action of the agents i, i + 1, ... (modulo A) in the row of agent i, and
        the agent one-hot.
    """
    each = torch.cat((observation, action), 1).view(-1, agents, observation.shape[1] + action.shape[1])
    numbers = torch.arange(agents, device=observation.device)
    order = (numbers.unsqueeze(1) + numbers) % agents
    own = torch.eye(agents, device=observation.device).repeat(len(each), 1)
    return torch.cat((each[:, order].flatten(2).flatten(0, 1), own), 1)


class MADDPG(DDPG):
    """DDPG in which a critic sees what all agents see and do, and the actors see only what their agent sees.

        y_i         = R_i + discount min_c Q_target_c,i(s', pi_target(o'_1), ..., pi_target(o'_A))
        critic loss = sum over critics of mean(weight (Q_c,i(s, a_1, ..., a_A) - y_i)^2)
        actor loss  = -mean(Q_1,i(s, a_1, ..., pi(o_i), ..., a_A))

    Means are taken over steps and agents i; terms of absent agents are 0, as their weight is. Where an agent j is
    absent, o_j and a_j are 0 in the critics, before and after the step. All agents share one actor and one critic,
    which sees which agent it judges. Each agent may have a separate reward, so teams may be
    cooperative, competitive or mixed. The actions of the other agents in the actor's loss are the replayed ones, as in
    equation 5 of the paper.

    If actions are discrete, they are one-hot in the critics, pi_target takes the most likely one, and agents explore by
    sampling. The actor's loss propagates through a sample by the straight-through Gumbel-softmax estimator, and has the
    term logit_penalty mean(logits^2) over valid choices, as in the authors' implementation.

    Attributes:
        trains_teams: It needs an environment with several agents.
    """

    settings_type: ClassVar[type[DDPGHyperparameters]] = MADDPGHyperparameters
    action_kinds = frozenset({"continuous", "discrete"})
    trains_teams = True

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        hyperparameters: Mapping[str, object],
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """Creates new networks; see Algorithm."""
        self._agents = observation_space.lanes
        everywhere = torch.ones(1, 1, dtype=torch.bool, device=device)
        self._present = Present(everywhere, everywhere)
        super().__init__(observation_space, action_space, hyperparameters, seed, device)

    def _build_networks(self, generator: torch.Generator) -> dict[str, Trainable]:
        if self.network.torso != NO_TORSO:
            raise InvalidArgument(
                f"algorithm {self.hyperparameters.algorithm!r} needs observations that are vectors, because its critic "
                f"receives those of all agents side by side; torso is {self.network.torso!r}",
                reason=UNSUITABLE_SPACE,
            )
        return super()._build_networks(generator)

    def _critic_size(self) -> int:
        return self._agents * (self._inputs + output_count(self._action_space) + 1)

    @property
    def _chooses(self) -> bool:
        return self._action_space.kind == "discrete"

    def _noise(self, updates: int, generator: torch.Generator) -> Tensor:
        if not self._chooses:
            return super()._noise(updates, generator)
        rows = self.hyperparameters.batch_size * self._agents
        return gumbel_noise((updates, rows, self._action_space.n), generator)

    def _critic_inputs(self, observation: Tensor, action: Tensor) -> Tensor:
        return joint_actions(observation, action, self._agents)

    def _logits(self, outputs: Tensor, observation: Tensor) -> Tensor:
        """Returns the outputs of an actor with those of invalid choices replaced: [B, n]."""
        return self.policy.mask.apply(outputs, observation) if self.policy.mask else outputs

    def _next_action(self, next_observation: Tensor, noise: Tensor) -> Tensor:
        if not self._chooses:
            return super()._next_action(next_observation, noise) * self._present.next
        logits = self._logits(self._trained["actor"].target.forward(next_observation), next_observation)
        return chosen(logits) * self._present.next

    def _actor_step(self, observation: Tensor, inputs: Tensor, noise: Tensor) -> Tensor:
        """Updates the actor; see DDPG. For discrete actions, `noise` is standard Gumbel noise [B, n]."""
        if not self._chooses:
            return super()._actor_step(observation, inputs, noise)
        settings, actor = self.hyperparameters, self._trained["actor"]
        trace = actor.network.trace(observation)
        logits = self._logits(trace[-1], observation)
        action, soft = straight_through(logits, noise, settings.softmax_temperature)
        inputs[:, self._own_action] = action
        critic_trace = self._first_critic.trace(inputs)
        slope = self._actor_slope(critic_trace[-1])
        action_gradient = self._first_critic.input_gradient(slope, critic_trace, self._own_action)
        gradient = straight_through_backward(action_gradient, soft, settings.softmax_temperature)
        valid = trace[-1] * self._present.now
        valid = valid if self.policy.mask is None else valid * self.policy.mask.valid(observation)
        # d mean(logits^2) / d logit = 2 logit / (B n)
        gradient = torch.add(gradient, valid, alpha=2.0 * settings.logit_penalty / valid.numel())
        actor.network.backward(gradient, trace, actor.gradient)
        loss = settings.logit_penalty * valid.square().mean() + (slope * critic_trace[-1]).sum()
        return torch.stack((loss, actor.optimizer.step()))

    def _actor_slope(self, values: Tensor) -> Tensor:
        return super()._actor_slope(values) * self._present.now

    def _gradient_step(self, batch: TransitionBatch, noise: Tensor) -> tuple[Tensor, Tensor]:
        if self._chooses:
            batch = batch._replace(action=one_hot(batch.action, self._action_space.n).float())
        batch, self._present = without_absent(batch)
        if self.hyperparameters.shared_reward:
            batch = team_outcomes(batch, self._agents)
        metrics, errors = super()._gradient_step(batch, noise)
        # An absent agent has the largest error of its step. With one near 0, it would rarely be drawn, and its large
        # weight would then outweigh all other rows of its batch.
        present = (errors * (batch.weight > 0)).view(-1, self._agents)
        return metrics, torch.where(batch.weight > 0, errors, present.amax(1).repeat_interleave(self._agents))

    def update(self, experience: ReplayBuffer) -> dict[str, float]:
        """Makes the gradient steps that the newest segment allows; see Algorithm.update."""
        replay: Any = TeamReplay(experience, self._agents)
        return super().update(replay)

    def capture(self, record: Record | None = None) -> str:
        """See Capturable.capture."""
        return "steps of teams are sampled from the replay memory outside of graphs"
