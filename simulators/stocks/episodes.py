"""Decides in which rows the episodes of the lanes begin and end, and measures how each account did in them."""

from collections.abc import Sequence

import torch
from torch import Tensor


class EpisodeWindows:
    """The episodes of N lanes, each a window of rows within one block.

    Outside of folds, every possible first row is equally likely. In folds, episode e of lane i is in fold
    (offset + i + e N) modulo the number of folds, with an offset that depends on the seed, and every first row of the
    fold is equally likely. The numbers of episodes in two folds therefore differ by at most one as long as all lanes
    have played equally many.

    All operations run on the device without waiting for it, so that a step can be captured as a CUDA graph.

    Attributes:
        episodes: [N] int64, episodes that have ended in each lane since the last reset.
        block: [N] int64, block of the current episode of each lane.
        equally_long: Whether all episodes have the same number of rows.
    """

    def __init__(
        self, blocks: Sequence[range], episode_rows: int, count: int, generator: torch.Generator, *, folded: bool
    ) -> None:
        """Finds all possible episodes; `restart` draws the first ones.

        Args:
            blocks: The periods.
            episode_rows: Rows of an episode; 0: an episode is a whole block.
            count: Number of lanes, N.
            generator: Draws the episodes.
            folded: Whether the blocks are validation folds.
        """
        device = generator.device
        starts = [
            torch.arange(block.start, block.start + 1 if not episode_rows else block.stop - episode_rows + 1)
            for block in blocks
        ]
        lengths = torch.tensor([len(possible) for possible in starts])
        numbers = torch.arange(len(blocks)).repeat_interleave(lengths)
        rows = torch.tensor([episode_rows or len(block) for block in blocks])[numbers]
        self._starts = torch.cat(starts).to(device)
        self._lasts = (torch.cat(starts) + rows - 1).to(device)
        self._numbers = numbers.to(device)
        self._block_starts = (lengths.cumsum(0) - lengths).to(device)
        self._block_lengths = lengths.to(device)
        self._generator, self._folded, self._count = generator, folded, count
        self._lanes = torch.arange(count, device=device)
        self._offset = torch.zeros(1, dtype=torch.int64, device=device)
        self.episodes = torch.zeros(count, dtype=torch.int64, device=device)
        self.block = torch.zeros(count, dtype=torch.int64, device=device)
        self.equally_long = len(set(rows.tolist())) == 1

    def restart(self) -> None:
        """Begins the count of episodes again, and draws the offset of the folds; the generator was seeded before."""
        self.episodes.zero_()
        if self._folded:
            folds = len(self._block_starts)
            self._offset.copy_(torch.randint(folds, (1,), generator=self._generator, device=self._offset.device))

    def draw(self, lanes: Tensor, first: Tensor, last: Tensor) -> None:
        """Draws the next episode of some lanes.

        Args:
            lanes: [N] bool; the others are not changed.
            first: [N] int64, first row of each episode; written.
            last: [N] int64, last row of each episode; written.
        """
        choice = self._next_in_folds() if self._folded else self._anywhere()
        self.block.copy_(torch.where(lanes, self._numbers[choice], self.block))
        first.copy_(torch.where(lanes, self._starts[choice], first))
        last.copy_(torch.where(lanes, self._lasts[choice], last))

    def _anywhere(self) -> Tensor:
        possible = len(self._starts)
        return torch.randint(possible, (self._count,), generator=self._generator, device=self._starts.device)

    def _next_in_folds(self) -> Tensor:
        fold = (self._offset + self._lanes + self.episodes * self._count) % len(self._block_starts)
        drawn = torch.rand(self._count, generator=self._generator, device=fold.device, dtype=torch.float64)
        return self._block_starts[fold] + (drawn * self._block_lengths[fold]).long()
