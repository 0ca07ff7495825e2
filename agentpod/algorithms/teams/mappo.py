"""Implements multi-agent PPO (MAPPO; Yu et al. 2022, arXiv 2103.01955): PPO with a critic that sees all agents."""

from dataclasses import dataclass

import torch
from torch import Tensor

from agentpod.algorithms.teams.ippo import IPPO, IPPOHyperparameters
from agentpod.experience.rollout import Rollout
from agentpod.models.cnn import NO_TORSO
from podrace.errors import UNSUITABLE_SPACE, InvalidArgument
from simulators.base import Space


@dataclass(frozen=True)
class MAPPOHyperparameters(IPPOHyperparameters):
    """Hyperparameters of MAPPO: those of IPPO, with the reward of the whole team."""

    algorithm = "mappo"

    shared_reward: bool = True
    """Whether each agent is rewarded with the sum of the rewards of all agents of its environment."""


def joint_space(observation_space: Space) -> Space:
    """Returns the space of what a centralized critic receives; see `joint_observations`."""
    agents = observation_space.lanes
    width = agents * (observation_space.shape[0] + 1)
    return Space("continuous", (width,), torch.float32, agents=observation_space.agents)


def joint_observations(observation: Tensor, agents: int) -> Tensor:
    """Computes for each agent the observations of all agents of its environment, and which agent it is.

    Args:
        observation: [B A, D], the rows of an environment's agents one after another.
        agents: A.

    Returns:
        [B A, A D + A]: the A observations in the order of the agents, and the agent one-hot.
    """
    joint = observation.reshape(-1, agents * observation.shape[1]).repeat_interleave(agents, 0)
    own = torch.eye(agents, device=observation.device).repeat(len(joint) // agents, 1)
    return torch.cat((joint, own), 1)


class MAPPO(IPPO):
    """Trains decentralized policies with a centralized critic; see IPPO."""

    settings_type = MAPPOHyperparameters

    def _critic_space(self, observation_space: Space) -> Space:
        if self.network.torso != NO_TORSO or len(observation_space.shape) != 1:
            raise InvalidArgument(
                "algorithm 'mappo' needs observations that are vectors, because its critic receives those of all "
                f"agents side by side; they have the shape {list(observation_space.shape)}, and torso is "
                f"{self.network.torso!r}",
                reason=UNSUITABLE_SPACE,
            )
        return joint_space(observation_space)

    def _critic_inputs(self, observation: Tensor) -> Tensor:
        if not self.policy.agents:
            return joint_observations(observation, self._agents)
        # Rows end with the number of their agent, as separate networks need it.
        return torch.cat((joint_observations(observation[:, :-1], self._agents), observation[:, -1:]), 1)

    def _final_critic_inputs(self, rollout: Rollout) -> Tensor:
        final = rollout["final_observation"]
        shape = len(final), -1, self._agents
        truncated = rollout["truncated"].reshape(shape)
        ended = truncated.any(-1)
        cut = truncated[ended]
        # Agents that were not truncated have no final observation: they had left.
        last = final.reshape(*shape, final.shape[-1])[ended]
        rows = torch.where(cut.unsqueeze(-1), last, 0).flatten(0, 1)
        return self._critic_inputs(self.policy.normalize(rows))[cut.flatten()]
