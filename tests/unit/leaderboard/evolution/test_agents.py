import itertools
from collections.abc import Callable
from typing import Any

import pytest

from leaderboard.evolution.agents import make, round_begin, trials_of, visible_board
from leaderboard.evolution.fresh import draw, turn_of
from leaderboard.evolution.space import declared_values
from leaderboard.ranking.board import fold
from leaderboard.seeding import agent_seed
from podrace.leaderboard.v1.leaderboard_pb2 import (
    ORIGIN_CLONE,
    ORIGIN_FRESH,
    ORIGIN_MUTATION,
    Agent,
    Candidate,
)
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

MakeSpec = Callable[..., TournamentSpec]
MakeCandidate = Callable[..., Candidate]


def parent_of(spec: TournamentSpec, candidate: Candidate) -> dict[str, Agent]:
    parent = Agent(agent_id=candidate.agent_id, algorithm="ppo")
    parent.hyperparameters.update(declared_values(spec.algorithms["ppo"]))
    return {parent.agent_id: parent}


def evolution(**changes: Any) -> dict[str, Any]:
    return {"initial_agents": 1, "fresh_probability": 0.0} | changes


def test_a_fresh_agent_has_no_parents_and_the_values_of_its_number(make_spec: MakeSpec) -> None:
    spec = make_spec(seed=3)
    agent, depth = make("t", spec, 1, (), {}, {})
    assert (agent.agent_id, agent.number, agent.origin, depth) == ("t-a1", 1, ORIGIN_FRESH, 0)
    assert agent.seed == agent_seed(3, 1)
    assert dict(agent.hyperparameters.items())["learning_rate"] == draw(spec, 1)[1]["learning_rate"]
    assert not agent.parent_agent_ids
    assert not agent.HasField("starting_checkpoint")
    assert agent.reason == "fresh, one of the first 2; searched values drawn"


def test_the_hyperparameters_of_a_fresh_agent_depend_only_on_its_number(
    make_spec: MakeSpec, make_candidate: MakeCandidate
) -> None:
    spec = make_spec(evolution=evolution(fresh_probability=1.0))
    board = (make_candidate(0, 5.0),)
    alone = make("t", spec, 7, (), {}, {})[0]
    crowded = make("t", spec, 7, board, parent_of(spec, board[0]), {board[0].agent_id: 1})[0]
    assert alone.hyperparameters == crowded.hyperparameters
    assert alone.seed == crowded.seed


def test_a_child_starts_from_its_parents_candidate_one_generation_deeper(
    make_spec: MakeSpec, make_candidate: MakeCandidate
) -> None:
    spec = make_spec(evolution=evolution(mutation_probability=1.0))
    board = (make_candidate(0, 5.0, depth=4),)
    agents = parent_of(spec, board[0])
    agent, depth = make("t", spec, 1, board, agents, {})
    assert (agent.origin, depth) == (ORIGIN_MUTATION, 5)
    assert agent.algorithm == "ppo"
    assert list(agent.parent_agent_ids) == [board[0].agent_id]
    assert agent.starting_checkpoint.agent_id == board[0].agent_id
    assert agent.starting_checkpoint.manifest_digest == board[0].candidate_id
    assert agent.hyperparameters != agents[board[0].agent_id].hyperparameters


def test_a_child_with_its_parents_hyperparameters_is_a_clone_with_another_seed(
    make_spec: MakeSpec, make_candidate: MakeCandidate
) -> None:
    spec = make_spec(evolution=evolution(mutation_probability=0.0))
    board = (make_candidate(0, 5.0),)
    agents = parent_of(spec, board[0])
    agent, _ = make("t", spec, 1, board, agents, {})
    assert agent.origin == ORIGIN_CLONE
    assert agent.hyperparameters == agents[board[0].agent_id].hyperparameters
    assert agent.seed == agent_seed(spec.seed, 1)


def test_a_fresh_agent_has_the_algorithm_of_its_seat(
    make_population: Callable[..., Any], row: Callable[..., Any]
) -> None:
    population = make_population(
        [row(0, algorithm="a2c")],
        algorithms={"ppo": {}, "a2c": {}},
        evolution={"strategy": "truncation", "population_size": 1},
    )
    assert turn_of(population.spec, 1).algorithm == "ppo"
    agent, depth = make("t", population.spec, 1, (), {}, {}, population.history)
    assert (agent.algorithm, agent.seat, agent.origin, depth) == ("a2c", 0, ORIGIN_FRESH, 0)
    assert agent.hyperparameters == make("t", population.spec, 1, (), {}, {}, population.history)[0].hyperparameters
    assert agent.reason == "fresh, seat 0: no agent of a2c was scored; searched values drawn"


def test_a_parent_never_exceeds_the_maximum_of_unfinished_children(
    make_spec: MakeSpec, make_candidate: MakeCandidate
) -> None:
    spec = make_spec(evolution=evolution(maximum_unfinished_children=1))
    board = (make_candidate(0, 5.0),)
    agents = parent_of(spec, board[0])
    assert make("t", spec, 2, board, agents, {})[0].parent_agent_ids
    assert make("t", spec, 2, board, agents, {board[0].agent_id: 1})[0].origin == ORIGIN_FRESH


def test_an_asynchronous_generator_sees_the_current_board(make_spec: MakeSpec, make_candidate: MakeCandidate) -> None:
    board = fold([make_candidate(5, 1.0), make_candidate(9, 2.0)], capacity=4).board
    assert visible_board(make_spec(), 1, board) == board


def test_a_synchronous_generator_sees_only_earlier_rounds(make_spec: MakeSpec, make_candidate: MakeCandidate) -> None:
    spec = make_spec(synchronous=True, pool={"maximum_pods": 3})
    submissions = [make_candidate(number, float(number), sequence=10 - number) for number in range(8)]
    assert [round_begin(spec, number) for number in range(7)] == [0, 0, 0, 3, 3, 3, 6]
    seen = [[candidate.agent_number for candidate in visible_board(spec, n, submissions)] for n in (2, 3, 5, 6)]
    assert seen == [[], [2, 1, 0], [2, 1, 0], [5, 4, 3, 2, 1, 0]]


def test_a_synchronous_generator_sees_the_same_board_for_any_order_of_arrival(
    make_spec: MakeSpec, make_candidate: MakeCandidate
) -> None:
    spec = make_spec(synchronous=True, pool={"maximum_pods": 3}, evolution=evolution(board_capacity=2))
    submissions = [make_candidate(0, 100.0), make_candidate(1, 10.0, 3.0), make_candidate(2, 11.0, 3.0)]
    for arrived in itertools.permutations(submissions):
        assert [candidate.agent_number for candidate in visible_board(spec, 3, arrived)] == [0, 1]


def test_fresh_agents_of_a_race_have_the_values_of_all_starts_in_order(make_race: Callable[..., Any]) -> None:
    starts = [{"learning_rate": 1e-4}, {"learning_rate": 1e-3}, {"learning_rate": 1e-2}]
    searched = {"learning_rate": {"low": 1e-5, "high": 1e-1}}
    algorithms = {"ppo": {"starts": starts, "hyperparameters": searched}}
    race = make_race({"strategy": "incumbent"}, algorithms=algorithms, pods=2).run(12)
    fresh = [one.agent for one in race.generations if one.agent.origin == ORIGIN_FRESH]
    assert [agent.hyperparameters["learning_rate"] for agent in fresh[:3]] == [1e-4, 1e-3, 1e-2]
    assert fresh[3].hyperparameters["learning_rate"] == 1e-4, "another seed of the founder"
    assert all("starts[" not in agent.reason for agent in fresh[4:])
    assert {one.agent.origin for one in race.generations} > {ORIGIN_FRESH}


@pytest.mark.parametrize("failed", [False, True])
def test_a_lost_founder_takes_no_start_with_it(make_spec: MakeSpec, failed: bool) -> None:
    starts = [{"learning_rate": 1e-4}, {"learning_rate": 1e-3}]
    spec = make_spec(algorithms={"ppo": {"starts": starts}}, evolution={"strategy": "incumbent"})
    trials, agents = trials_of(spec), {}
    assert trials is not None
    for number in range(3):
        made = make("race-abc123", spec, number, (), agents, {}, trials=trials)
        assert isinstance(made, tuple)
        agents[made[0].agent_id] = made[0]
        trials.handed_out(made[0])
        if failed and number == 0:
            trials.ended(made[0].agent_id, failed=True)
    rates = [agent.hyperparameters["learning_rate"] for agent in agents.values()]
    assert rates[failed : failed + 2] == [1e-4, 1e-3]
    assert "; values of starts[1]" in list(agents.values())[failed + 1].reason
