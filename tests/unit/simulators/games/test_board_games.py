"""Games follow their rules in every lane, the scripted player is as described, and policies can be seated."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from podrace.errors import InvalidArgument
from simulators import Step, make
from simulators.base import AcceptsOpponents, Simulator
from simulators.games.board_game import BOARDS
from simulators.games.rules import Rules
from simulators.games.seats import Seats

TIC, FOUR = "game:tic-tac-toe", "game:connect-four"


class Listed:
    """Plays given moves, one a question, in all lanes; remembers what it observed."""

    def __init__(self, *moves: int) -> None:
        self._moves, self.seen, self.turns = list(moves), list[Tensor](), list[int]()

    def act(self, observation: Tensor, turn: int) -> Tensor:
        self.seen.append(observation.clone())
        self.turns.append(turn)
        return torch.full((len(observation),), self._moves.pop(0))


class Uniform:
    """Moves at random among the valid moves."""

    def act(self, observation: Tensor, turn: int) -> Tensor:
        noise = torch.rand(len(observation), 7, generator=torch.Generator().manual_seed(turn))
        return (noise * observation[:, -7:]).argmax(1)


def opposed(id: str, count: int, opponents: Sequence[Listed | Uniform], **options: object) -> Simulator:
    game = make(id, count, options)
    assert isinstance(game, AcceptsOpponents)
    game.seat_opponents(opponents)
    return game


def play(game: Simulator, *moves: int) -> Step:
    for move in moves:
        step = game.step(torch.full((game.count,), move))
    return step


@pytest.mark.parametrize(("id", "lines"), [(TIC, 8), (FOUR, 69)])
def test_a_board_has_all_its_winning_lines(id: str, lines: int) -> None:
    assert BOARDS[id].lines.shape[1] == lines
    assert bool((BOARDS[id].lines.sum(0) == BOARDS[id].length).all())


def test_a_line_wins_and_the_game_begins_again_with_the_other_player() -> None:
    game = opposed(TIC, 1, [Listed(3, 4, 8)], random_moves=0)
    game.reset(0)
    step = play(game, 0, 1, 2)
    assert (step.reward.tolist(), step.terminated.tolist()) == ([1.0], [True])
    # The opponent began the next game with its third move.
    assert step.observation[0, 9:18].nonzero().flatten().tolist() == [8]


def test_the_opponent_sees_its_own_stones_first_and_can_win() -> None:
    # Its fourth move begins the next game.
    opponent = Listed(3, 4, 5, 0)
    game = opposed(TIC, 1, [opponent], random_moves=0)
    game.reset(0)
    step = play(game, 0, 1, 8)
    assert step.reward.tolist() == [-1.0]
    assert opponent.seen[1][0, :9].nonzero().flatten().tolist() == [3]
    assert opponent.seen[1][0, 9:18].nonzero().flatten().tolist() == [0, 1]


def test_a_full_board_is_a_draw() -> None:
    game = opposed(TIC, 1, [Listed(1, 4, 3, 8, 0)], random_moves=0)
    game.reset(0)
    step = play(game, 0, 2, 7, 5, 6)
    assert (step.reward.tolist(), step.terminated.tolist()) == ([0.0], [True])
    assert game.report().episode_metrics == {"won": [0.0], "drawn": [1.0], "lost": [0.0]}


def test_the_report_is_that_of_the_first_game_of_a_lane() -> None:
    game = opposed(TIC, 1, [Listed(3, 4, 8)], random_moves=0)
    game.reset(0)
    play(game, 0, 1)
    assert all(math.isnan(value) for (value,) in game.report().episode_metrics.values())
    play(game, 2)
    assert game.report().episode_metrics == {"won": [1.0], "drawn": [0.0], "lost": [0.0]}
    # The opponent has begun the second game there, so this loses.
    assert play(game, 8).reward.tolist() == [-1.0]
    assert game.report().episode_metrics == {"won": [1.0], "drawn": [0.0], "lost": [0.0]}


@pytest.mark.parametrize(("lanes", "opponents"), [(8, 6), (6, 6), (16, 6), (64, 6), (8, 1), (7, 3)])
def test_the_agent_begins_half_of_the_games_against_each_opponent(lanes: int, opponents: int) -> None:
    seats = Seats(lanes, "cpu", [Listed(0)] * opponents)
    even, odd = seats.begins_first(4), seats.begins_first(7)
    assert bool((even ^ odd).all()), "over even and odd seeds it begins once in every lane"
    for seat in range(opponents):
        own = even[seat::opponents]
        assert abs(int(own.sum()) - int((~own).sum())) <= 1
    assert abs(int(even.sum()) - int(odd.sum())) <= max(1, lanes % opponents)


def test_stones_fall_and_a_full_column_is_masked() -> None:
    game = opposed(FOUR, 1, [Listed(0, 0, 0)], random_moves=0)
    game.reset(0)
    step = play(game, 0, 0, 0)
    assert step.observation[0, :42].nonzero().flatten().tolist() == [0, 14, 28]
    assert step.observation[0, 42:84].nonzero().flatten().tolist() == [7, 21, 35]
    assert step.observation[0, 84:].tolist() == [0, 1, 1, 1, 1, 1, 1]


def test_a_move_that_is_not_valid_loses() -> None:
    game = opposed(TIC, 1, [Listed(1, 8)], random_moves=0)
    game.reset(0)
    step = play(game, 0, 0)
    assert (step.reward.tolist(), step.terminated.tolist()) == ([-1.0], [True])


def test_the_agent_begins_half_of_the_first_games_against_each_opponent() -> None:
    game = opposed(TIC, 8, [Listed(4), Listed(5)], random_moves=0)
    first = game.reset(0)
    assert first[:, 9:18].sum(1).tolist() == [0, 1, 1, 0, 0, 1, 1, 0]
    assert [row.nonzero().flatten().tolist() for row in first[[2, 1], 9:18]] == [[4], [5]]


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        # Its own line first, then the line of the other player.
        ([3, 4], [0, 1], 5),
        ([3, 8], [0, 1], 2),
    ],
)
def test_the_scripted_player_wins_or_prevents_a_win(own: list[int], others: list[int], expected: int) -> None:
    game = make(TIC, 1, {"random_moves": 0})
    for seed in range(5):
        game.reset(seed)
        game._others[0, own], game._own[0, others] = True, True  # type: ignore[attr-defined]
        step = play(game, 6)
        placed = step.final_observation if step.terminated[0] else step.observation
        assert bool(placed[0, 9 + expected])


def test_random_moves_differ_between_lanes_and_repeat_with_the_seed() -> None:
    game = make(FOUR, 64, {"random_moves": 2})
    first = game.reset(1).clone()
    assert len(first.unique(dim=0)) > 20
    assert torch.equal(game.reset(1), first)
    # The agent is to move in every lane: as many stones as random moves, or one more of the opponent that was to move.
    assert set(first[:, :84].sum(1).tolist()) == {2.0, 3.0}


def test_the_first_game_of_a_lane_does_not_depend_on_the_moves_of_other_lanes() -> None:
    game = opposed(FOUR, 4, [Uniform()], random_moves=2)
    results = []
    for others in (3, 6):
        game.reset(5)
        steps = [game.step(torch.tensor([2, others, others, others])) for _ in range(3)]
        results.append(torch.stack([step.observation[0] for step in steps]))
    assert torch.equal(*results)


def test_thousands_of_random_games_end_with_one_result_each() -> None:
    game = opposed(FOUR, 512, [Uniform()])
    observation, generator = game.reset(3), torch.Generator().manual_seed(1)
    totals = torch.zeros(3)
    for _ in range(60):
        noise = torch.rand(512, 7, generator=generator)
        step = game.step((noise * observation[:, -7:]).argmax(1))
        observation = step.observation
        assert bool((step.reward[~step.terminated] == 0).all())
        ended = step.reward[step.terminated]
        totals += torch.tensor([(ended > 0).sum(), (ended == 0).sum(), (ended < 0).sum()])
        # The mover has as many stones as the other player, or one less.
        counts = observation[:, 42:84].sum(1) - observation[:, :42].sum(1)
        assert set(counts.tolist()) <= {0.0, 1.0}
    won, _, lost = (totals / totals.sum()).tolist()
    # Two equal players, each beginning half of the games.
    assert abs(won - lost) < 0.1


def test_winning_cells_are_those_that_complete_a_line() -> None:
    rules = Rules(1, 5, 3, gravity=False)
    own = torch.tensor([[True, True, False, False, False], [False, True, False, True, False]])
    others = torch.tensor([[False] * 5, [False, False, True, False, False]])
    assert rules.completing(own, others, rules.lines).tolist() == [[False, False, True, False, False], [False] * 5]


@pytest.mark.parametrize(
    ("id", "options", "message"),
    [
        (TIC, {"opponent": "perfect"}, "option 'opponent' must be scripted or random, not 'perfect'"),
        (TIC, {"random_moves": 4}, r"option 'random_moves' must be in \[0, 3\], not 4"),
        ("game:rock-paper-scissors", {"opponent": "lizard"}, "must be one of random, rock, paper, scissors"),
    ],
)
def test_options_that_cannot_be_used_are_refused(id: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        make(id, 1, options)


@pytest.mark.parametrize("move", range(3))
def test_each_choice_of_rock_paper_scissors_beats_one_other(move: int) -> None:
    game = make("game:rock-paper-scissors", 3)
    assert isinstance(game, AcceptsOpponents)
    game.seat_opponents([Listed(0), Listed(1), Listed(2)])
    game.reset(0)
    step = game.step(torch.full((3,), move))
    assert sorted(step.reward.tolist()) == [-1.0, 0.0, 1.0]
    assert step.reward[(move - 1) % 3] == 1.0
    assert bool(step.terminated.all())
