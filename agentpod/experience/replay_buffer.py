"""Implements the replay buffer: a ring of steps that workers fill segment by segment, and batches sampled from it.

Workers write into the buffer in place, and access passes by messages as in agentpod.experience.slots. A segment of T
rows is FILLING from `grant` to `receive`, and READY from then until it is granted again. Segments are numbered in the
order in which they were received, from 0. Invariants:

1. READY rows are contiguous in the ring and end directly before the FILLING ones. A step is therefore identified by its
   age, counted from the oldest READY step.
2. FILLING rows are never sampled, and no n-step window extends into one.
3. A READY segment does not change, except that the last row of the newest one may be marked as truncated. Another
   thread may therefore copy READY segments while the training continues: `read` drops what was granted meanwhile.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from agentpod.experience.prioritized_sampling import FIRST_PRIORITY, PriorityTree, importance_weights
from agentpod.experience.replay_layout import drop_oldest, pack, unpack
from agentpod.experience.transitions import Filling, TransitionBatch, Transitions
from podrace.errors import FailedPrecondition, InvalidArgument, ResourceExhausted

MAXIMUM_GRANTS = 2
"""Maximum segments that are FILLING at the same time."""
GATHER_BYTES = 4 * 2**20
"""Bytes gathered at once for several batches; gathering more does not reduce the cost per batch."""


class ReplayBuffer:
    """Stores steps in a ring of tensors with the layout of `agentpod.experience.replay_layout.replay_fields`.

        replay = ReplayBuffer(region, horizon)
        while budget_left:
            first_row = replay.grant()
            await collect({name: tensor[first_row : first_row + horizon] for name, tensor in region.items()})
            replay.receive(first_row)
            for batch in replay.sample_many(updates, 256, 3, 0.99, generator):
                learn(batch)

    Attributes:
        horizon: T, rows of a segment.
        count: N, environments.
        capacity: Environment steps of the ring, over all environments, including FILLING ones.
        segment_steps: Environment steps of a segment, over all environments.
        first_segment: Number of the oldest READY segment; all older ones were granted to be overwritten.
        end_segment: Number of the next segment to be received.
        device: Device of the sampled batches.
        prioritized: Whether steps are sampled by priority.
    """

    def __init__(
        self,
        memory: Mapping[str, Tensor],
        horizon: int,
        *,
        device: torch.device | str | None = None,
        prioritized: bool = False,
        priority_exponent: float = 0.6,
    ) -> None:
        """Starts without READY steps.

        Args:
            memory: Tensors that workers write into.
            horizon: T, rows of a segment.
            device: Where to sample; None: the device of `memory`. On another device a copy is kept, updated with every
                received segment.
            prioritized: Whether to sample steps by priority (Schaul et al. 2016) instead of uniformly.
            priority_exponent: Alpha: 0 samples uniformly, 1 in proportion to the error.

        Raises:
            InvalidArgument: The number of rows is not a multiple of `horizon`, or is less than two segments.
        """
        (self._rows, self.count), here = memory["reward"].shape, memory["reward"].device
        if self._rows % horizon or self._rows < 2 * horizon:
            raise InvalidArgument(
                f"a replay buffer of {self._rows} rows must consist of two or more segments of {horizon} rows"
            )
        self.horizon, self.segments = horizon, self._rows // horizon
        self.capacity, self.segment_steps = self._rows * self.count, horizon * self.count
        # The newest READY segment is followed by the granted ones.
        self.first_segment = self.end_segment = self._granted = 0
        wanted = torch.device(here if device is None else device)
        self.device = here if wanted.type == here.type and wanted.index is None else wanted
        self._memory = self._rings = memory
        if self.device != here:
            self._rings = {name: torch.empty_like(tensor, device=self.device) for name, tensor in memory.items()}
        self._transitions = Transitions(self._rings, self.device)
        self.prioritized = prioritized
        self._priorities = PriorityTree(self.capacity if prioritized else 0, priority_exponent, self.device)

    @property
    def steps(self) -> int:
        """Environment steps received so far, including those that were overwritten."""
        return self.end_segment * self.segment_steps

    @property
    def size(self) -> int:
        """Environment steps that can be sampled."""
        return self._ready * self.segment_steps

    @property
    def newest_row(self) -> int:
        """Row of the newest READY steps; -1 if there are none."""
        return (self.end_segment - 1) % self.segments * self.horizon + self.horizon - 1 if self.end_segment else -1

    @property
    def _ready(self) -> int:
        return self.end_segment - self.first_segment

    @property
    def _oldest(self) -> int:
        """Index of the oldest READY step."""
        return self.first_segment * self.segment_steps % self.capacity

    def grant(self) -> int:
        """Releases the next segment to be filled, which discards its steps; returns its first row.

        Raises:
            ResourceExhausted: MAXIMUM_GRANTS segments are FILLING.
        """
        if self._granted == MAXIMUM_GRANTS:
            raise ResourceExhausted(
                f"{self._granted} segments of the replay buffer are being filled: receive one first"
            )
        segment = (self.end_segment + self._granted) % self.segments
        self._granted += 1
        # Before anything is written: `read` relies on it in another thread.
        self.first_segment = max(self.first_segment, self.end_segment + self._granted - self.segments)
        if self.prioritized:
            self._priorities.exclude(segment * self.segment_steps, self.segment_steps)
        return segment * self.horizon

    def receive(self, first_row: int) -> None:
        """Takes back a filled segment, identified by its first row; from now on it is sampled.

        Raises:
            FailedPrecondition: The segment was not granted, or another one was granted before it.
        """
        segment = self.end_segment % self.segments
        if not self._granted or first_row != segment * self.horizon:
            raise FailedPrecondition(
                f"the segment at row {first_row} is not the one that the replay buffer expects next"
            )
        self.end_segment, self._granted = self.end_segment + 1, self._granted - 1
        if self._rings is not self._memory:
            rows = torch.arange(first_row, first_row + self.horizon)
            unpack(self._rings, pack(self._memory, rows, self.horizon), rows, self.horizon)
        if self.prioritized:
            self._priorities.admit(segment * self.segment_steps, self.segment_steps)

    def reclaim(self) -> None:
        """Takes back all FILLING segments without their content, because the workers reset their environments."""
        self._granted = 0
        self.mark_truncated()

    def mark_truncated(self) -> None:
        """Marks the newest steps as truncated unless they terminated: the next segment does not continue them."""
        if self._ready:
            self._rings["truncated"][self.newest_row] |= ~self._rings["terminated"][self.newest_row]

    def newest_segment(self) -> dict[str, Tensor]:
        """Returns views of the newest READY segment, [T, N, ...] each."""
        rows = slice(self.newest_row + 1 - self.horizon, self.newest_row + 1)
        return {name: ring[rows] for name, ring in self._rings.items()}

    def newest_observations(self) -> Tensor:
        """Returns the observations of the newest READY segment, [T N, *shape]."""
        return self.newest_segment()["observation"].flatten(0, 1)

    def sample(
        self, batch_size: int, n_step: int, discount: float, generator: torch.Generator, *, beta: float = 1.0
    ) -> TransitionBatch:
        """Samples READY steps with replacement, without waiting for the device.

        The window of a step ends after n steps, at the end of the episode, or with the newest READY row, whichever
        comes first. The observation to bootstrap from is final_observation if the last step of the window was truncated
        or is in the newest row, else the observation of the next row.

        Args:
            batch_size: B.
            n_step: n, rewards summed before bootstrapping from a value.
            discount: Gamma, per step.
            generator: On `device`.
            beta: Exponent of the importance weights; ignored without priorities.

        Raises:
            FailedPrecondition: There is no READY step.
        """
        return self.batch(self.draw(batch_size, generator), n_step, discount, beta=beta)

    def draw(self, batch_size: int, generator: torch.Generator) -> Tensor:
        """Draws the random numbers of a batch, [B]: without priorities ages (int64), else shares in [0, 1) (float64).

        Raises:
            FailedPrecondition: There is no READY step.
        """
        if not self._ready:
            raise FailedPrecondition("the replay buffer is empty: receive a segment first")
        if self.prioritized:
            return torch.rand(batch_size, generator=generator, device=self.device, dtype=torch.float64)
        return torch.randint(self.size, (batch_size,), generator=generator, device=self.device)

    def batch(
        self,
        draw: Tensor,
        n_step: int,
        discount: float,
        *,
        beta: float | Tensor = 1.0,
        filling: Filling | None = None,
    ) -> TransitionBatch:
        """Returns the batch that belongs to random numbers.

        Args:
            draw: From `draw`.
            n_step: As of `sample`.
            discount: As of `sample`.
            beta: As of `sample`.
            filling: What is READY, as tensors: this call can then be part of a CUDA graph. None: at this moment.
        """
        filling = filling or Filling(self._oldest, self.size)
        if not self.prioritized:
            return self._transitions.at(draw, torch.ones(len(draw), device=self.device), n_step, discount, filling)
        index, probability = self._priorities.find(draw)
        weight = importance_weights(probability, filling.size, beta)
        return self._transitions.at((index - filling.oldest) % self.capacity, weight, n_step, discount, filling)

    def filling(self) -> tuple[Tensor, Tensor]:
        """Returns the fields of a Filling as tensors on `device`, without waiting for it."""
        oldest, size = (torch.full((), number, device=self.device) for number in (self._oldest, self.size))
        return oldest, size

    def sampling_state(self) -> list[Tensor]:
        """Returns the tensors that `update_priorities` changes."""
        return self._priorities.state if self.prioritized else []

    def sample_many(
        self, updates: int, batch_size: int, n_step: int, discount: float, generator: torch.Generator, **options: float
    ) -> Iterator[TransitionBatch]:
        """Samples `updates` batches; the other arguments are those of `sample`.

        Without priorities, several batches are sampled and gathered at once and then split, so no segment may be
        granted or received before the last batch. With priorities, each batch is sampled when it is requested, with the
        priorities at that time.
        """
        step_bytes = 2 * self._rings["observation"][0, 0].nbytes + 32 * n_step
        at_once = 1 if self.prioritized else max(1, GATHER_BYTES // (batch_size * step_bytes))
        for done in range(0, updates, at_once):
            several = self.sample(min(at_once, updates - done) * batch_size, n_step, discount, generator, **options)
            yield from map(
                TransitionBatch._make, zip(*(torch.split(field, batch_size) for field in several), strict=True)
            )

    def gather(self, index: Tensor, n_step: int, discount: float) -> TransitionBatch:
        """Returns the transitions, with weights of 1, of READY steps `index` [B] int64 (see TransitionBatch.index)."""
        filling = Filling(self._oldest, self.size)
        age = (index - filling.oldest) % self.capacity
        return self._transitions.at(age, torch.ones(len(index), device=self.device), n_step, discount, filling)

    def index_of(self, age: Tensor) -> Tensor:
        """Returns the indices (see TransitionBatch.index) of steps by their age since the oldest READY one."""
        return (age + self._oldest) % self.capacity

    def ended(self, index: Tensor) -> Tensor:
        """Returns whether an episode ended with each of the steps `index` [B] int64: [B] bool."""
        terminated, truncated = (self._rings[name].view(-1)[index] for name in ("terminated", "truncated"))
        return terminated | truncated

    def ended_before(self, index: Tensor) -> Tensor:
        """Returns whether an episode ended with the step before each of the steps `index` [B]: [B] bool.

        False for the oldest READY steps, because what precedes them may be overwritten.
        """
        known = (index - self._oldest) % self.capacity >= self.count
        return self.ended((index - self.count) % self.capacity) & known

    def update_priorities(self, index: Tensor, absolute_td_error: Tensor) -> None:
        """Sets the priorities of the steps `index` [B] of a batch from their new errors [B].

        Steps that were granted for overwriting in the meantime, and errors that are not finite, are ignored.
        """
        self._priorities.update(index, absolute_td_error)

    # --- storing and restoring ---------------------------------------------------------------------------------

    def read(self, first_segment: int, end_segment: int) -> tuple[int, dict[str, Tensor]]:
        """Copies the segments from `first_segment` to before `end_segment` that are still READY, in any thread.

        Returns:
            The number of the first segment that was copied, at most `end_segment`; and the copies as
            `agentpod.experience.replay_layout.pack` returns them.
        """
        first = min(max(first_segment, self.first_segment), end_segment)
        tensors = pack(self._rings, self._rows_of(first, end_segment), self.horizon)
        # What was granted while it was copied may be torn. Segments are granted in order, so these are the first ones.
        intact = min(max(first, self.first_segment), end_segment)
        return intact, drop_oldest(tensors, (intact - first) * self.horizon, self.horizon)

    def priorities(self) -> dict[str, Tensor]:
        """Returns copies of the largest priority [] and of those of the READY segments [segments, T N], oldest first.

        Empty without priorities.
        """
        if not self.prioritized:
            return {}
        leaves, maximum = self._priorities.leaves.view(self.segments, -1), self._priorities.maximum
        slots = torch.arange(self.first_segment, self.end_segment, device=self.device) % self.segments
        return {"leaves": leaves.index_select(0, slots), "maximum": maximum.clone()}

    def start_at(self, end_segment: int, maximum_priority: Tensor | None = None) -> None:
        """Sets the number of the next segment of an empty buffer, before older segments are restored.

        Args:
            end_segment: The number.
            maximum_priority: The largest priority [] that was set so far; None: as in a new buffer.
        """
        self.first_segment = self.end_segment = end_segment
        if maximum_priority is not None:
            self._priorities.maximum.copy_(maximum_priority)

    def clear(self) -> None:
        """Empties a buffer that was being restored, so that it is as new."""
        self.first_segment = self.end_segment = 0
        if self.prioritized:
            self._priorities.exclude(0, self.capacity)
            self._priorities.maximum.fill_(FIRST_PRIORITY)

    def prepend(self, tensors: Mapping[str, Tensor], priorities: Tensor | None = None) -> None:
        """Restores segments directly before the oldest READY one.

        Args:
            tensors: As `read` returns them, at most as many segments as `room`.
            priorities: Of the segments, [segments, T N]; None: the largest so far.
        """
        end = self.first_segment
        first = end - len(tensors["reward"]) // self.horizon
        unpack(self._rings, tensors, self._rows_of(first, end), self.horizon)
        if self.prioritized:
            # In the ring, the segments are at most two blocks.
            wrap = min(end, (first // self.segments + 1) * self.segments)
            self._restore_priorities(first, wrap, priorities)
            self._restore_priorities(wrap, end, priorities if priorities is None else priorities[wrap - first :])
        self.first_segment = first

    def _restore_priorities(self, first: int, end: int, priorities: Tensor | None) -> None:
        leaf, count = first % self.segments * self.segment_steps, (end - first) * self.segment_steps
        if priorities is None:
            self._priorities.admit(leaf, count)
        else:
            self._priorities.assign(leaf, priorities[: end - first].flatten())

    @property
    def room(self) -> int:
        """How many more segments `prepend` can restore."""
        return min(self.segments - self._granted - self._ready, self.first_segment)

    @property
    def fields(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Type and shape of one step of every field."""
        return {name: (ring.dtype, tuple(ring.shape[2:])) for name, ring in self._rings.items()}

    def _rows_of(self, first_segment: int, end_segment: int) -> Tensor:
        return torch.arange(first_segment * self.horizon, end_segment * self.horizon) % self._rows
