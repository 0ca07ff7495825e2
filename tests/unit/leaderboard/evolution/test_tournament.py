from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest

from leaderboard.evolution import random_search, tournament
from leaderboard.evolution.space import declared_values
from leaderboard.evolution.strategy import Child, Fresh, Situation
from leaderboard.ranking.board import Board, fold
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.tournament.v1.tournament_pb2 import AlgorithmSpec, TournamentSpec

MakeSpec = Callable[..., TournamentSpec]
MakeCandidate = Callable[..., Candidate]


@pytest.fixture
def board(make_candidate: MakeCandidate) -> Board:
    """Agents 0 to 5; the higher the number, the better."""
    return fold([make_candidate(number, 10.0 * number, 1.0) for number in range(6)], capacity=6).board


def situation(
    spec: TournamentSpec, board: Board, number: int = 6, children: Mapping[str, int] | None = None
) -> Situation:
    agents = {candidate.agent_id: Agent(agent_id=candidate.agent_id, algorithm="ppo") for candidate in board}
    for agent in agents.values():
        agent.hyperparameters.update(declared_values(spec.algorithms["ppo"]))
    return Situation(spec, number, board, agents, children or {})


def evolution(**changes: Any) -> dict[str, Any]:
    return {"initial_agents": 2, "fresh_probability": 0.0} | changes


def child(answer: Fresh | Child) -> Child:
    assert isinstance(answer, Child)
    return answer


def test_the_first_agents_are_fresh_with_any_board(make_spec: MakeSpec, board: Board) -> None:
    spec = make_spec(evolution=evolution(initial_agents=4))
    answers = [tournament.propose(situation(spec, board, number), Random(0)) for number in range(5)]
    assert [isinstance(answer, Fresh) for answer in answers] == [True] * 4 + [False]


def test_the_first_turn_of_an_algorithm_is_fresh_even_after_the_first_agents(make_spec: MakeSpec, board: Board) -> None:
    spec = make_spec(evolution=evolution(initial_agents=1))
    spec.algorithms["sac"].CopyFrom(AlgorithmSpec(ratio=1.0))
    answer = tournament.propose(situation(spec, board, number=1), Random(0))
    assert answer == Fresh("the first turn of sac")
    child(tournament.propose(situation(spec, board, number=3), Random(0)))


def test_without_candidates_the_next_agent_is_fresh(make_spec: MakeSpec) -> None:
    answer = tournament.propose(situation(make_spec(evolution=evolution()), ()), Random(0))
    assert answer == Fresh("no candidate on the board may have another child now")


def test_the_parent_is_the_best_of_those_drawn(make_spec: MakeSpec, board: Board) -> None:
    draws_all = make_spec(evolution=evolution(tournament_size=6))
    for seed in range(20):
        assert child(tournament.propose(situation(draws_all, board), Random(seed))).parent.agent_number == 5


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_probability_of_a_parent_follows_from_its_rank(make_spec: MakeSpec, board: Board, size: int) -> None:
    spec, random = make_spec(evolution=evolution(tournament_size=size)), Random(1)
    shown = situation(spec, board)
    parents = [child(tournament.propose(shown, random)).parent.agent_number for _ in range(3000)]
    # The best of k out of n is the r-th by rank with probability C(n - r, k - 1) / C(n, k).
    expected = {
        1: [1 / 6] * 6,
        2: [5 / 15, 4 / 15, 3 / 15, 2 / 15, 1 / 15, 0.0],
        3: [10 / 20, 6 / 20, 3 / 20, 1 / 20, 0.0, 0.0],
    }[size]
    assert [parents.count(5 - rank) / 3000 for rank in range(6)] == pytest.approx(expected, abs=0.03)


def test_a_parent_with_the_maximum_of_unfinished_children_is_skipped(make_spec: MakeSpec, board: Board) -> None:
    spec = make_spec(evolution=evolution(tournament_size=6, maximum_unfinished_children=2))
    best, second = board[0].agent_id, board[1].agent_id
    answer = tournament.propose(situation(spec, board, children={best: 2, second: 1}), Random(0))
    assert child(answer).parent.agent_id == second
    busy = {candidate.agent_id: 2 for candidate in board}
    assert isinstance(tournament.propose(situation(spec, board, children=busy), Random(0)), Fresh)


def test_fresh_agents_are_drawn_with_the_configured_probability(make_spec: MakeSpec, board: Board) -> None:
    spec, random = make_spec(evolution=evolution(fresh_probability=0.25)), Random(0)
    shown = situation(spec, board)
    fresh = sum(isinstance(tournament.propose(shown, random), Fresh) for _ in range(2000))
    assert fresh / 2000 == pytest.approx(0.25, abs=0.03)


def test_the_reason_names_the_parent_its_score_and_what_changed(make_spec: MakeSpec, board: Board) -> None:
    spec = make_spec(
        algorithms={
            "ppo": {
                "hyperparameters": {
                    "learning_rate": {"low": 1e-4, "high": 1e-2, "value": 1e-3},
                    "gae_lambda": 0.95,
                    "clip_range": 0.2,
                    "entropy_coefficient": 0.01,
                }
            }
        },
        evolution=evolution(tournament_size=6, mutation_probability=1.0, resample_probability=0.0, mutation_factor=2.0),
    )
    answer = child(tournament.propose(situation(spec, board), Random(0)))
    assert answer.reason in (
        "best of 6 drawn: a5 (50 ± 1); learning_rate 0.001 -> 0.002",
        "best of 6 drawn: a5 (50 ± 1); learning_rate 0.001 -> 0.0005",
    )
    spec.evolution.mutation_probability = 0.0
    clone = child(tournament.propose(situation(spec, board), Random(0)))
    assert clone.reason == "best of 6 drawn: a5 (50 ± 1); hyperparameters unchanged"


def test_random_search_never_has_parents(make_spec: MakeSpec, board: Board) -> None:
    spec = make_spec(evolution=evolution(strategy="random-search"))
    for number in range(20):
        assert isinstance(random_search.propose(situation(spec, board, number), Random(number)), Fresh)


def test_all_starts_are_tried_before_there_are_children(make_race: Callable[..., Any]) -> None:
    starts = [{"learning_rate": 1e-4}, {"learning_rate": 1e-3}, {"learning_rate": 1e-2}]
    searched = {"learning_rate": {"low": 1e-5, "high": 1e-1}}
    evolution = {"initial_agents": 1, "fresh_probability": 0.0}
    race = make_race(evolution, algorithms={"ppo": {"hyperparameters": searched, "starts": starts}}).run(6)
    agents = [one.agent for one in race.generations]
    assert [agent.hyperparameters["learning_rate"] for agent in agents[:3]] == [1e-4, 1e-3, 1e-2]
    assert agents[2].reason == "fresh, starts[2] of ppo is next; values of starts[2]"
    assert not any("starts[" in agent.reason for agent in agents[3:])
