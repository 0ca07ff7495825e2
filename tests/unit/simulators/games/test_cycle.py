"""A population that turns in a cycle of rock, paper and scissors makes no progress by its ratings."""

from itertools import combinations

import pytest
import torch
from torch import Tensor

from agentpod.roles.opponents import match_results
from leaderboard.ranking.game_history import GameHistory, add_opponents, rate
from leaderboard.ranking.ratings import BUILT_IN, Ratings, Result, circle
from podrace.checkpoint.v1.checkpoint_pb2 import MatchResult
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate, PlanEvaluationResponse
from podrace.tournament.v1.tournament_pb2 import OpponentsSpec
from simulators import make
from simulators.base import AcceptsOpponents

MOVES = ("rock", "paper", "scissors")
GAMES = 32


class Constant:
    """Always chooses the same move."""

    def __init__(self, move: str) -> None:
        self.move = MOVES.index(move)

    def act(self, observation: Tensor, turn: int) -> Tensor:
        return torch.full((len(observation),), self.move)


def played(move: str, opponent: str, name: str) -> MatchResult:
    """Plays GAMES games of a constant move; without an opponent, against the built-in one."""
    game = make("game:rock-paper-scissors", GAMES)
    assert isinstance(game, AcceptsOpponents)
    game.seat_opponents([Constant(opponent)] if opponent else [])
    game.reset(3)
    returns = game.step(torch.full((GAMES,), MOVES.index(move))).reward
    (result,) = match_results(returns, 0, GAMES, [name] if name else [])
    return result


def test_the_ratings_of_the_three_moves_are_equal_and_the_misfit_and_the_circle_show_why() -> None:
    table = []
    for one, other in combinations(MOVES, 2):
        result = played(one, other, other)
        table.append(Result(one, other, result.wins, result.draws, result.losses))
    table += [Result(move, BUILT_IN, GAMES // 4, GAMES // 2, GAMES // 4) for move in MOVES]
    ratings = Ratings(table)
    assert all(abs(ratings.rating(move).value) < 1e-6 for move in MOVES)
    assert ratings.misfit().large
    assert circle(table, "rock") == ["rock", "scissors", "paper"]


def test_best_responses_to_the_last_leader_gain_no_rating_after_the_first_turn() -> None:
    history, settings, scores = GameHistory(), OpponentsSpec(rated=True, matches=6), []
    moves: dict[str, str] = {}
    for number in range(15):
        # Each candidate beats the one before it.
        name, move = f"c{number}", MOVES[number % 3]
        plan = PlanEvaluationResponse()
        add_opponents(plan, settings, (), history, Agent(number=number))
        others = [one.manifest_digest for one in plan.opponents]
        matches = [played(move, "", ""), *(played(move, moves[other], other) for other in others)]
        candidate = Candidate(candidate_id=name, agent_number=number, matches=matches)
        rate(candidate, history)
        history.add(candidate)
        moves[name] = move
        scores.append(candidate.score)
    assert max(scores[6:]) <= max(scores[:6]) + 1e-6
    assert scores[9:12] == pytest.approx(scores[12:15])
