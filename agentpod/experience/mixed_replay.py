"""Samples batches from two memories: the agent's own replay memory, and steps of other agents."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from agentpod.experience.foreign_memory import ForeignMemory
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.transitions import TransitionBatch

ROUNDING = 1e-9
"""Above the rounding error of the product of a batch size and a share, and below any fraction of a row that counts."""


def own_rows(batch_size: int, own_share: float) -> int:
    """Returns how many rows of a batch are the agent's own: the share, rounded up to whole rows."""
    return math.ceil(batch_size * own_share - ROUNDING)


class MixedReplay:
    """A replay memory for agentpod.algorithms.off_policy whose batches also have steps of other agents.

    While there are no steps of others, batches are those of the agent's own memory. Otherwise the first rows of a batch
    are the agent's own, and the others have weight 1. Everything else is that of the own memory, in particular the
    number of received steps, which determines the number of gradient steps.

    Attributes:
        segment_steps: Environment steps of a segment of the own memory.
        steps: Environment steps that the own memory has received so far.
    """

    def __init__(self, own: ReplayBuffer, foreign: ForeignMemory, own_share: float) -> None:
        """Creates the memory.

        Args:
            own: Replay memory of the agent.
            foreign: Steps of other agents.
            own_share: Share of a batch that is sampled from `own`, from 0 to 1.
        """
        self._own, self._foreign, self._own_share = own, foreign, own_share
        self.segment_steps, self.steps = own.segment_steps, own.steps
        self._own_rows = 0
        foreign.take_over()

    def newest_observations(self) -> Tensor:
        """See ReplayBuffer.newest_observations."""
        return self._own.newest_observations()

    def sample_many(
        self, updates: int, batch_size: int, n_step: int, discount: float, generator: torch.Generator, **options: float
    ) -> Iterator[TransitionBatch]:
        """Samples `updates` batches; see ReplayBuffer.sample_many."""
        self._own_rows = own_rows(batch_size, self._own_share) if self._foreign.replay.size else batch_size
        others = batch_size - self._own_rows
        own = self._own.sample_many(updates, self._own_rows, n_step, discount, generator, **options)
        if not others:
            yield from own
            return
        foreign = self._foreign.replay.sample_many(updates, others, n_step, discount, generator)
        for first, second in zip(own, foreign, strict=True):
            yield TransitionBatch(*(torch.cat(pair) for pair in zip(first, second, strict=True)))

    def update_priorities(self, index: Tensor, absolute_td_error: Tensor) -> None:
        """Sets the priorities of the agent's own steps of the last batch; see ReplayBuffer.update_priorities."""
        self._own.update_priorities(index[: self._own_rows], absolute_td_error[: self._own_rows])
