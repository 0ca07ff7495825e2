import math
from collections.abc import Callable
from random import Random

import pytest

from leaderboard.evolution import softmax
from leaderboard.evolution.softmax import draw_position, probabilities_of
from leaderboard.evolution.space import declared_values
from leaderboard.evolution.strategy import Child, Fresh, Situation
from leaderboard.ranking.board import Board, fold
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

MakeSpec = Callable[..., TournamentSpec]
MakeCandidate = Callable[..., Candidate]


def board_of(make_candidate: MakeCandidate, *scores: float, error: float = 0.0) -> Board:
    return fold([make_candidate(n, score, error) for n, score in enumerate(scores)], capacity=len(scores)).board


def test_probabilities_are_the_softmax_of_z_scores(make_candidate: MakeCandidate) -> None:
    # Mean 2, population deviation sqrt(2/3): z = 1.2247, 0, -1.2247; exp: 3.4032, 1, 0.2938; sum 4.6970.
    probabilities = probabilities_of(board_of(make_candidate, 1.0, 2.0, 3.0), temperature=1.0)
    assert probabilities == pytest.approx([3.4032 / 4.6970, 1 / 4.6970, 0.2938 / 4.6970], abs=1e-4)


def test_probabilities_do_not_depend_on_the_scale_of_scores(make_candidate: MakeCandidate) -> None:
    small = probabilities_of(board_of(make_candidate, 1.0, 2.0, 5.0), temperature=1.0)
    large = probabilities_of(board_of(make_candidate, -1e6, 0.0, 3e6), temperature=1.0)
    assert small == pytest.approx(large)


def test_equal_scores_are_equally_likely(make_candidate: MakeCandidate) -> None:
    assert probabilities_of(board_of(make_candidate, 4.0, 4.0), temperature=1.0) == [0.5, 0.5]


def test_differences_within_the_noise_are_not_amplified(make_candidate: MakeCandidate) -> None:
    # The deviation of the scores is 1, the noise 10: the lead of 2 is 0.2 deviations.
    probabilities = probabilities_of(board_of(make_candidate, 1.0, 3.0, error=10.0), temperature=1.0)
    assert probabilities[0] == pytest.approx(1 / (1 + math.exp(-0.2)))


def test_a_lower_temperature_prefers_the_best_more(make_candidate: MakeCandidate) -> None:
    board = board_of(make_candidate, 1.0, 2.0, 3.0)
    assert probabilities_of(board, temperature=0.01)[0] == pytest.approx(1.0)
    assert probabilities_of(board, temperature=1000.0) == pytest.approx([1 / 3] * 3, abs=1e-3)


def test_positions_are_drawn_with_their_probabilities() -> None:
    random = Random(0)
    drawn = [draw_position([0.5, 0.25, 0.25], random) for _ in range(4000)]
    assert [drawn.count(position) / 4000 for position in range(3)] == pytest.approx([0.5, 0.25, 0.25], abs=0.03)


def test_a_rounding_gap_belongs_to_the_last_position() -> None:
    class Almost(Random):
        def random(self) -> float:
            return 1 - 2**-53

    assert draw_position([0.3, 0.3, 0.39999], Almost()) == 2


def test_fresh_agents_and_busy_parents_are_handled_as_by_tournament(
    make_spec: MakeSpec, make_candidate: MakeCandidate
) -> None:
    spec = make_spec(evolution={"strategy": "softmax", "initial_agents": 2, "fresh_probability": 0.0})
    board = board_of(make_candidate, 1.0, 9.0)
    agents = {candidate.agent_id: Agent(agent_id=candidate.agent_id, algorithm="ppo") for candidate in board}
    for agent in agents.values():
        agent.hyperparameters.update(declared_values(spec.algorithms["ppo"]))
    busy = {board[0].agent_id: 2}
    assert isinstance(softmax.propose(Situation(spec, 1, board, agents, {}), Random(0)), Fresh)
    for seed in range(10):
        answer = softmax.propose(Situation(spec, 2, board, agents, busy), Random(seed))
        assert isinstance(answer, Child)
        assert answer.parent == board[1]
        assert answer.reason.startswith("drawn with probability 1: a0 (1 ± 0)")
