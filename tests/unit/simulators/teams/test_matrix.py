"""The tables of the matrix games are those of the papers, and both agents share what the team receives."""

import itertools

import pytest
import torch
from torch import Tensor

from simulators import Step, make


def joint(*actions: int) -> Tensor:
    return torch.tensor(actions)


def team(step: Step) -> float:
    assert step.reward[0] == step.reward[1]
    return float(step.reward.sum())


@pytest.mark.parametrize(
    ("id", "table"),
    [
        ("matrix:nonmonotonic", [[8, -12, -12], [-12, 0, 0], [-12, 0, 0]]),
        ("matrix:climbing", [[11, -30, 0], [-30, 7, 6], [0, 0, 5]]),
    ],
)
def test_a_game_of_one_step_pays_by_its_table(id: str, table: list[list[float]]) -> None:
    game = make(id, 1)
    game.reset(0)
    for first, second in itertools.product(range(3), repeat=2):
        step = game.step(joint(first, second))
        assert (team(step), step.terminated.tolist()) == (table[first][second], [True, True])


@pytest.mark.parametrize(("first", "table"), [(0, [[7, 7], [7, 7]]), (1, [[0, 1], [1, 8]])])
def test_the_first_agent_selects_the_table_of_the_two_step_game(first: int, table: list[list[float]]) -> None:
    game = make("matrix:two-step", 1)
    begun = game.reset(0).clone()
    # Where the game is, then which agent it is.
    assert begun.tolist() == [[1, 0, 0, 1, 0], [1, 0, 0, 0, 1]]
    for ignored, own, other in itertools.product(range(2), repeat=3):
        step = game.step(joint(first, ignored))
        assert (team(step), step.terminated.any()) == (0.0, False)
        assert step.observation[:, 1 + first].tolist() == [1, 1]
        step = game.step(joint(own, other))
        assert (team(step), bool(step.terminated.all())) == (table[own][other], True)
        assert torch.equal(step.observation, begun)
