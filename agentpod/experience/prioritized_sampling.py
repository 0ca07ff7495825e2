"""Implements the priorities of prioritized experience replay (Schaul et al. 2016, arXiv 1511.05952).

The paper stores priorities in a binary tree of sums. A tensor operation takes about as long for two numbers as for a
few hundred, so this tree has a fan-out of 64: two levels for a million leaves instead of twenty. Leaves are plain
numbers; the replay buffer maps them to steps.
"""

from itertools import pairwise

import torch
from torch import Tensor

FAN_OUT = 64
"""Children of a node."""
MAXIMUM_ROOTS = 32_768
"""Maximum nodes of the top level. Their running sums are recomputed for every batch, which costs less than one more
level."""
EPSILON = 1e-6
"""Added to the absolute error, so that a step without error can still be sampled (Schaul et al. 2016, section 3.3)."""
FIRST_PRIORITY = 1.0
"""Priority of the leaves that are admitted before any priority was set."""


def importance_weights(probability: Tensor, size: int | Tensor, beta: float | Tensor) -> Tensor:
    """Computes the weights that correct for non-uniform sampling (Schaul et al. 2016, section 3.4).

        w = (size P)^-beta / max over the batch of (size P)^-beta

    The paper divides by the largest weight of the whole memory. This function divides by the largest of the batch:
    otherwise a single step with a tiny probability would scale down every update, and finding it would need a second
    tree.

    Args:
        probability: P, [B] float64, positive: sampling probability of each sample of the batch.
        size: Number of steps that were sampled from.
        beta: 0 corrects nothing, 1 fully.

    Returns:
        w: [B] float32 in (0, 1].
    """
    weight = (probability * size).pow_(-beta)
    return (weight / weight.amax()).float()


class PriorityTree:
    """Stores priorities as the leaves of a tree whose nodes are sums of FAN_OUT children.

        priorities = PriorityTree(1_000_000, 0.6)
        priorities.admit(0, 512)
        index, probability = priorities.sample(256, generator)
        priorities.update(index, error_of(index))
        priorities.exclude(0, 512)

    Every sum is computed from all its addends and never updated by a difference, so rounding errors do not accumulate.
    Sums are float64, because float32 cannot resolve points over a million leaves. No method waits for the device.
    """

    def __init__(self, count: int, exponent: float, device: torch.device | str = "cpu") -> None:
        """Allocates leaves of priority 0.

        Args:
            count: Number of leaves.
            exponent: Alpha: 0 makes all priorities equal, 1 proportional to the errors.
            device: Device of the tree.
        """
        sizes = _level_sizes(count)
        self._count, self._exponent = count, exponent
        self._nodes = torch.zeros(sum(sizes), dtype=torch.float64, device=device)
        self._levels = torch.split(self._nodes, sizes)
        self._maximum = torch.full((), FIRST_PRIORITY, dtype=torch.float64, device=device)

    @staticmethod
    def size_bytes(count: int) -> int:
        """Returns the size in bytes of a tree with `count` leaves."""
        return torch.float64.itemsize * sum(_level_sizes(count))

    def update(self, index: Tensor, error: Tensor) -> None:
        """Sets priorities from errors by proportional prioritization (Schaul et al. 2016, section 3.3).

            p = (|error| + EPSILON)^exponent

        Excluded leaves stay excluded, and errors that are not finite are ignored.

        Args:
            index: [B] int64, leaves; if a leaf occurs more than once, its largest priority counts.
            error: [B], temporal-difference errors or their absolute values.
        """
        priority, before = error.double().abs().add_(EPSILON).pow_(self._exponent), self.get(index)
        self.set(index, torch.where((before > 0.0) & priority.isfinite(), priority, before))

    def set(self, index: Tensor, priority: Tensor) -> None:
        """Sets priorities.

        Args:
            index: [B] int64, leaves; if a leaf occurs more than once, its largest priority counts.
            priority: [B] float64, finite and not negative.
        """
        torch.maximum(self._maximum, priority.amax(), out=self._maximum)
        leaves = self._levels[0]
        leaves.index_fill_(0, index, 0.0).scatter_reduce_(0, index, priority, "amax")
        for children, parents in pairwise(self._levels):
            index = index // FAN_OUT
            # A parent of several changed children is computed several times, which is cheaper than removing duplicates.
            parents.index_copy_(0, index, children.view(-1, FAN_OUT).index_select(0, index).sum(1))

    def get(self, index: Tensor) -> Tensor:
        """Returns the priorities of leaves `index` [B]: [B] float64."""
        priority: Tensor = self._levels[0].index_select(0, index)
        return priority

    def admit(self, first: int, count: int) -> None:
        """Sets `count` leaves from `first` to the largest priority set so far (Schaul et al. 2016, algorithm 1)."""
        self._fill(first, count, self._maximum)

    def exclude(self, first: int, count: int) -> None:
        """Sets `count` leaves from `first` to priority 0, so that they are not sampled."""
        self._fill(first, count, torch.zeros_like(self._maximum))

    def _fill(self, first: int, count: int, priority: Tensor) -> None:
        end = first + count
        self._levels[0][first:end].copy_(priority)
        for children, parents in pairwise(self._levels):
            first, end = first // FAN_OUT, -(-end // FAN_OUT)
            parents[first:end].copy_(children.view(-1, FAN_OUT)[first:end].sum(1))

    def sample(self, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Samples leaves in proportion to their priorities, by stratified sampling (Schaul et al. 2016, section 3.3).

        The sum of priorities is divided into `batch_size` equal ranges, and one leaf is drawn from each. At least one
        priority must be positive.

        Args:
            batch_size: B.
            generator: On the device of the tree.

        Returns:
            index: [B] int64, ascending.
            probability: [B] float64, of each leaf in a single draw.
        """
        device = self._nodes.device
        return self.find(torch.rand(batch_size, generator=generator, device=device, dtype=torch.float64))

    def find(self, share: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what `sample` does, for random numbers [B] float64 in [0, 1): where each leaf lies in its range."""
        roots, batch_size = self._levels[-1], len(share)
        sums = roots.cumsum(0)
        point = (share + torch.arange(batch_size, device=roots.device)).mul_(sums[-1] / batch_size)
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

    @property
    def state(self) -> list[Tensor]:
        """All tensors that `update` changes, live."""
        return [self._nodes, self._maximum]

    def assign(self, first: int, priorities: Tensor) -> None:
        """Sets the leaves from `first` to saved priorities [B]; sums that differ by rounding on another device too."""
        self._fill(first, len(priorities), priorities.to(self._nodes.device))

    @property
    def leaves(self) -> Tensor:
        """The priorities of all leaves [count] float64, live."""
        return self._levels[0][: self._count]

    @property
    def maximum(self) -> Tensor:
        """The largest priority that was set so far [], live."""
        return self._maximum


def _level_sizes(count: int) -> list[int]:
    """Returns the number of nodes of each level for `count` leaves, leaves first.

    All levels except the top one are padded to multiples of FAN_OUT.
    """
    sizes = [count]
    while sizes[-1] > MAXIMUM_ROOTS:
        parents = -(-sizes[-1] // FAN_OUT)
        sizes[-1] = parents * FAN_OUT
        sizes.append(parents)
    return sizes


def _step_down(values: Tensor, sums: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    """Finds the value of each row whose range of the running sum contains a point.

    Args:
        values: [M, F], not negative.
        sums: [M, F], running sums of the rows.
        point: [M, Q], not negative.

    Returns:
        Columns [M, Q], each of a positive value; and the offset of the point within that value's range [M, Q].
    """
    # Rounding can put a point at or beyond the end of its row; it then belongs to the last positive value.
    end = sums[:, -1:]
    point = torch.minimum(point, torch.nextafter(end, torch.zeros_like(end)))
    column = torch.searchsorted(sums, point, right=True)
    before = sums.gather(1, column) - values.gather(1, column)
    return column, point.sub_(before).clamp_(min=0.0)


def replace_zero_priorities(index: Tensor, priority: Tensor) -> tuple[Tensor, Tensor]:
    """Replaces leaves of priority 0 by the most probable leaf of the batch.

    A GPU computes running sums in parallel, so that they can grow by a rounding error over a leaf of priority 0. About
    once in 10^15 draws a point falls into that gap.

    Args:
        index: [B] int64.
        priority: [B] float64, at least one positive.

    Returns:
        Both, without zero priorities.
    """
    best = priority.argmax(0, keepdim=True)
    empty = priority == 0.0
    return torch.where(empty, index[best], index), torch.where(empty, priority[best], priority)
