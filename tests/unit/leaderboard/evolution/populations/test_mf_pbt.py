"""Sub-populations: when they evolve, who is replaced within one, and what passes between them."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from leaderboard.evolution.populations import mf_pbt
from leaderboard.evolution.populations.mf_pbt import group_of, is_due, period_of
from leaderboard.evolution.strategy import Child
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec

MakePopulation = Callable[..., Any]
Row = Callable[..., Any]
SEARCHED = {"learning_rate": {"low": 1e-5, "high": 1e-1, "value": 1e-3}, "hidden_sizes": {"choices": [[8], [16]]}}


@pytest.fixture
def make_pair(make_population: MakePopulation, row: Row) -> Callable[..., Any]:
    """Populations of eight: seats 0 to 3 evolve every other round, seats 4 to 7 at every turn. Seat 0 or 4 is next.

    Each seat has had an agent in every round. All are scored 0 except those of the last round. Learning rates are
    0.001 times the number of the seat plus one.
    """

    def make(scores: Sequence[float], rounds: int = 2, next_seat: int = 0, error: float = 0.0, **changes: Any) -> Any:
        def values(seat: int) -> dict[str, Any]:
            return {"learning_rate": 1e-3 * (seat + 1), "hidden_sizes": changes.get("sizes", {}).get(seat, [8])}

        order = [*range(next_seat, 8), *range(next_seat)]
        rows = [row(seat, 0.0, values=values(seat)) for _ in range(rounds - 1) for seat in range(8)]
        rows += [row(seat, scores[seat], error, values=values(seat)) for seat in order]
        evolution = {"strategy": "mf-pbt", "population_size": 8, "frequency_factor": 2}
        algorithms = {"ppo": {"hyperparameters": SEARCHED}}
        return make_population(rows, algorithms=algorithms, evolution=evolution | changes.get("evolution", {}))

    return make


def child(population: Any, seed: int = 0) -> Child:
    answer = mf_pbt.propose(population.situation(), Random(seed))
    assert isinstance(answer, Child)
    return answer


def seat_of(population: Any, answer: Child) -> int:
    return population.situation().agent_of(answer.parent).seat


# --- frequencies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (4, "0000"),
        (7, "0000000"),
        (8, "11110000"),
        (12, "222211110000"),
        (16, "3333222211110000"),
        (24, "333333222222111111000000"),
    ],
)
def test_sub_populations_have_four_seats_or_more_and_the_first_seats_are_the_most_patient(
    size: int, expected: str
) -> None:
    evolution = EvolutionSpec(population_size=size, subpopulations=4)
    assert "".join(str(group_of(seat, evolution)) for seat in range(size)) == expected
    assert group_of(size + 1, evolution) == group_of(1, evolution), "a seat that was added"


def test_periods_grow_by_the_factor() -> None:
    assert [period_of(group, EvolutionSpec(frequency_factor=3)) for group in range(4)] == [1, 3, 9, 27]


def test_a_seat_is_due_at_its_first_turn_after_each_period() -> None:
    turns = [0, 7, 9, 15, 21, 40, 41]
    due = [number for last, number in pairwise(turns) if is_due(last, number, 10)]
    assert due == [15, 21, 40]


def test_a_patient_sub_population_evolves_less_often(make_race: Callable[..., Any]) -> None:
    settings = {"strategy": "mf-pbt", "population_size": 16, "frequency_factor": 2}
    race = make_race(settings, pods=4, noise=2.0).run(16 * 17)
    waits: Counter[int] = Counter()
    for generation in race.generations[16:]:
        agent = generation.agent
        if "continues; hyperparameters unchanged" in agent.reason and " rounds, " in agent.reason:
            waits[group_of(agent.seat, race.spec.evolution)] += 1
    # Of 16 turns of a seat, 16, 8, 4 and 2 are those of an evolution.
    assert waits == {1: 4 * 8, 2: 4 * 12, 3: 4 * 14}


def test_before_its_time_the_worst_of_a_patient_sub_population_continues_unchanged(make_pair: MakePopulation) -> None:
    scores = [1.0, 10.0, 20.0, 30.0, 99.0, 99.0, 99.0, 99.0]
    waiting = make_pair(scores, rounds=3)
    answer = child(waiting)
    assert answer.parent == waiting.newest(0)
    assert answer.reason == "seat 0: sub-population 1 evolves every 2 rounds, continues; hyperparameters unchanged"
    due = make_pair(scores, rounds=2)
    assert seat_of(due, child(due)) == 3


# --- brackets ----------------------------------------------------------------------------------------------------


def test_the_loser_restarts_from_the_winner_of_its_sub_population_with_perturbed_values(
    make_pair: MakePopulation,
) -> None:
    population = make_pair([1.0, 10.0, 20.0, 30.0, 99.0, 99.0, 99.0, 99.0])
    answers = [child(population, seed) for seed in range(40)]
    assert {seat_of(population, one) for one in answers} == {3}, "not from the better ones of the other"
    factors = {round(float(one.hyperparameters["learning_rate"]) / 4e-3, 6) for one in answers}
    assert factors == {0.8, 1.25}
    assert "is 4 of 4 in sub-population 1, replaced by a11 (30 ± 0)" in answers[0].reason


def test_of_eight_seats_the_kth_loser_restarts_from_the_kth_winner(make_population: MakePopulation, row: Row) -> None:
    evolution = {"strategy": "mf-pbt", "population_size": 8, "subpopulations": 1}

    def parent_of_seat_0(score: float) -> int:
        rows = [row(0, score), *(row(seat, 10.0 * seat) for seat in range(1, 8))]
        return child(make_population(rows, evolution=evolution)).parent.agent_number

    # With 10 to 70 of the others, the losers are the last two places.
    assert [parent_of_seat_0(score) for score in (5.0, 15.0, 25.0, 35.0, 65.0, 75.0)] == [6, 7, 0, 0, 0, 0]


def test_a_winner_and_a_survivor_continue_unchanged(make_pair: MakePopulation) -> None:
    for score in (40.0, 25.0):
        population = make_pair([score, 10.0, 20.0, 30.0, 99.0, 99.0, 99.0, 99.0])
        answer = child(population)
        assert answer.parent == population.newest(0)
        assert "hyperparameters unchanged" in answer.reason


def test_a_lead_within_the_error_replaces_no_agent(make_pair: MakePopulation) -> None:
    # The error of a difference is 30 * sqrt(2) = 42.4; the lead is 29.
    population = make_pair([1.0, 10.0, 20.0, 30.0, 0.0, 0.0, 0.0, 0.0], error=30.0)
    assert child(population).parent == population.newest(0)


# --- migration ---------------------------------------------------------------------------------------------------


def test_from_a_hasty_sub_population_a_patient_one_takes_weights_and_keeps_hyperparameters_of_its_best(
    make_pair: MakePopulation,
) -> None:
    # Seat 0 is third of its four; the best outside is seat 6, the best inside seat 3.
    population = make_pair([15.0, 10.0, 20.0, 30.0, 50.0, 60.0, 70.0, 40.0])
    answer = child(population)
    assert seat_of(population, answer) == 6
    assert answer.hyperparameters["learning_rate"] == 4e-3
    assert "replaced by a14 (70 ± 0) of sub-population 0 with the hyperparameters of a11 (30 ± 0)" in answer.reason


def test_from_a_patient_sub_population_a_hasty_one_takes_weights_and_hyperparameters(make_pair: MakePopulation) -> None:
    # Seat 4 is third of its four; the best outside is seat 1.
    population = make_pair([50.0, 70.0, 60.0, 40.0, 15.0, 10.0, 20.0, 30.0], next_seat=4)
    answer = child(population)
    assert answer.seat == 4
    assert seat_of(population, answer) == 1
    assert answer.hyperparameters["learning_rate"] == 2e-3
    assert "of sub-population 1; learning_rate" not in answer.reason


def test_no_agent_migrates_that_is_not_better(make_pair: MakePopulation) -> None:
    population = make_pair([15.0, 10.0, 20.0, 30.0, 14.0, 5.0, 5.0, 5.0])
    answer = child(population)
    assert answer.parent == population.newest(0)
    assert "is 3 of 4 in sub-population 1, continues; hyperparameters unchanged" in answer.reason


def test_of_two_open_seats_the_second_takes_the_second_best_of_the_others(
    make_population: MakePopulation, row: Row
) -> None:
    evolution = {"strategy": "mf-pbt", "population_size": 16, "subpopulations": 2}

    def parent(score: float) -> int:
        hasty = [row(8, score), *(row(seat, 10.0 * (seat - 8)) for seat in range(9, 16))]
        # Seat 8 is next, because its agent has the lowest number.
        rows = [*hasty, *(row(seat, 100.0 + seat) for seat in range(8))]
        answer = child(make_population(rows, evolution=evolution))
        assert answer.seat == 8
        return answer.parent.agent_number - 8

    # With 10 to 70 of the others, places 5 and 6 of 8 are open: scores of 35 and 25. The best outside are 7 and 6.
    assert [parent(score) for score in (45.0, 35.0, 25.0)] == [-8, 7, 6]


def test_the_networks_of_a_migrant_keep_their_shape(make_pair: MakePopulation) -> None:
    population = make_pair([15.0, 10.0, 20.0, 30.0, 50.0, 60.0, 70.0, 40.0], sizes={6: [16]})
    answer = child(population)
    assert answer.hyperparameters["hidden_sizes"] == [16], "that of the migrant"
    assert answer.hyperparameters["learning_rate"] == 4e-3, "that of the best"
