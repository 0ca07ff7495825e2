from collections.abc import Callable
from random import Random
from typing import Any

from leaderboard.evolution.populations import generational
from leaderboard.evolution.strategy import Child, Fresh
from leaderboard.ranking.board import Board
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate

MakePopulation = Callable[..., Any]
MakeCandidate = Callable[..., Candidate]
Row = Callable[..., Any]
GENERATIONAL = {"strategy": "generational", "population_size": 3}


def test_the_first_generation_is_fresh(make_population: MakePopulation, row: Row) -> None:
    for rows in ([], [row(0, 9.0)], [row(0, 9.0), row(1, 8.0)]):
        answer = generational.propose(make_population(rows, evolution=GENERATIONAL).situation(), Random(0))
        assert answer == Fresh("of the first generation", "ppo", len(rows))


def test_a_later_generation_restarts_from_the_best_of_the_earlier_ones(
    make_population: MakePopulation, row: Row
) -> None:
    rows = [row(0, 5.0), row(1, 9.0), row(2, 7.0)]
    population = make_population(rows, evolution=GENERATIONAL)
    answer = generational.propose(population.situation(), Random(0))
    assert isinstance(answer, Child)
    assert answer.parent == population.newest(1)
    assert answer.seat == 0
    assert answer.reason == "generation 1 restarts from the best ppo, a1 (9 ± 0); hyperparameters unchanged"


def test_scores_of_the_same_generation_do_not_count(make_population: MakePopulation, row: Row) -> None:
    rows = [row(0, 5.0), row(1, 9.0), row(2, 7.0), row(0, 100.0)]
    population = make_population(rows, evolution=GENERATIONAL)
    answer = generational.propose(population.situation(), Random(0))
    assert isinstance(answer, Child)
    assert answer.parent.agent_number == 1
    rows += [row(1, 8.0), row(2, 8.0)]
    answer = generational.propose(make_population(rows, evolution=GENERATIONAL).situation(), Random(0))
    assert isinstance(answer, Child)
    assert answer.parent.agent_number == 3


def test_the_best_candidate_on_the_board_counts_after_its_agent_trained_on(
    make_population: MakePopulation, make_candidate: MakeCandidate, row: Row
) -> None:
    population = make_population([row(0, 5.0), row(1, 6.0), row(2, 7.0)], evolution=GENERATIONAL)
    situation = population.situation()
    board: Board = (make_candidate(0, 50.0, candidate_id="earlier"),)
    answer = generational.propose(type(situation)(**vars(situation) | {"board": board}), Random(0))
    assert isinstance(answer, Child)
    assert answer.parent.candidate_id == "earlier"


def test_late_agents_are_not_waited_for(make_population: MakePopulation, row: Row) -> None:
    rows = [row(0, busy=True), row(1, 9.0), row(2, busy=True)]
    answer = generational.propose(make_population(rows, evolution=GENERATIONAL).situation(), Random(0))
    assert isinstance(answer, Child)
    assert answer.parent.agent_number == 1


def test_all_children_except_the_first_mutate(make_race: Callable[..., Any]) -> None:
    race = make_race(GENERATIONAL | {"mutation_probability": 1.0}, pods=1).run(9)
    made = [generation.agent for generation in race.generations]
    values = {agent.agent_id: agent.hyperparameters for agent in made}
    for begin in (3, 6):
        same = [agent.hyperparameters == values[agent.parent_agent_ids[0]] for agent in made[begin : begin + 3]]
        assert same == [True, False, False]


def test_every_generation_has_the_ratio_and_restarts_within_the_algorithm(
    make_population: MakePopulation, row: Row
) -> None:
    mix = {"ppo": {"ratio": 2}, "a2c": {"ratio": 1}}
    algorithms = ["ppo", "a2c", "ppo"]
    rows = [row(seat, float(seat), algorithm=name) for seat, name in enumerate(algorithms)]
    for seat, name in enumerate(algorithms):
        situation = make_population(rows, evolution=GENERATIONAL, algorithms=mix).situation()
        answer = generational.propose(situation, Random(0))
        assert isinstance(answer, Child)
        assert (answer.seat, answer.parent.algorithm) == (seat, name)
        rows.append(row(seat, busy=True, algorithm=name))
    without = [row(0, 1.0), row(1, algorithm="a2c"), row(2, 1.0), row(0, 1.0)]
    situation = make_population(without, evolution=GENERATIONAL, algorithms=mix).situation()
    answer = generational.propose(situation, Random(0))
    assert answer == Fresh("of generation 1, before which no agent of a2c was scored", "a2c", 1)
