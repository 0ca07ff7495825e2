"""Implements value decomposition networks (VDN; Sunehag et al. 2018, arXiv 1706.05296).

The value of a joint action is the sum of the values that the agents give to their own actions. The loss is
differentiated automatically.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from agentpod.algorithms.autograd.replay import ReplayAlgorithm
from agentpod.algorithms.autograd.settings import ReplaySettings
from agentpod.algorithms.base import linear_schedule
from agentpod.algorithms.teams.team_replay import TeamReplay, TeamSequenceReplay
from agentpod.capture.graph_replay import Record
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.sequence_batch import SequenceBatch
from agentpod.experience.transitions import TransitionBatch
from agentpod.models.policy import NetworkSpec
from podrace.errors import InvalidArgument
from podrace.specification.declaration import hyperparameter
from simulators.base import Space


@dataclass(frozen=True)
class VDNHyperparameters(ReplaySettings):
    """What a specification can set. Steps are those of environments, except for the capacity of the replay memory."""

    algorithm = "vdn"

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of each hidden layer."""
    horizon: int = 8
    """Steps of each environment between two policy versions."""
    learning_rate: float = 5e-4
    """Step size of Adam."""
    batch_size: int = 64
    """Replayed environment steps per gradient step."""
    replay_capacity: int = 300_000
    """Steps of agents in the replay memory: environment steps times the number of agents."""
    updates_per_step: float = 0.1
    """Gradient steps per environment step, over all environments."""
    target_rate: float = 0.01
    """Tau: fraction of the way that the target networks move towards the networks (Polyak averaging)."""
    maximum_gradient_norm: float = 10.0
    """Gradients with a larger norm are scaled down to it; 0 = no clipping."""
    initial_exploration: float = 1.0
    """Initial epsilon: fraction of steps with a random choice."""
    final_exploration: float = 0.05
    """Final epsilon."""
    exploration_steps: int = 50_000
    """Environment steps over which epsilon decreases linearly."""
    recurrent_size: int = hyperparameter(
        0, "width of the recurrent layer (GRU); 0: no recurrence", low=0, high=1e5, structural=True
    )
    """Size of the GRU between hidden layers and values; 0 = no recurrence. With it, `batch_size` steps are sampled as
    sequences."""
    sequence_length: int = hyperparameter(
        8, "with recurrent_size: steps of each sampled sequence that are trained on", low=1, high=10_000
    )
    """Steps of a sampled sequence that are trained on; only with recurrent_size."""
    burn_in: int = hyperparameter(
        8, "with recurrent_size: steps before a sampled sequence that bring the state up to date", low=0, high=10_000
    )
    """Steps before a sampled sequence from which the recurrent state is computed; only with recurrent_size."""

    def __post_init__(self) -> None:
        """Validates the values; see Settings."""
        super().__post_init__()
        if self.recurrent_size:
            for name, wrong in (("prioritized", self.prioritized), ("n_step", self.n_step > 1)):
                if wrong:
                    raise InvalidArgument(
                        f"hyperparameter {name} = {getattr(self, name)}: recurrent networks learn from sequences, "
                        "which are sampled uniformly and have one-step targets; leave it out or set recurrent_size = 0"
                    )

    @property
    def network(self) -> NetworkSpec:
        """Structure of the policy."""
        return replace(super().network, recurrent_size=self.recurrent_size)


class VDN(ReplayAlgorithm):
    """Learns action values of a team; see agentpod.algorithms.base.Algorithm for the loop.

        Q(s, a) = sum over agents i of Q_i(o_i, a_i)
        y       = sum over agents of R_i + discount Q_target(s', a*),  a*_i = argmax Q_i(o'_i, .)
        loss    = mean(weight (Q(s, a) - y)^2)

    Q_i is 0 where the action mask of an agent allows no action, and where the agent has left. All agents share one
    network for Q_i, which may be recurrent: it is then unrolled over sequences of steps. Next actions are selected by
    the network and valued by its target (van Hasselt et al. 2016), as in the published implementation.

    Attributes:
        trains_teams: It needs an environment with several agents.
    """

    settings_type = VDNHyperparameters
    action_kinds = frozenset({"discrete"})
    targets = True
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
        super().__init__(observation_space, action_space, hyperparameters, seed, device)
        self._recurrent_size = self.hyperparameters.recurrent_size
        if self._recurrent_size:
            self._batch_type = SequenceBatch

    def mix(self, values: Tensor, state: Tensor, *, target: bool = False) -> Tensor:
        """Returns the value of the joint action.

        Args:
            values: Those that the agents give to their own actions, [B, A].
            state: The observations of all agents, [B, A D].
            target: Whether to use target networks.

        Returns:
            [B].
        """
        return values.sum(1)

    def _values(self, batch: TransitionBatch | SequenceBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the values [B A, n] of an agent's actions in each step, and in the next by network and target."""
        networks, following = self._trained_networks, batch.next_observation
        if isinstance(batch, SequenceBatch):
            sequences = batch.sequences(self._recurrent_size)
            now = networks.actor(batch.observation, sequences)
            selecting, valuing = (
                networks.continued(batch.observation, following, sequences, target=target) for target in (False, True)
            )
            return now, selecting, valuing
        now = self.actor(batch.observation)
        with torch.no_grad():
            return now, self.actor(following), self.target_actor(following)

    def loss(self, batch: TransitionBatch | SequenceBatch) -> tuple[Tensor, Tensor]:
        """Returns the loss [] and the errors [B A], those of a step once for each agent.

        Args:
            batch: B steps of environments, B A rows; with recurrence, those of all sequences. Rows of absent agents
                have the weight 0.
        """
        steps = -1, self._agents
        state = self._state(batch.observation, batch.weight > 0)
        # What is recorded after the last step of an agent may be the beginning of the next episode.
        next_state = self._state(batch.next_observation, batch.discount > 0)
        now, selecting, valuing = self._values(batch)
        weight, discounts = batch.weight.view(steps), batch.discount.view(steps)
        chosen = self._own_values(batch.observation, now, batch.action).view(steps) * (weight > 0)
        with torch.no_grad():
            following = self._own_values(batch.next_observation, valuing, selecting.argmax(-1)).view(steps)
            # The environment continues while any agent is present.
            following, discount = following * (discounts > 0), discounts.amax(1)
            target = batch.reward.view(steps).sum(1) + discount * self.mix(following, next_state, target=True)
        error = self.mix(chosen, state) - target
        return (weight.amax(1) * error.square()).mean(), error.detach().repeat_interleave(self._agents)

    def _state(self, observation: Tensor, present: Tensor) -> Tensor:
        """Returns the observations of all agents side by side, with zeros for absent ones: [B A, D] -> [B, A D].

        Args:
            observation: [B A, ...].
            present: Which agents are in their environment: [B A] bool.
        """
        # `where`, because a product with 0 would keep numbers that are not finite.
        seen = torch.where(present.unsqueeze(1), observation.flatten(1), 0.0)
        return seen.reshape(-1, self._agents * self.observation_size)

    def _own_values(self, observation: Tensor, values: Tensor, action: Tensor) -> Tensor:
        """Returns the value of each agent's action [B A]; 0 where its mask allows none.

        Args:
            observation: [B A, D].
            values: Of all actions, [B A, choices], where those of invalid ones are replaced by MASKED.
            action: [B A].
        """
        value = values.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        mask = self.policy.mask
        return value * mask.valid(observation).any(-1) if mask else value

    def update(self, experience: ReplayBuffer) -> dict[str, float]:
        """Makes the gradient steps that the newest segment allows; see Algorithm.update."""
        settings, replay = self.hyperparameters, TeamReplay(experience, self._agents)
        if self._recurrent_size:
            replay = TeamSequenceReplay(experience, self._agents, settings.sequence_length, settings.burn_in)
        return super().update(cast(Any, replay))

    def exploration(self) -> float:
        """Returns the present exploration rate."""
        settings = self.hyperparameters
        progress = self.environment_steps / settings.exploration_steps
        return linear_schedule(settings.initial_exploration, settings.final_exploration, progress)

    def capture(self, record: Record | None = None) -> str:
        """See Capturable.capture."""
        return "its loss is differentiated automatically"
