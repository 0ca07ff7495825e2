"""Plays tic-tac-toe and connect four on thousands of boards at once."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from podrace.errors import InvalidArgument
from podrace.spaces.entries import FLAGS, MASK, MASK_KEY, Entry
from simulators.base import Opponent, Report, Space, Step
from simulators.games.rules import Rules
from simulators.games.seats import Seats
from simulators.options import parse_options

BOARDS: Mapping[str, Rules] = {
    "game:tic-tac-toe": Rules(3, 3, 3, gravity=False),
    "game:connect-four": Rules(6, 7, 4, gravity=True),
}
"""Rules by id."""
SCRIPTED, RANDOM = "scripted", "random"
RESULTS = ("won", "drawn", "lost")


@dataclass(frozen=True)
class BoardOptions:
    """Options of a specification for games on boards."""

    opponent: str = SCRIPTED
    """The built-in opponent: `scripted` wins in one move if it can, otherwise blocks a win of the agent in its next
    move, otherwise moves at random; `random` always moves at random."""
    random_moves: int = 2
    """Moves at the beginning of each game that are drawn at random, those of both players together."""


def make_board_game(id: str, count: int, options: Mapping[str, object], device: str) -> "BoardGame":
    """Makes `count` games.

    Raises:
        InvalidArgument: An option is unknown, or its value cannot be used.
    """
    parsed, rules = parse_options(id, options, BoardOptions), BOARDS[id]
    if parsed.opponent not in (SCRIPTED, RANDOM):
        raise InvalidArgument(f"{id}: option 'opponent' must be {SCRIPTED} or {RANDOM}, not {parsed.opponent!r}")
    # With more of them, a game could end before the agent has moved.
    most = 2 * (rules.length - 1) - 1
    if not 0 <= parsed.random_moves <= most:
        raise InvalidArgument(f"{id}: option 'random_moves' must be in [0, {most}], not {parsed.random_moves}")
    return BoardGame(rules, count, parsed, device)


class BoardGame:
    """N games. See simulators.base.Simulator for the methods, and simulators.games for what a step is.

    The observation is composite: `board` [2, rows, columns], the stones of the player to move and those of the other
    one, and `action_mask`. A move that the mask does not allow loses the game.

    Attributes:
        observation_space: See simulators.base.Space.
        action_space: See simulators.base.Space.
        count: Number of games, N.
    """

    def __init__(self, rules: Rules, count: int, options: BoardOptions, device: str) -> None:
        """Places no stones before `reset`; the boards are on `device`."""
        self._rules, self._lines = rules, rules.lines.to(device)
        entries = (Entry("board", FLAGS, (2, rules.rows, rules.columns)), Entry(MASK_KEY, MASK, (rules.choices,)))
        width = 2 * rules.cells + rules.choices
        self.observation_space = Space("composite", (width,), torch.float32, entries=entries)
        self.action_space = Space("discrete", (), torch.int64, n=rules.choices)
        self.count, self._scripted, self._random_moves = count, options.opponent == SCRIPTED, options.random_moves
        self._own = torch.zeros(count, rules.cells, dtype=torch.bool, device=device)
        self._others, self._starts = torch.zeros_like(self._own), torch.zeros(count, dtype=torch.bool, device=device)
        self._generator = torch.Generator(device)
        self._seats = Seats(count, device)
        self._turn = 0
        self._results = torch.full((len(RESULTS), count), math.nan, device=device)

    def seat_opponents(self, opponents: Sequence[Opponent | None]) -> None:
        """See simulators.base.AcceptsOpponents."""
        self._seats = Seats(self.count, self._own.device, opponents)

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator."""
        # Seeds of other processes may have more bits than a generator takes.
        self._generator.manual_seed(seed % 2**63)
        self._turn = 0
        self._results.fill_(math.nan)
        self._starts = self._seats.begins_first(seed)
        self._begin(torch.ones_like(self._starts), self._noise())
        return self._observe(self._own, self._others)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        self._turn += 1
        # Drawn for all games in every step, so that a game does not depend on how long others take.
        noise = self._noise()
        legal = self._place(self._own, action, torch.ones_like(self._starts))
        won = self._rules.wins(self._own, self._lines) & legal
        running = legal & ~won & ~self._full()
        self._answer(running, noise[0], 2 * self._turn)
        lost = ~legal | (self._rules.wins(self._others, self._lines) & running)
        ended = won | lost | self._full()
        reward, final = won.float() - lost.float(), self._observe(self._own, self._others)
        first = ended & self._results[0].isnan()
        self._results = torch.where(first, torch.stack((won, ended & ~won & ~lost, lost)).float(), self._results)
        self._starts = self._starts ^ ended
        self._begin(ended, noise)
        observation = self._observe(self._own, self._others)
        return Step(observation, reward, ended, torch.zeros_like(ended), final)

    def report(self) -> Report:
        """Returns for each lane whether its first game since the last reset was won, drawn or lost: 1 or 0."""
        return Report(episode_metrics=dict(zip(RESULTS, self._results.tolist(), strict=True)))

    def close(self) -> None:
        """Has no resources to free: the tensors are freed with the simulator."""

    def _noise(self) -> Tensor:
        """Returns uniform numbers: for an answer, for the first move of an opponent, and for each random move."""
        shape = (2 + self._random_moves, self.count, self._rules.choices)
        return torch.rand(shape, generator=self._generator, device=self._own.device)

    def _begin(self, where: Tensor, noise: Tensor) -> None:
        """Starts new games: clears boards, places random stones, and lets opponents move whose turn it is."""
        self._own &= ~where.unsqueeze(1)
        self._others &= ~where.unsqueeze(1)
        agent_moves = self._starts
        for numbers in noise[2:]:
            _, valid = self._rules.moves(self._own | self._others)
            move = torch.where(valid, numbers, -1.0).argmax(1)
            self._place(self._own, move, where & agent_moves)
            self._place(self._others, move, where & ~agent_moves)
            agent_moves = ~agent_moves
        self._answer(where & ~agent_moves, noise[1], 2 * self._turn + 1)

    def _answer(self, where: Tensor, numbers: Tensor, turn: int) -> None:
        """Lets the opponents move in some games."""
        if not bool(where.any()):
            return
        cells, valid = self._rules.moves(self._own | self._others)
        worth = torch.where(valid, numbers, -9.0)
        if self._scripted and self._seats.has_built_in:
            wins = self._rules.completing(self._others, self._own, self._lines)
            blocks = self._rules.completing(self._own, self._others, self._lines)
            worth = worth + 4.0 * wins.gather(1, cells) + 2.0 * blocks.gather(1, cells)
        move = self._seats.moves(self._observe(self._others, self._own), worth.argmax(1), turn)
        # A policy obeys the mask; anything else is replaced by the move of the built-in opponent.
        move = torch.where(valid.gather(1, move.unsqueeze(1)).squeeze(1), move, worth.argmax(1))
        self._place(self._others, move, where)

    def _place(self, stones: Tensor, move: Tensor, where: Tensor) -> Tensor:
        """Places a stone in some games; returns whether the move was valid, [N]."""
        cells, valid = self._rules.moves(self._own | self._others)
        index = move.unsqueeze(1)
        legal = valid.gather(1, index).squeeze(1)
        cell = cells.gather(1, index)
        stones.scatter_(1, cell, stones.gather(1, cell) | (where & legal).unsqueeze(1))
        return legal

    def _full(self) -> Tensor:
        return (self._own | self._others).all(1)

    def _observe(self, own: Tensor, others: Tensor) -> Tensor:
        """Returns what the player with the stones `own` observes."""
        _, valid = self._rules.moves(own | others)
        return torch.cat((own, others, valid), 1).float()
