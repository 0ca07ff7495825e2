"""The rules of games in which two players place stones and a line of a given length wins, on whole batches of boards.

Boards are bool tensors [N, cells], one for the stones of each player. Cells are numbered row by row; with gravity, row
0 is the lowest.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))


@dataclass(frozen=True)
class Rules:
    """A board of `rows` and `columns` on which `length` stones in a row, column or diagonal win."""

    rows: int
    columns: int
    length: int
    gravity: bool
    """Whether a move names a column and the stone falls to its lowest free cell; otherwise a move names a cell."""

    @property
    def cells(self) -> int:
        """Number of cells."""
        return self.rows * self.columns

    @property
    def choices(self) -> int:
        """Number of moves that a player has on an empty board."""
        return self.columns if self.gravity else self.cells

    @cached_property
    def lines(self) -> Tensor:
        """Which cells each winning line has: [cells, lines] float32, 0 or 1."""
        found = []
        for row in range(self.rows):
            for column in range(self.columns):
                for down, right in DIRECTIONS:
                    places = [(row + step * down, column + step * right) for step in range(self.length)]
                    if all(0 <= y < self.rows and 0 <= x < self.columns for y, x in places):
                        line = torch.zeros(self.cells)
                        line[[y * self.columns + x for y, x in places]] = 1.0
                        found.append(line)
        return torch.stack(found, 1)

    def moves(self, occupied: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the cell that each move fills [N, choices], and whether the move is valid [N, choices].

        Args:
            occupied: [N, cells]. The cell of a move that is not valid is one of the board, without a meaning.
        """
        if not self.gravity:
            return torch.arange(self.cells, device=occupied.device).expand(len(occupied), -1), ~occupied
        heights = occupied.view(-1, self.rows, self.columns).sum(1)
        columns = torch.arange(self.columns, device=occupied.device)
        return heights.clamp(max=self.rows - 1) * self.columns + columns, heights < self.rows

    def wins(self, stones: Tensor, lines: Tensor) -> Tensor:
        """Returns whether the stones [N, cells] have a winning line, [N]; `lines` is `self.lines` on their device."""
        return (stones.float() @ lines > self.length - 0.5).any(1)

    def completing(self, own: Tensor, others: Tensor, lines: Tensor) -> Tensor:
        """Returns the free cells in which a further stone of `own` completes a line, [N, cells]."""
        ready = (own.float() @ lines > self.length - 1.5) & (others.float() @ lines < 0.5)
        # Of a line with all stones but one and none of the other player, exactly one cell is free.
        return (ready.float() @ lines.T > 0.5) & ~own & ~others
