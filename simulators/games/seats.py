"""Assigns the lanes of a game to opponents, and asks the opponents for their moves."""

from collections.abc import Sequence

import torch
from torch import Tensor

from simulators.base import Opponent


class Seats:
    """Which opponent each of N lanes has: lane j has number j mod K of K opponents.

    Attributes:
        has_built_in: Whether the built-in opponent plays in some lane.
    """

    def __init__(self, count: int, device: torch.device | str, opponents: Sequence[Opponent | None] = ()) -> None:
        """Seats opponents; None is the built-in one, which plays in all lanes if there are none."""
        self._seated = tuple(opponents) or (None,)
        self._lanes = torch.arange(count, device=device)
        self.has_built_in = None in self._seated

    def begins_first(self, seed: int) -> Tensor:
        """Returns in which lanes the agent begins the first game, [N]: half of all, and half of those of each opponent.

        Which half depends on the seed, because an opponent may have an odd number of lanes, or only one.
        """
        rounds, seats = self._lanes // len(self._seated), self._lanes % len(self._seated)
        return (rounds + seats + seed % 2) % 2 == 0

    def moves(self, observation: Tensor, built_in: Tensor, turn: int) -> Tensor:
        """Returns the moves of all opponents, [N].

        Args:
            observation: Of the opponents, [N, *shape].
            built_in: Moves of the built-in opponent, [N].
            turn: Number of the turn since the last reset.
        """
        chosen = built_in.clone()
        for number, opponent in enumerate(self._seated):
            own = slice(number, None, len(self._seated))
            if opponent is not None and len(chosen[own]):
                chosen[own] = opponent.act(observation[own], turn)
        return chosen
