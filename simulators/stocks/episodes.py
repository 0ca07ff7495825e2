"""Decides in which rows the episodes of the lanes begin and end, and measures how each account did in them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from simulators.stocks.backtest import TRADING_DAYS_A_YEAR

LEAST_DRAWDOWN = 0.01
"""Drawdown by which the Calmar ratio of an episode divides at least: an episode that hardly fell would otherwise
outweigh all others."""
LARGEST_RETURN = 1e6
"""Limit of the annual return of an episode, which is extrapolated from few days."""


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


class EpisodeMeasures:
    """Measures the account of each lane in the first episode that it finishes after a reset.

    With p_1 the account at the beginning of the episode, then its value at each day's close, and at the end of the
    episode, the measures are those of `simulators.stocks.backtest.performance`, with two differences: the Calmar ratio
    divides by a drawdown of at least `LEAST_DRAWDOWN`, and the annual return is at most `LARGEST_RETURN`. In addition:

        return_minus_drawdown    cumulative_return + maximum_drawdown
        fold                     number of the validation fold of the episode, if there are folds

    All operations run in place on the device without waiting for it, so that a step can be captured as a CUDA graph.
    """

    def __init__(self, count: int, at_close: Tensor | None, folds: Sequence[int], device: torch.device) -> None:
        """Allocates the state of N lanes; `restart` begins.

        Args:
            count: Number of lanes, N.
            at_close: [rows] bool, which rows are the last of their day; None: all are.
            folds: Number of the fold of each block; empty if blocks are not folds.
            device: Device of all tensors.
        """
        self._at_close = at_close
        self._folds = torch.tensor(folds, device=device)

        def lanes(dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        self._begin, self._last, self._peak, self._drawdown = lanes(), lanes(), lanes(), lanes()
        self._count, self._sum, self._squares = lanes(), lanes(), lanes()
        self._done, self._block = lanes(torch.bool), lanes(torch.int64)

    def restart(self, account_value: Tensor, block: Tensor) -> None:
        """Begins again, in the first row of an episode: account values [N] float64 and blocks [N] int64."""
        for value in (self._begin, self._last, self._peak):
            value.copy_(account_value)
        for zero in (self._drawdown, self._count, self._sum, self._squares, self._done):
            zero.zero_()
        self._block.copy_(block)

    def add(self, account_value: Tensor, row: Tensor, ended: Tensor) -> None:
        """Adds a step.

        Args:
            account_value: [N] float64, after the step and before the next episode begins.
            row: [N] int64, row of the market that this is the value of.
            ended: [N] bool, lanes whose episode has ended with this step.
        """
        counted = ~self._done
        if self._at_close is not None:
            counted &= self._at_close.index_select(0, row) | ended
        gain = torch.where(counted, account_value / self._last - 1, 0.0)
        self._sum += gain
        self._squares += gain.square()
        self._count += counted
        self._last.copy_(torch.where(counted, account_value, self._last))
        torch.maximum(self._peak, self._last, out=self._peak)
        torch.minimum(self._drawdown, self._last / self._peak - 1, out=self._drawdown)
        self._done |= ended

    def report(self) -> dict[str, list[float]]:
        """Returns each measure of the first episode of each lane, [N]; NaN for a lane that has not finished it."""
        count, total = self._count, self._last / self._begin - 1
        annual = ((1 + total) ** (TRADING_DAYS_A_YEAR / (count + 1))).sub_(1).clamp_(max=LARGEST_RETURN)
        variance = (self._squares - self._sum.square() / count.clamp(min=1)).clamp_(min=0) / (count - 1).clamp(min=1)
        deviation = torch.where(count > 1, variance.sqrt(), 0.0)
        mean = self._sum / count.clamp(min=1)
        year = TRADING_DAYS_A_YEAR**0.5
        measures = {
            "cumulative_return": total,
            "annual_return": annual,
            "annual_volatility": deviation * year,
            "sharpe_ratio": torch.where(deviation > 0, mean / deviation * year, 0.0),
            "maximum_drawdown": self._drawdown,
            "calmar_ratio": annual / (-self._drawdown).clamp(min=LEAST_DRAWDOWN),
            "return_minus_drawdown": total + self._drawdown,
        }
        if len(self._folds):
            measures["fold"] = self._folds[self._block].double()
        return {name: torch.where(self._done, values, torch.nan).tolist() for name, values in measures.items()}
