"""Simulators of zero-sum games of two players, in which the opponent is a part of the environment.

A lane is the agent's side of one game. A step is the move of the agent and the answer of its opponent, so a game is an
ordinary environment: every algorithm for discrete actions with masks can learn it. Observations are those of the player
to move (own stones first), so one policy can play both sides. The opponent is a player that the simulator contains, or
policies that are seated with `seat_opponents` (`simulators.base.AcceptsOpponents`).

* A win returns 1, a loss -1, a draw 0, at the end of a game; all other rewards are 0.
* The agent begins every other game of a lane. Neighbouring lanes with the same opponent differ in who begins first, and
  so do an even and an odd seed.
"""

from collections.abc import Mapping

from simulators.base import Simulator
from simulators.games.board_game import BOARDS, make_board_game
from simulators.games.table_game import make_table_game


def make(id: str, count: int, options: Mapping[str, object], device: str) -> Simulator:
    """Makes `count` games of `id`; raises InvalidArgument if an option cannot be used."""
    made = make_board_game if id in BOARDS else make_table_game
    simulator: Simulator = made(id, count, options, device)
    return simulator
