"""Samples sequences of consecutive steps from a replay memory, for recurrent networks.

A sequence begins with a recurrent state of 0, whatever preceded it. Its first steps, the *burn-in*, bring the state up
to date and have no term in the loss. In Kapturowski et al. 2019, "Recurrent experience replay in distributed
reinforcement learning", section 3, they only produce a start state. Here the gradient of the later steps' loss is also
propagated through them, so the network learns what to remember from them. Steps after the beginning of an episode count
at once, because the state is exact there.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.models.mlp import Sequences


class SequenceBatch(NamedTuple):
    """T steps of B environments of A agents. Fields are [T R, ...] with R = B A lanes: row t R + r is step t of lane r.

    The fields are those of agentpod.experience.transitions.TransitionBatch for single steps, and one more.
    """

    observation: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_observation: Tensor
    weight: Tensor
    """[T R] float32: 0 in steps that do not count, with mean 1; then 0 in rows of absent agents."""
    index: Tensor  # type: ignore[assignment] # shadows tuple.index, which is not used
    keep: Tensor
    """[T, R, 1], see agentpod.models.mlp.Sequences."""

    def sequences(self, state_size: int) -> Sequences:
        """Returns how the rows follow each other, from states of 0."""
        return Sequences(self.keep, self.keep.new_zeros(self.keep.shape[1], state_size))


def sample_sequences(
    replay: ReplayBuffer,
    count: int,
    agents: int,
    length: int,
    burn_in: int,
    discount: float,
    generator: torch.Generator,
) -> SequenceBatch:
    """Samples sequences of environments uniformly.

    Args:
        replay: Its lanes are those of environments of `agents` agents.
        count: B, number of sequences.
        agents: A.
        length: Steps of a sequence after the burn-in; fewer while the memory is shorter.
        burn_in: Steps of the burn-in.
        discount: Gamma, per step.
        generator: On the device of `replay`.
    """
    lanes, rows = replay.count, replay.size // replay.count
    steps = min(burn_in + length, rows)
    first_row = torch.randint(rows - steps + 1, (count, 1), generator=generator, device=replay.device)
    place = torch.randint(lanes // agents, (count, 1), generator=generator, device=replay.device)
    lane = (place * agents + torch.arange(agents, device=replay.device)).flatten()
    row = (first_row + torch.zeros_like(lane).view(count, agents)).flatten()
    age = (row + torch.arange(steps, device=replay.device).unsqueeze(1)) * lanes + lane
    batch = replay.gather(replay.index_of(age.flatten()), 1, discount)
    # The step before the first one, where there is one, says whether an episode begins with the first.
    before = torch.cat(((age[:1] - lanes).clamp(min=0), age[:-1]))
    ended = replay.ended(replay.index_of(before.flatten())).view(steps, -1)
    ended[0] &= row > 0
    begins = ended.view(steps, count, agents).all(-1).repeat_interleave(agents, 1)
    counted = begins.cumsum(0) > 0
    counted[min(burn_in, steps - 1) :] = True
    weight = counted.float()
    # An agent is absent while its lane ends with every step and those of its environment do not.
    weight = weight / weight.mean() * (begins | ~ended)
    return SequenceBatch(*batch._replace(weight=weight.flatten()), keep=(~ended).float().unsqueeze(-1))
