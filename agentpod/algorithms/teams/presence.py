"""Computes which steps of a team were taken by agents that are present, and what the team received."""

from typing import NamedTuple

import torch
from torch import Tensor

from agentpod.experience.transitions import TransitionBatch


def absences(done: Tensor, carry: Tensor, agents: int) -> tuple[Tensor, Tensor]:
    """Finds the steps of agents that had left their environment before it ended.

    An agent leaves where its lane ends and the lanes of its environment do not all end. It is absent in the steps that
    follow, up to the one that ends the environment.

    Args:
        done: [T, N A] bool, terminated or truncated.
        carry: [N A] bool, the carry that the previous rollout returned; all False for the first.
        agents: A.

    Returns:
        Whether the agent was absent: [T, N A] bool; and the carry for the next rollout: [N A].
    """
    ended = done.reshape(len(done), -1, agents).all(-1).repeat_interleave(agents, 1)
    left = done & ~ended
    return torch.cat((carry.unsqueeze(0), left[:-1])), left[-1].clone()


def absent_rows(ended: Tensor, agents: int) -> Tensor:
    """Finds the rows of agents that had left their environment; see `absences`.

    Args:
        ended: [B A] bool, whether the lanes of B steps of environments ended with the step before.
        agents: A.

    Returns:
        [B A] bool.
    """
    teams = ended.view(-1, agents)
    return (teams & ~teams.all(1, keepdim=True)).flatten()


def team_rewards(reward: Tensor, agents: int) -> Tensor:
    """Gives each agent the sum of the rewards of its environment's agents: [T, N A] -> [T, N A]."""
    return reward.reshape(len(reward), -1, agents).sum(-1).repeat_interleave(agents, 1)


class Present(NamedTuple):
    """Which rows of a batch are of agents that are in their environment, [B A, 1] bool each."""

    now: Tensor
    """In the sampled step."""
    next: Tensor
    """In the step that the batch bootstraps from."""


def without_absent(batch: TransitionBatch) -> tuple[TransitionBatch, Present]:
    """Sets what absent agents see, do and receive to 0, so that nothing depends on what was recorded for them.

    An agent whose last step terminated is absent in the step to bootstrap from.

    Args:
        batch: B steps of environments, B A rows, with vectors as observations and actions. Rows of absent agents have
            the weight 0.
    """
    now = batch.weight > 0
    following = now & (batch.discount > 0)
    present = Present(now.unsqueeze(1), following.unsqueeze(1))
    # `where`, because a product with 0 would keep numbers that are not finite.
    return batch._replace(
        observation=torch.where(present.now, batch.observation, 0.0),
        action=torch.where(present.now, batch.action, 0.0),
        reward=torch.where(now, batch.reward, 0.0),
        discount=torch.where(now, batch.discount, 0.0),
        next_observation=torch.where(present.next, batch.next_observation, 0.0),
    ), present


def team_outcomes(batch: TransitionBatch, agents: int) -> TransitionBatch:
    """Gives each agent of a sampled step the sum of its environment's rewards, while any of its agents is present.

    Args:
        batch: B steps of environments, B A rows.
        agents: A.
    """
    reward, discount = (field.view(-1, agents) for field in (batch.reward, batch.discount))
    return batch._replace(
        reward=reward.sum(1).repeat_interleave(agents), discount=discount.amax(1).repeat_interleave(agents)
    )
