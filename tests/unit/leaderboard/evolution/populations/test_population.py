"""What all strategies with seats have in common."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from known_strategies import WITH_SEATS, settings_of

from leaderboard.evolution import STRATEGIES
from leaderboard.evolution.strategy import Child, Fresh

MakePopulation = Callable[..., Any]
Row = Callable[..., Any]
pytestmark = pytest.mark.parametrize("strategy", WITH_SEATS)


def evolution(strategy: str, size: int = 3) -> dict[str, Any]:
    return {"strategy": strategy, "population_size": size}


def test_a_new_seat_is_taken_by_a_fresh_agent(make_population: MakePopulation, row: Row, strategy: str) -> None:
    situation = make_population([row(0, 1.0), row(1, 1.0)], evolution=evolution(strategy)).situation()
    assert STRATEGIES[strategy].propose(situation, Random(0)) == Fresh("seat 2 is new", "ppo", 2)


@pytest.mark.long
def test_seats_have_the_ratio_of_the_specification(make_race: Callable[..., Any], strategy: str) -> None:
    mix = {"ppo": {"ratio": 2}, "a2c": {"ratio": 1}}
    race = make_race(evolution(strategy, 6), algorithms=mix, pods=2, slow={"a2c": 7}).run(42)
    agents = [generation.agent for generation in race.generations]
    assert {agent.seat: agent.algorithm for agent in agents[:6]} == {
        0: "ppo",
        1: "a2c",
        2: "ppo",
        3: "ppo",
        4: "a2c",
        5: "ppo",
    }
    # However slow one of them is: the seat that has had fewer agents comes first.
    for count in range(6, 43):
        assert sum(agent.algorithm == "a2c" for agent in agents[:count]) == pytest.approx(count / 3, abs=1.5)


def test_a_failed_agent_is_replaced_by_the_best_of_its_algorithm(
    make_population: MakePopulation, row: Row, strategy: str
) -> None:
    mix = {"ppo": {}, "a2c": {}}
    rows = [
        row(0, 90.0, failed=True),
        row(1, 99.0, algorithm="a2c"),
        row(2, 50.0),
        row(3, 10.0),
    ]
    population = make_population(rows, evolution=evolution(strategy, 4), algorithms=mix)
    answer = STRATEGIES[strategy].propose(population.situation(), Random(0))
    assert isinstance(answer, Child)
    assert answer.parent == population.newest(2)
    assert answer.reason.startswith("seat 0: a0 failed; continues from the best, a2 (50 ± 0)")


def test_a_failed_agent_without_peers_continues_from_its_last_checkpoint_with_other_hyperparameters(
    make_population: MakePopulation, row: Row, strategy: str
) -> None:
    sections = {"evolution": evolution(strategy, 1) | {"mutation_probability": 1.0}}
    population = make_population([row(0, 90.0, failed=True)], **sections)
    answer = STRATEGIES[strategy].propose(population.situation(), Random(0))
    assert isinstance(answer, Child)
    assert answer.parent == population.newest(0)
    assert answer.hyperparameters != population.situation().values_of(answer.parent)
    assert answer.reason.startswith("seat 0: a0 failed; no other agent was scored, continues from a0 (90 ± 0)")


def test_without_any_score_a_fresh_agent_of_the_same_algorithm_takes_the_seat(
    make_population: MakePopulation, row: Row, strategy: str
) -> None:
    mix = {"ppo": {}, "a2c": {}}
    rows = [row(0, algorithm="a2c"), row(1, 5.0)]
    situation = make_population(rows, evolution=evolution(strategy, 2), algorithms=mix).situation()
    answer = STRATEGIES[strategy].propose(situation, Random(0))
    assert answer == Fresh("seat 0: no agent of a2c was scored", "a2c", 0)


def test_the_seat_of_an_algorithm_that_left_goes_to_the_best_of_another(
    make_population: MakePopulation, row: Row, strategy: str
) -> None:
    mix = {"ppo": {}, "a2c": {}}
    rows = [row(0, 99.0, algorithm="a2c"), row(1, 5.0), row(2, 6.0, algorithm="a2c"), row(3, 7.0)]
    population = make_population(rows, evolution=evolution(strategy, 4), algorithms=mix)
    answer = STRATEGIES[strategy].propose(population.situation(left={"a2c": "it is bad"}), Random(0))
    assert isinstance(answer, Child)
    assert answer.parent == population.newest(3)
    assert answer.reason.startswith("seat 0: a2c is eliminated; continues from the best, a3 (7 ± 0)")


def test_the_best_is_never_replaced(make_population: MakePopulation, row: Row, strategy: str) -> None:
    for errors in (0.0, 3.0):
        rows = [row(0, 50.0, errors), *(row(seat, 49.0 - seat, errors) for seat in range(1, 8))]
        population = make_population(rows, evolution=settings_of(strategy, population_size=8, replaced_share=1.0))
        for seed in range(20):
            answer = STRATEGIES[strategy].propose(population.situation(), Random(seed))
            assert isinstance(answer, Child)
            assert answer.parent == population.newest(0)
            assert "hyperparameters unchanged" in answer.reason
