"""Owns priorities over numbered leaves: proportional sampling, and the formulas of prioritized replay.

Schaul et al. 2016 (arXiv 1511.05952) keep priorities in a binary tree of sums. A tensor operation costs about as much
for two numbers as for a few hundred, so the tree here is wide and flat: two levels for a million leaves instead of
twenty. Nothing here knows what a leaf stands for.
"""

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor

FAN_OUT = 64
"""Children of a node."""
MAXIMUM_ROOTS = 32_768
"""Nodes of the top level, which are summed up anew for every batch: that costs less than one level more."""
EPSILON = 1e-6
"""Added to the size of every error: a step without one can still be sampled (Schaul et al. 2016, section 3.3)."""
FIRST_PRIORITY = 1.0
"""Of what enters before any priority was set."""


def importance_weights(probability: Tensor, size: int, beta: float) -> Tensor:
    """Weights that undo what uneven sampling does to a mean (Schaul et al. 2016, section 3.4).

        w = (size P)^-beta / max over the batch of (size P)^-beta

    The greatest weight of the batch is the divisor, not that of the whole memory: a single step that nobody will ever
    replay again would otherwise scale down every update, and finding it would need a second tree.

    Args:
        probability: P, [B] float64, positive: of each sample of the batch.
        size: Steps there are to choose from.
        beta: 0 corrects nothing, 1 everything.

    Returns:
        w: [B] float32 in (0, 1].
    """
    weight = (probability * size).pow_(-beta)
    return (weight / weight.amax()).float()


class PriorityTree:
    """Priorities of leaves, and above them sums of FAN_OUT neighbours each until few nodes are left.

        priorities = Priorities(1_000_000, 0.6)
        priorities.admit(0, 512)
        index, probability = priorities.sample(256, generator)
        priorities.update(index, error_of(index))
        priorities.exclude(0, 512)

    Every sum is made from all its addends, never by adding a difference, so that errors of rounding do not build up,
    and in float64, since a float32 could not tell points on a line of a million leaves apart. No verb makes a device
    wait.
    """

    def __init__(self, count: int, exponent: float, device: torch.device | str = "cpu") -> None:
        """Makes leaves of priority 0.

        Args:
            count: Of leaves.
            exponent: Alpha: 0 makes all priorities equal, 1 proportional to the errors.
            device: Where they are.
        """
        sizes = _level_sizes(count)
        self._exponent = exponent
        self._nodes = torch.zeros(sum(sizes), dtype=torch.float64, device=device)
        self._levels = torch.split(self._nodes, sizes)
        self._maximum = torch.full((), FIRST_PRIORITY, dtype=torch.float64, device=device)

    @staticmethod
    def size_bytes(count: int) -> int:
        """Bytes of `count` leaves and the sums above them."""
        return torch.float64.itemsize * sum(_level_sizes(count))

    def update(self, index: Tensor, error: Tensor) -> None:
        """Proportional prioritization (Schaul et al. 2016, section 3.3): p = (|error| + EPSILON)^exponent.

        Excluded leaves stay excluded, and an error that is not finite changes nothing.

        Args:
            index: [B] int64; of a leaf that is there more than once, the greatest priority counts.
            error: [B], temporal-difference errors or their sizes.
        """
        priority, before = error.double().abs().add_(EPSILON).pow_(self._exponent), self.get(index)
        self.set(index, torch.where((before > 0.0) & priority.isfinite(), priority, before))

    def set(self, index: Tensor, priority: Tensor) -> None:
        """Gives leaves new priorities.

        Args:
            index: [B] int64; of a leaf that is there more than once, the greatest priority counts.
            priority: [B] float64, finite, not negative.
        """
        torch.maximum(self._maximum, priority.amax(), out=self._maximum)
        leaves = self._levels[0]
        leaves.index_fill_(0, index, 0.0).scatter_reduce_(0, index, priority, "amax")
        for children, parents in pairwise(self._levels):
            index = index // FAN_OUT
            # Whoever has two changed children is summed up twice, to the same number: cheaper than finding out.
            parents.index_copy_(0, index, children.view(-1, FAN_OUT).index_select(0, index).sum(1))

    def get(self, index: Tensor) -> Tensor:
        """The priorities of leaves [B]: [B] float64."""
        priority: Tensor = self._levels[0].index_select(0, index)
        return priority

    def admit(self, first: int, count: int) -> None:
        """Gives `count` leaves from `first` on the greatest priority ever set (Schaul et al. 2016, algorithm 1)."""
        self._fill(first, count, self._maximum)

    def exclude(self, first: int, count: int) -> None:
        """Gives `count` leaves from `first` on the priority 0: they are not sampled."""
        self._fill(first, count, torch.zeros_like(self._maximum))

    def _fill(self, first: int, count: int, priority: Tensor) -> None:
        end = first + count
        self._levels[0][first:end].copy_(priority)
        for children, parents in pairwise(self._levels):
            first, end = first // FAN_OUT, -(-end // FAN_OUT)
            parents[first:end].copy_(children.view(-1, FAN_OUT)[first:end].sum(1))

    def sample(self, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws leaves in proportion to their priorities, one from each of `batch_size` equal shares of their sum
        (Schaul et al. 2016, section 3.3); at least one priority must be positive.

        Args:
            batch_size: B.
            generator: On the device of the priorities.

        Returns:
            index: [B] int64, ascending; probability: [B] float64, of each leaf in a single draw.
        """
        roots = self._levels[-1]
        sums = roots.cumsum(0)
        device = roots.device
        share = torch.rand(batch_size, generator=generator, device=device, dtype=torch.float64)
        point = share.add_(torch.arange(batch_size, device=device)).mul_(sums[-1] / batch_size)
        index, point = _step_down(roots.unsqueeze(0), sums.unsqueeze(0), point.unsqueeze(0))
        index, point = index.squeeze(0), point.squeeze(0)
        for children in reversed(self._levels[:-1]):
            rows = children.view(-1, FAN_OUT).index_select(0, index)
            child, point = _step_down(rows, rows.cumsum(1), point.unsqueeze(1))
            index, point = child.squeeze(1).add_(index, alpha=FAN_OUT), point.squeeze(1)
        priority = self.get(index)
        if index.is_cuda:
            index, priority = replace_zero_priorities(index, priority)
        return index, priority / sums[-1]

    def tensors(self) -> Mapping[str, Tensor]:
        """All there is to keep, live. The sums are kept too: a device may sum up in another order when it rebuilds."""
        return {"nodes": self._nodes, "maximum": self._maximum}


def _level_sizes(count: int) -> list[int]:
    """Nodes of each level above `count` leaves, the leaves first; multiples of FAN_OUT, except at the top."""
    sizes = [count]
    while sizes[-1] > MAXIMUM_ROOTS:
        parents = -(-sizes[-1] // FAN_OUT)
        sizes[-1] = parents * FAN_OUT
        sizes.append(parents)
    return sizes


def _step_down(values: Tensor, sums: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    """Finds in each row the value that a point falls on when they are laid end to end.

    Args:
        values: [M, F], not negative.
        sums: [M, F], running sums of the rows.
        point: [M, Q], not negative.

    Returns:
        Columns: [M, Q], each of a positive value; how far into it the point lies: [M, Q].
    """
    # Rounding can put a point at or past the end of its row; it belongs to the last positive value then.
    end = sums[:, -1:]
    point = torch.minimum(point, torch.nextafter(end, torch.zeros_like(end)))
    column = torch.searchsorted(sums, point, right=True)
    before = sums.gather(1, column) - values.gather(1, column)
    return column, point.sub_(before).clamp_(min=0.0)


def replace_zero_priorities(index: Tensor, priority: Tensor) -> tuple[Tensor, Tensor]:
    """Replaces leaves of priority 0 by the most probable one of the batch.

    A GPU sums up in parallel, so its running sums can grow by a rounding error over a leaf of 0, and a point can, once
    in some 10^15 draws, fall into that gap.

    Args:
        index: [B] int64.
        priority: [B] float64, at least one positive.

    Returns:
        Both, without zeros.
    """
    best = priority.argmax(0, keepdim=True)
    empty = priority == 0.0
    return torch.where(empty, index[best], index), torch.where(empty, priority[best], priority)
