"""Plays matrix games: two agents choose at the same time, and a table says what the team receives.

| id | game |
|---|---|
| `matrix:two-step` | the two-step game of Rashid et al. 2018 (arXiv 1803.11485, section 6 and table 1): the first choice of the first agent selects one of two tables; the best return is 8 |
| `matrix:nonmonotonic` | table 1a of Rashid et al. 2020 (arXiv 2006.10800): the best return, 8, needs both agents at once |
| `matrix:climbing` | the climbing game of Claus & Boutilier 1998; the best return is 11 |
"""  # noqa: E501

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from simulators.base import Report, Space, Step
from simulators.options import check_names

AGENTS = ("agent_0", "agent_1")
Table = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Game:
    """A game of one step, or of two if there are several tables.

    With K tables the game has a first step without reward, in which the action of the first agent selects the table.
    """

    tables: tuple[Table, ...]
    """Of each table: what the team receives, by the action of the first agent and that of the second."""


GAMES: Mapping[str, Game] = {
    "matrix:two-step": Game((((7.0, 7.0), (7.0, 7.0)), ((0.0, 1.0), (1.0, 8.0)))),
    "matrix:nonmonotonic": Game((((8.0, -12.0, -12.0), (-12.0, 0.0, 0.0), (-12.0, 0.0, 0.0)),)),
    "matrix:climbing": Game((((11.0, -30.0, 0.0), (-30.0, 7.0, 6.0), (0.0, 0.0, 5.0)),)),
}
"""Games by id."""


def make(id: str, count: int, options: Mapping[str, object], device: str) -> "MatrixGame":
    """Makes `count` environments of the game `id`.

    Raises:
        InvalidArgument: There are options: a matrix game has none.
    """
    check_names(id, options, ())
    return MatrixGame(GAMES[id], count, device)


class MatrixGame:
    """N environments of two agents, 2 N lanes. See simulators.base.Simulator for the methods.

    An agent observes, one-hot, where the game is (the first step, or one of K tables) and which agent it is. Each agent
    receives half of what the team receives.

    Attributes:
        observation_space: See simulators.base.Space.
        action_space: See simulators.base.Space.
        count: Number of lanes, 2 N.
    """

    def __init__(self, game: Game, count: int, device: str) -> None:
        """Starts a game in each of `count` environments, on `device`."""
        self._tables = torch.tensor(game.tables, device=device)
        tables, choices = self._tables.shape[:2]
        self._first = 0 if tables > 1 else 1
        self.observation_space = Space("continuous", (1 + tables + len(AGENTS),), torch.float32, agents=AGENTS)
        self.action_space = Space("discrete", (), torch.int64, n=choices)
        self.count, self._environments = count * len(AGENTS), count
        self._place = torch.full((count,), self._first, device=device)

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator; every game begins in the same way, whatever the seed."""
        self._place.fill_(self._first)
        return self._observe()

    def _observe(self) -> Tensor:
        places = torch.eye(1 + len(self._tables), device=self._place.device)[self._place]
        own = torch.eye(len(AGENTS), device=self._place.device).expand(self._environments, -1, -1)
        return torch.cat((places.unsqueeze(1).expand(-1, len(AGENTS), -1), own), -1).flatten(0, 1)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        first, second = action.view(self._environments, len(AGENTS)).unbind(1)
        ends = self._place > 0
        payoff = self._tables[(self._place - 1).clamp(min=0), first, second] * ends
        final = self._observe()
        self._place = torch.where(ends, self._first, 1 + first.clamp(max=len(self._tables) - 1))
        terminated = ends.repeat_interleave(len(AGENTS))
        reward = (payoff / len(AGENTS)).repeat_interleave(len(AGENTS))
        return Step(self._observe(), reward, terminated, torch.zeros_like(terminated), final)

    def report(self) -> Report:
        """Returns an empty report: these games have no measure except the returns."""
        return Report()

    def close(self) -> None:
        """Has no resources to free: the tensors are freed with the simulator."""
