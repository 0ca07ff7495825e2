from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from leaderboard.evolution.populations import truncation
from leaderboard.evolution.strategy import Child, Fresh

MakePopulation = Callable[..., Any]
Row = Callable[..., Any]
TRUNCATION = {"strategy": "truncation", "population_size": 10}


def child(answer: Fresh | Child) -> Child:
    assert isinstance(answer, Child)
    return answer


def ten(row: Row, first: float, error: float = 0.0) -> list[Any]:
    """Seat 0 with a score, seats 1 to 9 with 10 to 90; it is seat 0's turn."""
    return [row(0, first, error), *(row(seat, 10.0 * seat, error) for seat in range(1, 10))]


@pytest.mark.parametrize("score", [25.0, 55.0, 95.0])
def test_an_agent_that_is_not_among_the_worst_fifth_continues_unchanged(
    make_population: MakePopulation, row: Row, score: float
) -> None:
    population = make_population(ten(row, score), evolution=TRUNCATION)
    answer = child(truncation.propose(population.situation(), Random(0)))
    assert answer.parent == population.newest(0)
    assert answer.hyperparameters == population.situation().values_of(answer.parent)
    assert answer.seat == 0


def test_an_agent_among_the_worst_fifth_is_replaced_by_one_of_the_best_fifth(
    make_population: MakePopulation, row: Row
) -> None:
    for score, place in ((5.0, 10), (15.0, 9)):
        situation = make_population(ten(row, score), evolution=TRUNCATION).situation()
        answers = [child(truncation.propose(situation, Random(seed))) for seed in range(300)]
        donors = Counter(answer.parent.agent_number for answer in answers)
        assert set(donors) == {8, 9}
        assert donors[9] == pytest.approx(150, abs=35)
        assert answers[0].reason.startswith(f"seat 0: a0 ({score:g} ± 0) is {place} of 10, replaced by a")


def test_a_lead_within_the_error_replaces_no_agent(make_population: MakePopulation, row: Row) -> None:
    # Donors have 80 and 90; the error of a difference is 60 * sqrt(2) = 84.9, so that only 90 leads 5 by more.
    situation = make_population(ten(row, 5.0, error=60.0), evolution=TRUNCATION).situation()
    parents = {child(truncation.propose(situation, Random(seed))).parent.agent_number for seed in range(50)}
    assert parents == {9}
    situation = make_population(ten(row, 5.0, error=70.0), evolution=TRUNCATION).situation()
    answer = child(truncation.propose(situation, Random(0)))
    assert answer.parent.agent_number == 0
    assert "but no donor leads it by more than the error; continues; hyperparameters unchanged" in answer.reason


def test_equal_agents_all_continue(make_population: MakePopulation, row: Row) -> None:
    population = make_population([row(seat, 7.0) for seat in range(10)], evolution=TRUNCATION)
    assert child(truncation.propose(population.situation(), Random(0))).parent == population.newest(0)


def test_values_are_multiplied_by_four_fifths_or_six_fifths_or_drawn_again(
    make_population: MakePopulation, row: Row
) -> None:
    searched = {
        "learning_rate": {"low": 1e-4, "high": 1e-2, "value": 1e-3},
        "gae_lambda": {"low": 0.5, "high": 1.0, "value": 0.75},
        "entropy_coefficient": 0.01,
        "clip_range": 0.2,
        "hidden_sizes": {"choices": [[32, 32], [64, 64]]},
    }
    sections: dict[str, Any] = {
        "algorithms": {"ppo": {"hyperparameters": searched}},
        "evolution": TRUNCATION | {"resample_probability": 0.25},
    }
    situation = make_population(ten(row, 5.0), **sections).situation()
    children = [child(truncation.propose(situation, Random(seed))).hyperparameters for seed in range(400)]
    rates = Counter(round(float(str(values["learning_rate"])), 9) for values in children)
    assert rates[8e-4] + rates[1.2e-3] == pytest.approx(300, abs=35)
    assert rates[8e-4] == pytest.approx(rates[1.2e-3], abs=50)
    # On a linear scale, a fifth of the range of 0.5.
    shares = Counter(round(float(str(values["gae_lambda"])), 9) for values in children)
    assert shares[0.65] + shares[0.85] == pytest.approx(300, abs=35)
    assert {str(values["hidden_sizes"]) for values in children} == {"[32.0, 32.0]"}
    assert {values["clip_range"] for values in children} == {0.2}
