"""Implements independent PPO (de Witt et al. 2020, arXiv 2011.09533), with shared or separate parameters."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from agentpod.algorithms.ppo import PPO, PPOHyperparameters
from agentpod.algorithms.teams.presence import absences, team_rewards
from agentpod.capture.graph_replay import Record
from agentpod.experience.rollout import Rollout
from agentpod.experience.rollout_batch import RolloutBatch
from agentpod.models.normalizer import RunningMoments
from agentpod.models.policy import NetworkSpec
from podrace.errors import InvalidArgument
from simulators.base import Space


@dataclass(frozen=True)
class IPPOHyperparameters(PPOHyperparameters):
    """Hyperparameters of IPPO: those of PPO, what an agent is rewarded for, and what agents share."""

    algorithm = "ippo"

    shared_reward: bool = False
    """Whether each agent is rewarded with the sum of the rewards of all agents of its environment."""
    share_parameters: bool = True
    """Whether all agents have one policy and one critic; otherwise each agent has its own."""

    @property
    def network(self) -> NetworkSpec:
        """Structure of the policy."""
        return replace(super().network, share_parameters=self.share_parameters)


class IPPO(PPO):
    """Treats each agent of a team as PPO treats its environment; see PPO.

    Steps in which an agent was absent are not trained on. The return of an agent that leaves early ends there.

    With separate parameters, agent i has the policy pi_i, the critic V_i and statistics of its own observations. The
    loss is still the mean over the steps of all agents, so the gradient of a shared network is the sum of those of
    separate networks with the same weights.

    Attributes:
        trains_teams: It needs an environment with several agents.
    """

    settings_type = IPPOHyperparameters
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
        super().__init__(observation_space, action_space, hyperparameters, seed, device)
        self._left = torch.zeros(0, dtype=torch.bool, device=device)
        self._absent = self._left.unsqueeze(0)

    def update(self, experience: Rollout) -> dict[str, float]:
        """Minimizes the loss over one rollout; see Algorithm.update."""
        done = experience["terminated"] | experience["truncated"]
        before = self._left if len(self._left) == done.shape[1] else torch.zeros_like(done[0])
        self._absent, left = absences(done, before, self._agents)
        if self.hyperparameters.shared_reward:
            experience = {**experience, "reward": team_rewards(experience["reward"], self._agents)}
        metrics = super().update(experience)
        self._left = left
        return metrics

    def _present(self) -> Tensor | None:
        return ~self._absent if self._absent.any() else None

    def _prepare(self, rollout: Rollout, reward: Tensor) -> RolloutBatch:
        batch = super()._prepare(rollout, reward)
        if not self._absent.any():
            return batch
        if batch.recurrent_states is not None:
            raise InvalidArgument(
                "hyperparameter recurrent_size: agents leave this environment before it ends, which recurrent policies "
                "of teams do not support; set it to 0"
            )
        return batch.rows((~self._absent).flatten().nonzero().squeeze(1))

    def _minibatches(self, batch: RolloutBatch, order: Tensor) -> Iterator[RolloutBatch]:
        # Learners that share gradients average them once for each minibatch, and agents leave them at different times.
        steps = self._absent.numel() if self._optimizer.reduce else 0
        return batch.minibatches(order, self.hyperparameters.minibatch_size, steps)

    def _step(self, minibatch: RolloutBatch) -> Tensor:
        """Makes one optimizer step; see OnPolicy. The gradient of an empty minibatch is 0."""
        if len(minibatch.value):
            return super()._step(minibatch)
        self._networks.gradient.zero_()
        metrics = torch.zeros(len(self.METRICS), device=self._device)
        metrics[self.METRICS.index("gradient_norm")] = self._optimizer.step()
        return metrics

    def _final_critic_inputs(self, rollout: Rollout) -> Tensor:
        if not self.policy.agents:
            return super()._final_critic_inputs(rollout)
        # Statistics and agents of rows follow from their order, so that all rows are normalized.
        final = self.policy.normalize(rollout["final_observation"].flatten(0, 1))
        return final[rollout["truncated"].flatten()]

    def _update_statistics(self, observation: Tensor) -> None:
        if self.policy.agents:
            self._update_each(observation)
            return
        # As one lane, because the statistics do not depend on the order of the samples.
        super()._update_statistics(observation[~self._absent].unsqueeze(0) if self._absent.any() else observation)

    def _update_each(self, observation: Tensor) -> None:
        """Adds observations [T, N A, *shape] to the statistics of each agent, of steps in which all are present."""
        if not self.policy.normalizes:
            return
        teams = observation.reshape(-1, self._agents, math.prod(observation.shape[2:]))
        present = ~self._absent.reshape(-1, self._agents).any(1)
        if present.any():
            self._observations.add(RunningMoments.of(teams[present]))
            self._refresh_normalizer()

    def capture(self, record: Record | None = None) -> str:
        """See Capturable.capture."""
        if self.policy.agents:
            return "with share_parameters = false, rows are grouped by agent outside of graphs"
        return super().capture(record)

    def state_dict(self) -> dict[str, Tensor]:
        """Adds which agents have left; see Algorithm.state_dict."""
        return {**super().state_dict(), "left": self._left.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See Algorithm.load_state_dict."""
        super().load_state_dict(state)
        self._left = state["left"].to(self._device, copy=True)

    def begin_episodes(self) -> None:
        """See Algorithm.begin_episodes: all agents are present again."""
        super().begin_episodes()
        self._left = self._left.new_zeros(0)
