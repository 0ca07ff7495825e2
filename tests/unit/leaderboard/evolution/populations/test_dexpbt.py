from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from leaderboard.evolution.populations import dexpbt
from leaderboard.evolution.populations.dexpbt import why_not_enough
from leaderboard.evolution.strategy import Child, Fresh
from leaderboard.ranking.board import Board
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec

MakePopulation = Callable[..., Any]
MakeCandidate = Callable[..., Candidate]
Row = Callable[..., Any]
DEXPBT = {"strategy": "dexpbt", "population_size": 8}


def child(answer: Fresh | Child) -> Child:
    assert isinstance(answer, Child)
    return answer


def eight(row: Row, first: float, **others: Any) -> list[Any]:
    """Seat 0 with a score, seats 1 to 7 with 110 to 170; it is seat 0's turn."""
    return [row(0, first, **others), *(row(seat, 100.0 + 10 * seat, **others) for seat in range(1, 8))]


def test_the_worst_of_eight_is_replaced_by_one_of_the_best_three(make_population: MakePopulation, row: Row) -> None:
    situation = make_population(eight(row, 50.0), evolution=DEXPBT).situation()
    answers = [child(dexpbt.propose(situation, Random(seed))) for seed in range(300)]
    assert set(Counter(answer.parent.agent_number for answer in answers)) == {5, 6, 7}
    assert answers[0].reason.startswith("seat 0: a0 (50 ± 0) is 8 of 8, replaced by a")


def test_the_second_to_last_continues_unchanged(make_population: MakePopulation, row: Row) -> None:
    population = make_population(eight(row, 115.0), evolution=DEXPBT)
    answer = child(dexpbt.propose(population.situation(), Random(0)))
    assert answer.parent == population.newest(0)
    assert answer.reason == "seat 0: a0 (115 ± 0) is 7 of 8, continues; hyperparameters unchanged"


SIX = (10.0, 8.0, 8.0, 8.0, 6.0, -90.0)
"""The worst fifth of six, rounded down, is one; the others' deviation is sqrt((2^2 + 2^2) / 5) = 1.265, half 0.632."""


@pytest.mark.parametrize(
    ("own", "settings", "error", "expected"),
    [
        (9.4, {}, 0.0, "leads by no more than 0.5 deviations (0.632)"),
        (9.3, {}, 0.0, ""),
        (9.3, {"lead_share": 0.08}, 0.0, "leads by no more than 0.08 of its score (0.8)"),
        (9.3, {"lead_share": 0.06}, 0.0, ""),
        (9.3, {}, 0.5, "leads by no more than the error (0.707)"),
        (9.3, {}, 0.49, ""),
        (9.0, {"lead_deviations": 0.0, "lead_share": 0.1}, 0.0, "leads by no more than 0.1 of its score (1)"),
    ],
)
def test_a_donor_must_lead_by_deviations_by_a_share_and_by_the_error(
    make_candidate: MakeCandidate, own: float, settings: dict[str, float], error: float, expected: str
) -> None:
    members: Board = tuple(make_candidate(number, score, error) for number, score in enumerate(SIX))
    evolution = EvolutionSpec(**({"lead_deviations": 0.5, "lead_share": 0.05} | settings))
    assert why_not_enough(members[0], make_candidate(9, own, error), members, evolution) == expected


def test_an_agent_that_is_not_far_behind_keeps_its_files_and_mutates(make_population: MakePopulation, row: Row) -> None:
    sections = {"evolution": DEXPBT | {"lead_share": 0.9, "mutation_probability": 1.0}}
    population = make_population(eight(row, 50.0), **sections)
    answer = child(dexpbt.propose(population.situation(), Random(0)))
    assert answer.parent == population.newest(0)
    assert answer.hyperparameters != population.situation().values_of(answer.parent)
    assert "leads by no more than 0.9 of its score" in answer.reason
    assert "continues mutated" in answer.reason


def test_an_agent_is_not_compared_with_one_of_more_experience(make_population: MakePopulation, row: Row) -> None:
    # All others are better now, but at seat 0's experience they were worse.
    before = [row(seat, 10.0 + seat, steps=1000) for seat in range(1, 8)]
    after = [row(seat, 1000.0 + seat, steps=2000) for seat in range(1, 8)]
    population = make_population([row(0, 50.0, steps=1999), *before, *after], evolution=DEXPBT)
    answer = child(dexpbt.propose(population.situation(), Random(0)))
    assert answer.reason == "seat 0: a0 (50 ± 0) is 1 of 8, continues; hyperparameters unchanged"
    population = make_population([row(0, 50.0, steps=2000), *before, *after], evolution=DEXPBT)
    answer = child(dexpbt.propose(population.situation(), Random(0)))
    assert answer.parent.environment_steps == 2000
    assert answer.parent.score > 1000


def test_a_donor_is_never_one_of_more_experience(make_population: MakePopulation, row: Row) -> None:
    rows = eight(row, 50.0, steps=1000)
    rows[7].steps = 1001
    situation = make_population(rows, evolution=DEXPBT).situation()
    parents = {child(dexpbt.propose(situation, Random(seed))).parent.agent_number for seed in range(100)}
    assert parents == {4, 5, 6}


def test_nothing_changes_before_more_than_half_can_be_compared(make_population: MakePopulation, row: Row) -> None:
    rows = eight(row, 50.0, steps=1000)
    for young in rows[1:5]:
        young.steps = 5000
    answer = child(dexpbt.propose(make_population(rows, evolution=DEXPBT).situation(), Random(0)))
    assert "is 4 of 4 with no more experience, too few to compare; continues" in answer.reason
    rows[4].steps = 1000
    answer = child(dexpbt.propose(make_population(rows, evolution=DEXPBT).situation(), Random(0)))
    assert "is 5 of 5, replaced by" in answer.reason
    pair = make_population([row(0, 1.0), row(1, 9.0)], evolution=DEXPBT | {"population_size": 2})
    assert "too few to compare" in child(dexpbt.propose(pair.situation(), Random(0))).reason


def test_half_of_the_replaced_keep_their_own_hyperparameters_but_never_structural_ones(
    make_population: MakePopulation, row: Row
) -> None:
    searched = {
        "learning_rate": {"low": 1e-5, "high": 1e-1, "value": 1e-3},
        "activation": {"choices": ["tanh", "relu"]},
    }
    rows = eight(row, 50.0)
    rows[0].values = {"learning_rate": 1e-5, "activation": "relu"}
    sections: dict[str, Any] = {
        "algorithms": {"ppo": {"hyperparameters": searched}},
        "evolution": DEXPBT | {"mutation_probability": 0.0},
    }
    situation = make_population(rows, **sections).situation()
    answers = [child(dexpbt.propose(situation, Random(seed))) for seed in range(400)]
    rates = Counter(answer.hyperparameters["learning_rate"] for answer in answers)
    assert rates == {1e-5: pytest.approx(200, abs=40), 1e-3: pytest.approx(200, abs=40)}
    assert {answer.hyperparameters["activation"] for answer in answers} == {"tanh"}


def test_a_mutation_multiplies_or_divides_by_a_factor_between_the_two(
    make_population: MakePopulation, row: Row
) -> None:
    searched = {"learning_rate": {"low": 1e-5, "high": 1e-1, "value": 1e-3}}
    sections = {"algorithms": {"ppo": {"hyperparameters": searched}}, "evolution": DEXPBT}
    situation = make_population(eight(row, 50.0), **sections).situation()
    rates = [
        float(str(child(dexpbt.propose(situation, Random(n))).hyperparameters["learning_rate"])) for n in range(1000)
    ]
    changed = [rate / 1e-3 for rate in rates if rate != 1e-3]
    assert len(changed) / 1000 == pytest.approx(0.15, abs=0.04)
    assert all(1.1 <= max(factor, 1 / factor) <= 1.5 + 1e-9 for factor in changed)
    assert sum(factor > 1 for factor in changed) / len(changed) == pytest.approx(0.5, abs=0.12)
