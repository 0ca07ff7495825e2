"""Samples whole environments from a replay memory whose lanes are the agents of environments."""

from collections.abc import Iterator

import torch
from torch import Tensor

from agentpod.algorithms.teams.presence import absent_rows
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.sequence_batch import SequenceBatch, sample_sequences
from agentpod.experience.transitions import TransitionBatch


class TeamReplay:
    """A replay memory in which steps are those of environments, and a sampled step has a row for each agent.

    A batch of B steps has B A rows: those of the A agents of an environment one after another. Windows of n steps are
    the same for all agents of an environment, except for agents that left: what follows for them is absence. Rows of
    absent agents have the weight 0.

    Attributes:
        segment_steps: Environment steps of a segment.
        steps: Environment steps received so far.
    """

    def __init__(self, replay: ReplayBuffer, agents: int) -> None:
        """Reads `replay`, whose lanes are those of environments of so many agents."""
        self._replay, self._agents = replay, agents
        self.segment_steps, self.steps = replay.segment_steps // agents, replay.steps // agents

    def newest_observations(self) -> Tensor:
        """Returns the observations of the newest segment without those of absent agents, [rows, *shape]."""
        end = (self._replay.newest_row + 1) * self._replay.count
        index = torch.arange(end - self._replay.segment_steps, end, device=self._replay.device)
        absent = absent_rows(self._replay.ended_before(index), self._agents)
        return self._replay.newest_observations()[~absent]

    def sample(
        self, batch_size: int, n_step: int, discount: float, generator: torch.Generator, *, beta: float = 1.0
    ) -> TransitionBatch:
        """Samples `batch_size` steps of environments; see ReplayBuffer.sample."""
        # Every environment has equally many lanes, so a uniform lane is one of a uniform environment.
        drawn = self._replay.sample(batch_size, 1, discount, generator, beta=beta)
        first = drawn.index - drawn.index % self._agents
        index = (first.unsqueeze(1) + torch.arange(self._agents, device=first.device)).flatten()
        absent = absent_rows(self._replay.ended_before(index), self._agents)
        weight = drawn.weight.repeat_interleave(self._agents) * ~absent
        return self._replay.gather(index, n_step, discount)._replace(weight=weight)

    def sample_many(
        self,
        updates: int,
        batch_size: int,
        n_step: int,
        discount: float,
        generator: torch.Generator,
        *,
        beta: float = 1.0,
    ) -> Iterator[TransitionBatch | SequenceBatch]:
        """Samples `updates` batches, each when it is requested; see `sample`."""
        for _ in range(updates):
            yield self.sample(batch_size, n_step, discount, generator, beta=beta)

    def update_priorities(self, index: Tensor, absolute_td_error: Tensor) -> None:
        """See ReplayBuffer.update_priorities; both arguments have a row for each agent."""
        self._replay.update_priorities(index, absolute_td_error)


class TeamSequenceReplay(TeamReplay):
    """A TeamReplay that samples sequences of steps, for recurrent networks; see agentpod.experience.sequence_batch."""

    def __init__(self, replay: ReplayBuffer, agents: int, length: int, burn_in: int) -> None:
        """Reads `replay`; the other arguments are those of `sample_sequences`."""
        super().__init__(replay, agents)
        self._length, self._burn_in = length, burn_in

    def sample_many(
        self,
        updates: int,
        batch_size: int,
        n_step: int,
        discount: float,
        generator: torch.Generator,
        *,
        beta: float = 1.0,
    ) -> Iterator[TransitionBatch | SequenceBatch]:
        """Samples `updates` batches of as many sequences as have `batch_size` steps; `n_step` is 1."""
        count = max(1, batch_size // self._length)
        arguments = self._replay, count, self._agents, self._length, self._burn_in, discount, generator
        for _ in range(updates):
            yield sample_sequences(*arguments)
