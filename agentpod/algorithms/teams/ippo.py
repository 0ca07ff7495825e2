"""Implements independent PPO (de Witt et al. 2020, arXiv 2011.09533) with one policy and one critic for all agents."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from agentpod.algorithms.ppo import PPO, PPOHyperparameters
from agentpod.algorithms.teams.presence import absences, team_rewards
from agentpod.experience.rollout import Rollout
from agentpod.experience.rollout_batch import RolloutBatch
from podrace.errors import InvalidArgument
from simulators.base import Space


@dataclass(frozen=True)
class IPPOHyperparameters(PPOHyperparameters):
    """Hyperparameters of IPPO: those of PPO, and what an agent is rewarded for."""

    algorithm = "ippo"

    shared_reward: bool = False
    """Whether each agent is rewarded with the sum of the rewards of all agents of its environment."""


class IPPO(PPO):
    """Treats each agent of a team as PPO treats its environment; see PPO.

    Steps in which an agent was absent are not trained on. The return of an agent that leaves early ends there.

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

    def _update_statistics(self, observation: Tensor) -> None:
        # As one lane, because the statistics do not depend on the order of the samples.
        super()._update_statistics(observation[~self._absent].unsqueeze(0) if self._absent.any() else observation)

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
