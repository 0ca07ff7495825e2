"""Keeps environment steps that other agents took, so that an agent can also learn from them.

One thread adds the steps that were read, and the compute thread takes them over between two updates. The steps of each
environment are cut into blocks of BLOCK_ROWS, which follow each other in a ring with one lane. The last step of a block
is marked as truncated, with the observation that followed it, so every transition was observed.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_layout import FINAL, replay_fields, replay_rows, written_finals
from agentpod.experience.replay_restoring import BLOCK_ROWS
from agentpod.experience.rollout import Field
from podrace.errors import InvalidArgument
from simulators.base import Space

BLOCKS_AT_ONCE = 64
"""Blocks that one update takes over: a few milliseconds."""


def foreign_fields(observation_space: Space, action_space: Space, capacity_steps: int) -> dict[str, Field]:
    """Returns the layout of a foreign memory; see `replay_fields`."""
    return replay_fields(observation_space, action_space, replay_rows(capacity_steps, BLOCK_ROWS, 1), 1)


@dataclass(frozen=True)
class Filled:
    """How much a foreign memory has."""

    steps: int
    """Environment steps that can be sampled."""
    age_seconds: float
    """Mean time since their checkpoints were published; 0 without steps."""


class ForeignMemory:
    """A ring of environment steps of other agents.

        memory = ForeignMemory(observation_space, action_space, 100_000)
        memory.add(steps, published)   # in any thread
        memory.take_over()             # in the compute thread, between two updates
        memory.replay.sample(...)      # once `replay.size` is above 0

    Attributes:
        replay: The steps, as a replay buffer with one lane.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        capacity_steps: int,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        """Allocates the ring.

        Args:
            observation_space: Of the simulator.
            action_space: Of the simulator.
            capacity_steps: Environment steps to keep.
            device: Where batches are sampled.
        """
        self._action_space = action_space
        fields = foreign_fields(observation_space, action_space, capacity_steps)
        self._memory = {
            name: torch.empty(field.shape, dtype=field.dtype, device=device) for name, field in fields.items()
        }
        self.replay = ReplayBuffer(self._memory, BLOCK_ROWS)
        self._waiting: deque[tuple[float, dict[str, Tensor]]] = deque(maxlen=self.replay.segments)
        self._published: deque[float] = deque(maxlen=self.replay.segments)

    def add(self, steps: Mapping[str, Tensor], published: float) -> int:
        """Adds the consecutive steps of another agent that fill whole blocks; the newest steps may remain.

        Args:
            steps: The fields of the steps, [L, N, ...] each, with the observation after each step
                (agentpod.experience.replay_restoring.dense_steps).
            published: When their checkpoint was published: time in seconds, by the clock of `filled`.

        Returns:
            How many environment steps more are kept. New steps replace the oldest ones that were not taken over yet.

        Raises:
            InvalidArgument: A number is not finite, or an action is no choice of the environment.
        """
        _check_finite(steps)
        check_actions(steps["action"], self._action_space)
        rows, lanes = steps["reward"].shape
        whole = rows // BLOCK_ROWS * BLOCK_ROWS
        added = [
            (published, {name: tensor[first : first + BLOCK_ROWS, lane : lane + 1] for name, tensor in steps.items()})
            for first in range(0, whole, BLOCK_ROWS)
            for lane in range(lanes)
        ]
        dropped = max(0, len(self._waiting) + len(added) - self.replay.segments)
        self._waiting.extend(added)
        return (len(added) - dropped) * BLOCK_ROWS

    def take_over(self) -> None:
        """Makes steps that were added available to batches, at most BLOCKS_AT_ONCE blocks."""
        for _ in range(min(len(self._waiting), BLOCKS_AT_ONCE)):
            published, block = self._waiting.popleft()
            self._write(block)
            self._published.append(published)

    def filled(self, now: float) -> Filled:
        """Returns how much the memory has, in any thread; `now` is a time in seconds."""
        steps = self.replay.size
        times = list(islice(reversed(self._published.copy()), steps // BLOCK_ROWS))
        return Filled(steps, now - sum(times) / len(times) if times else 0.0)

    def _write(self, block: Mapping[str, Tensor]) -> None:
        first = self.replay.grant()
        final = written_finals(block["truncated"], BLOCK_ROWS)
        for name, tensor in block.items():
            rows = self._memory[name][first : first + BLOCK_ROWS]
            if name == FINAL:
                # Other rows are not touched: memory that was never written has no pages.
                rows[final.to(rows.device)] = tensor[final].to(rows.device)
            else:
                rows.copy_(tensor)
        self.replay.receive(first)
        self.replay.mark_truncated()


def _check_finite(steps: Mapping[str, Tensor]) -> None:
    for name, tensor in steps.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise InvalidArgument(f"{name} has numbers that are not finite")


def check_actions(action: Tensor, space: Space) -> None:
    """Raises InvalidArgument unless discrete actions [T, N, ...] are choices of the space: they index tensors."""
    if action.is_floating_point():
        return
    flat = action.flatten(2) if action.dim() > 2 else action.unsqueeze(-1)
    most = torch.tensor(space.choices or space.most_choices)
    if bool(((flat < 0) | (flat >= most)).any()):
        raise InvalidArgument("actions are not among the choices of the environment")
