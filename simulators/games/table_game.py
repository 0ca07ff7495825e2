"""Plays games in which two players choose at the same time, and a table gives the reward of the agent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from podrace.errors import InvalidArgument
from simulators.base import Opponent, Report, Space, Step
from simulators.games.seats import Seats
from simulators.options import parse_options

MOVES = ("rock", "paper", "scissors")
PAYOFF = ((0.0, -1.0, 1.0), (1.0, 0.0, -1.0), (-1.0, 1.0, 0.0))
"""Reward of the agent, by its choice and that of the opponent."""
RANDOM = "random"


@dataclass(frozen=True)
class TableOptions:
    """Options of a specification for `game:rock-paper-scissors`."""

    opponent: str = RANDOM
    """What the built-in opponent chooses: `random`, `rock`, `paper` or `scissors`."""


def make_table_game(id: str, count: int, options: Mapping[str, object], device: str) -> "TableGame":
    """Makes `count` games; raises InvalidArgument if an option is unknown or its value cannot be used."""
    parsed = parse_options(id, options, TableOptions)
    if parsed.opponent not in (RANDOM, *MOVES):
        raise InvalidArgument(
            f"{id}: option 'opponent' must be one of {', '.join((RANDOM, *MOVES))}, not {parsed.opponent!r}"
        )
    return TableGame(count, parsed.opponent, device)


class TableGame:
    """N games of one step. See simulators.base.Simulator for the methods; both players observe 1 before they
    choose and 0 afterwards.

    Attributes:
        observation_space: See simulators.base.Space.
        action_space: See simulators.base.Space.
        count: Number of games, N.
    """

    def __init__(self, count: int, opponent: str, device: str) -> None:
        """Starts `count` games on `device` against a built-in opponent."""
        self.observation_space = Space("continuous", (1,), torch.float32)
        self.action_space = Space("discrete", (), torch.int64, n=len(MOVES))
        self.count, self._opponent = count, opponent
        self._payoff = torch.tensor(PAYOFF, device=device)
        self._observation = torch.ones(count, 1, device=device)
        self._over = torch.zeros_like(self._observation)
        self._generator, self._turn = torch.Generator(device), 0
        self._seats = Seats(count, device)

    def seat_opponents(self, opponents: Sequence[Opponent | None]) -> None:
        """See simulators.base.AcceptsOpponents."""
        self._seats = Seats(self.count, self._observation.device, opponents)

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator."""
        self._generator.manual_seed(seed % 2**63)
        self._turn = 0
        return self._observation

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        self._turn += 1
        shape, device = (self.count,), self._observation.device
        built_in = torch.randint(len(MOVES), shape, generator=self._generator, device=device)
        if self._opponent != RANDOM:
            built_in = torch.full_like(built_in, MOVES.index(self._opponent))
        reward = self._payoff[action, self._seats.moves(self._observation, built_in, self._turn)]
        ended = torch.ones(self.count, dtype=torch.bool, device=device)
        return Step(self._observation, reward, ended, torch.zeros_like(ended), self._over)

    def report(self) -> Report:
        """Returns an empty report: the return of an episode says who won."""
        return Report()

    def close(self) -> None:
        """Has no resources to free: the tensors are freed with the simulator."""
