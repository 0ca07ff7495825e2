"""Greedy seats, patient seats and evaluators: what each continues from."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from leaderboard.evolution.populations import fire_pbt
from leaderboard.evolution.populations.fire_pbt import EVALUATION_TURNS, EVALUATOR, GREEDY, PATIENT, role_of
from leaderboard.evolution.strategy import Child

MakePopulation = Callable[..., Any]
Row = Callable[..., Any]
SEARCHED = {"learning_rate": {"low": 1e-5, "high": 1e-1, "value": 1e-3}}
RISING = [10.0 * place for place in range(10)]
STEEPER = [15.0 * place for place in range(10)]


@pytest.fixture
def make_eight(make_population: MakePopulation, row: Row) -> Callable[..., Any]:
    """Populations of eight seats, whose first agents have the numbers of their seats.

    Seats 0 to 2 are greedy, 3 to 5 patient, 6 and 7 evaluators. The first agents are scored `first`, and have learning
    rates of 0.001 times the number of the seat plus one.
    """

    def make(first: Sequence[float], later: Sequence[Any] = (), curves: Any = None, **settings: Any) -> Any:
        earlier = curves or {}
        rows = [row(seat, first[seat], values=rate(seat), earlier=earlier.get(seat, ())) for seat in range(8)]
        evolution = {"strategy": "fire-pbt", "population_size": 8} | settings
        algorithms = {"ppo": {"hyperparameters": SEARCHED}}
        return make_population([*rows, *later], algorithms=algorithms, evolution=evolution)

    return make


def rate(seat: int) -> dict[str, Any]:
    return {"learning_rate": 1e-3 * (seat + 1)}


def child(population: Any, seed: int = 0) -> Child:
    answer = fire_pbt.propose(population.situation(), Random(seed))
    assert isinstance(answer, Child)
    return answer


def continued(row: Row, seats: Sequence[int], score: float = 0.0) -> list[Any]:
    """The second agents of seats, which continue from the first ones."""
    return [row(seat, score, values=rate(seat), parent=seat) for seat in seats]


# --- roles -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "greedy", "patient", "evaluators"),
    [(1, 1, 0, 0), (2, 2, 0, 0), (3, 1, 1, 1), (4, 2, 1, 1), (8, 3, 3, 2), (20, 7, 7, 6), (50, 18, 18, 14)],
)
def test_the_seats_have_the_published_shares(size: int, greedy: int, patient: int, evaluators: int) -> None:
    roles = [role_of(seat, size) for seat in range(size)]
    assert roles == [GREEDY] * greedy + [PATIENT] * patient + [EVALUATOR] * evaluators
    assert role_of(size, size) == GREEDY, "a seat that was added"


# --- evaluators --------------------------------------------------------------------------------------------------


def test_an_evaluator_trains_a_patient_network_with_the_values_of_the_best_greedy_seat(
    make_eight: MakePopulation, row: Row
) -> None:
    population = make_eight([1.0, 5.0, 3.0, 0.0, 9.0, 0.0, 0.0, 0.0], continued(row, range(6)))
    answer = child(population)
    assert answer.seat == 6
    assert answer.parent == population.newest(3), "the first in order: none was evaluated"
    assert answer.hyperparameters["learning_rate"] == 1e-3, "all greedy seats have 0 now, and the first has least steps"
    assert "evaluates a11 (0 ± 0) of seat 3 with the values of a8 (0 ± 0)" in answer.reason


def test_two_evaluators_take_different_seats(make_eight: MakePopulation, row: Row) -> None:
    later = [*continued(row, range(6)), row(6, None, busy=True, values=rate(0), parent=11)]
    assert child(make_eight([0.0] * 8, later)).parent.agent_number == 12, "seat 4"


def evaluation(row: Row, turns: int, curve: Sequence[float], values: int = 0) -> list[Any]:
    """Rows 8 to 15: every seat has had two agents; then `turns` agents of seat 6, and others that wait."""
    rows = [*continued(row, range(6)), row(6, curve[0], values=rate(values), parent=11), row(7, 0.0, parent=12)]
    for turn in range(1, turns):
        others = [row(seat, 0.0, values=rate(seat), parent=8 * turn + seat) for seat in range(6)]
        number = 8 * (turn + 1) + 6
        rows += [*others, row(6, curve[turn], values=rate(values), parent=number - 8), row(7, 0.0, parent=number - 7)]
    return [*rows, *(row(seat, 0.0, values=rate(seat), parent=8 * turns + seat) for seat in range(6))]


@pytest.mark.parametrize("turns", range(1, EVALUATION_TURNS + 1))
def test_an_evaluation_that_stays_below_its_reference_ends_after_some_turns(
    make_eight: MakePopulation, row: Row, turns: int
) -> None:
    population = make_eight([0.0] * 8, evaluation(row, turns, [-10.0] * turns))
    answer = child(population)
    assert answer.seat == 6
    if turns < EVALUATION_TURNS:
        assert answer.reason.startswith(f"seat 6: evaluates the network of seat 3, turn {turns + 1}")
        assert answer.parent == population.newest(6)
        assert answer.hyperparameters["learning_rate"] == 1e-3
    else:
        assert "of seat 5 with the values of" in answer.reason, "seat 4 is the next one of seat 7"


def test_an_evaluation_ends_when_its_reference_is_replaced(make_eight: MakePopulation, row: Row) -> None:
    rows = evaluation(row, 1, [-10.0])
    assert "turn 2" in child(make_eight([0.0] * 8, rows)).reason
    rows[-6] = row(0, 0.0, values={"learning_rate": 0.05}, parent=9)
    assert "with the values of" in child(make_eight([0.0] * 8, rows)).reason


def test_an_evaluation_ends_when_its_patient_seat_is_replaced(make_eight: MakePopulation, row: Row) -> None:
    rows = evaluation(row, 1, [-10.0])
    rows[-3] = row(3, 0.0, values=rate(3), parent=12)
    assert "with the values of" in child(make_eight([0.0] * 8, rows)).reason


# --- patient seats -----------------------------------------------------------------------------------------------


def measured(row: Row, scores: Sequence[float]) -> list[Any]:
    """Rows 8 to 15: seats 3 and 4 are measured from the same performance, with the best scores 50 and 30."""
    patient = [row(seat, scores[seat - 3], values=rate(seat), parent=seat) for seat in (3, 4, 5)]
    return [
        *continued(row, range(3)),
        *patient,
        row(6, 50.0, values=rate(0), parent=11, earlier=[10.0, 20.0, 30.0, 40.0]),
        row(7, 30.0, values=rate(0), parent=12, earlier=[10.0, 15.0, 20.0, 25.0]),
        *(row(seat, 0.0, values=rate(seat), parent=8 + seat) for seat in range(4)),
    ]


def test_the_slower_network_is_replaced_although_its_score_is_higher(make_eight: MakePopulation, row: Row) -> None:
    population = make_eight([0.0] * 8, measured(row, [5.0, 90.0, 0.0]))
    answers = [child(population, seed) for seed in range(20)]
    assert {one.seat for one in answers} == {4}
    assert {one.parent.agent_number for one in answers} == {19}, "the newest of seat 3"
    assert {round(float(one.hyperparameters["learning_rate"]) / 4e-3, 6) for one in answers} == {0.5, 2.0}
    assert "is 2 of 2 by improvement, replaced by a19" in answers[0].reason


def test_a_seat_that_was_not_evaluated_continues(make_eight: MakePopulation, row: Row) -> None:
    rows = [*measured(row, [5.0, 90.0, 0.0]), row(4, 0.0, values=rate(4), parent=12)]
    answer = child(make_eight([0.0] * 8, rows))
    assert answer.seat == 5
    assert answer.parent.agent_number == 13
    assert "no evaluation compares a13 (0 ± 0) with others; continues; hyperparameters unchanged" in answer.reason


# --- greedy seats ------------------------------------------------------------------------------------------------


def overtaken(make_eight: MakePopulation, row: Row, curve: Sequence[float], error: float = 0.0) -> Any:
    """Seat 0 is next; an evaluation with its values has the scores of `curve`, and its own are those of RISING."""
    measured = row(6, curve[-1], error, values=rate(0), parent=11, earlier=curve[:-1])
    others = [row(seat, 0.0, values=rate(seat), parent=seat) for seat in range(1, 6)]
    first = row(0, RISING[-1], error, values=rate(0), parent=0, earlier=RISING[1:-1])
    return make_eight([0.0] * 8, [first, *others, measured, row(7, 0.0, parent=12)])


def test_a_greedy_seat_continues_from_an_evaluation_that_overtook_it(make_eight: MakePopulation, row: Row) -> None:
    population = overtaken(make_eight, row, STEEPER)
    answer = child(population)
    assert answer.seat == 0
    assert answer.parent == population.newest(6)
    assert answer.hyperparameters["learning_rate"] == 1e-3
    assert "is overtaken by an evaluation with its hyperparameters, replaced by a14 (135 ± 0)" in answer.reason


@pytest.mark.parametrize(
    ("curve", "error"),
    [
        (RISING, 0.0),
        ([*RISING[:-1], 135.0], 0.0),
        (STEEPER, 60.0),
    ],
    ids=["same", "one score is higher", "within the error"],
)
def test_a_greedy_seat_is_not_replaced_by_an_evaluation_that_is_not_ahead(
    make_eight: MakePopulation, row: Row, curve: Sequence[float], error: float
) -> None:
    population = overtaken(make_eight, row, curve, error)
    assert child(population).parent == population.newest(0)


def test_a_greedy_seat_that_took_an_evaluation_is_not_overtaken_by_it_again(
    make_eight: MakePopulation, row: Row
) -> None:
    before = overtaken(make_eight, row, STEEPER)
    rows = [*before.rows[8:], row(0, 50.0, values=rate(0), parent=14)]
    rows += [row(seat, 0.0, values=rate(seat), parent=8 + seat) for seat in range(1, 8)]
    answer = child(make_eight([0.0] * 8, rows))
    assert answer.seat == 0
    assert "overtaken" not in answer.reason


def test_greedy_seats_evolve_by_their_scores_among_themselves(make_eight: MakePopulation) -> None:
    population = make_eight([1.0, 5.0, 3.0, 99.0, 99.0, 99.0, 99.0, 99.0])
    answer = child(population)
    assert answer.seat == 0
    assert answer.parent == population.newest(1)
    assert "is 3 of 3, replaced by a1 (5 ± 0)" in answer.reason
