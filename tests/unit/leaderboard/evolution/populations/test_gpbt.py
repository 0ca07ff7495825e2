from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from leaderboard.evolution.populations import gpbt
from leaderboard.evolution.populations.gpbt import learned, previous_move
from leaderboard.evolution.space import Range
from leaderboard.evolution.strategy import Child, Fresh
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec

MakePopulation = Callable[..., Any]
Row = Callable[..., Any]
GPBT: dict[str, Any] = {"strategy": "gpbt", "population_size": 4, "resample_probability": 0.0}
SEARCHED = {
    "learning_rate": {"low": 1e-5, "high": 1e-1, "value": 1e-3},
    "clip_range": {"low": 0.1, "high": 0.3},
    "epochs": {"choices": [2, 4, 8]},
    "hidden_sizes": {"choices": [[32, 32], [64, 64]]},
    "gae_lambda": 0.95,
    "entropy_coefficient": 0.01,
}
EVEN = EvolutionSpec(inertia_weight=1.0, learning_weight=1.0)


class Scripted(Random):
    """Returns given numbers."""

    def __init__(self, *numbers: float) -> None:
        super().__init__()
        self.numbers: Sequence[float] = numbers

    def random(self) -> float:
        first, *self.numbers = self.numbers
        return first


@pytest.fixture
def population(make_population: MakePopulation) -> MakePopulation:
    def make(rows: Sequence[Any], **settings: Any) -> Any:
        algorithms = {"ppo": {"hyperparameters": SEARCHED}}
        return make_population(rows, algorithms=algorithms, evolution=GPBT | settings)

    return make


def child(answer: Fresh | Child) -> Child:
    assert isinstance(answer, Child)
    return answer


# --- pairs -------------------------------------------------------------------------------------------------------


def test_any_agent_that_leads_may_be_learned_from(population: MakePopulation, row: Row) -> None:
    situation = population([row(seat, score) for seat, score in enumerate((20.0, 10.0, 30.0, 40.0))]).situation()
    answers = [child(gpbt.propose(situation, Random(seed))) for seed in range(900)]
    parents = Counter(answer.parent.agent_number for answer in answers)
    # Seat 0 continues unchanged when it is compared with seat 1.
    assert {number: count / 900 for number, count in parents.items()} == {
        0: pytest.approx(1 / 3, abs=0.06),
        2: pytest.approx(1 / 3, abs=0.06),
        3: pytest.approx(1 / 3, abs=0.06),
    }


def test_the_better_of_a_pair_continues_unchanged(population: MakePopulation, row: Row) -> None:
    rows = [row(0, 50.0), *(row(seat, 10.0) for seat in (1, 2, 3))]
    made = population(rows)
    answer = child(gpbt.propose(made.situation(), Random(0)))
    assert answer.parent == made.newest(0)
    assert answer.hyperparameters == made.situation().values_of(answer.parent)
    assert "does not lead it by more than the error; hyperparameters unchanged" in answer.reason


def test_a_lead_within_the_error_replaces_nothing(population: MakePopulation, row: Row) -> None:
    for error, parents in ((4.0, {0}), (3.0, {1, 2, 3})):
        # The error of a difference is 1.41 times as large: 5.7 and 4.2.
        rows = [row(0, 10.0, error), *(row(seat, 15.0, error) for seat in (1, 2, 3))]
        situation = population(rows).situation()
        assert {child(gpbt.propose(situation, Random(n))).parent.agent_number for n in range(40)} == parents


def test_an_agent_without_another_one_continues(population: MakePopulation, row: Row) -> None:
    rows = [row(0, 10.0), *(row(seat, busy=True) for seat in (1, 2, 3))]
    answer = child(gpbt.propose(population(rows).situation(), Random(0)))
    assert answer.parent.agent_number == 0
    assert "has no other agent to be compared with" in answer.reason


# --- learning ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "faster", "move", "inertia", "learning", "expected"),
    [
        (0.0, 1.0, 0.0, 0.5, 0.25, 0.25),
        (0.0, 1.0, -0.1, 0.5, 0.25, 0.2),
        (0.6, 0.2, 0.3, 1.0, 0.5, 0.7),
        (0.6, 0.6, 0.0, 1.0, 1.0, 0.6),
        (0.9, 1.0, 0.8, 1.0, 1.0, 1.0),
        (0.1, 0.0, -0.8, 1.0, 1.0, 0.0),
    ],
)
def test_a_number_moves_towards_the_faster_learner_with_momentum(
    own: float, faster: float, move: float, inertia: float, learning: float, expected: float
) -> None:
    found = learned(Range(0.0, 1.0), own, faster, move, EVEN, Scripted(inertia, learning))
    assert found == pytest.approx(expected)


def test_weights_scale_the_two_parts_of_a_move() -> None:
    weights = EvolutionSpec(inertia_weight=0.5, learning_weight=2.0)
    # 0.5 * 0.5 * 0.4 + 2 * 0.25 * 0.2
    assert learned(Range(0.0, 1.0), 0.2, 0.4, 0.4, weights, Scripted(0.5, 0.25)) == pytest.approx(0.4)
    without = EvolutionSpec(inertia_weight=0.0, learning_weight=0.0)
    assert learned(Range(0.0, 1.0), 0.2, 0.4, 0.4, without, Scripted(0.5, 0.25)) == 0.2


def test_a_step_of_a_logarithmic_range_is_a_factor() -> None:
    found = learned(Range(1e-4, 1e-2, logarithmic=True), 1e-4, 1e-2, 0.0, EVEN, Scripted(0.9, 0.5))
    assert found == pytest.approx(1e-3)


def test_a_child_learns_numbers_and_takes_choices_and_structure(population: MakePopulation, row: Row) -> None:
    slow = {"learning_rate": 1e-5, "clip_range": 0.1, "epochs": 2, "hidden_sizes": [32, 32]}
    fast = {"learning_rate": 1e-1, "clip_range": 0.3, "epochs": 8, "hidden_sizes": [64, 64]}
    rows = [row(0, 10.0, values=slow), *(row(seat, 90.0, values=fast) for seat in (1, 2, 3))]
    situation = population(rows).situation()
    answers = [child(gpbt.propose(situation, Random(seed))) for seed in range(50)]
    for answer in answers:
        rate, clip = answer.hyperparameters["learning_rate"], answer.hyperparameters["clip_range"]
        assert isinstance(rate, float)
        assert isinstance(clip, float)
        assert 1e-5 <= rate <= 1e-1
        assert 0.1 <= clip <= 0.3
        assert answer.hyperparameters["epochs"] == 8
        assert answer.hyperparameters["hidden_sizes"] == [64.0, 64.0]
    clips = [float(str(answer.hyperparameters["clip_range"])) for answer in answers]
    assert sum(clips) / 50 == pytest.approx(0.2, abs=0.03), "half of the way"


def test_hyperparameters_are_drawn_again_with_the_probability_of_the_setting(
    population: MakePopulation, row: Row
) -> None:
    rows = [row(0, 10.0), *(row(seat, 90.0) for seat in (1, 2, 3))]
    situation = population(rows, resample_probability=0.25).situation()
    rates = [child(gpbt.propose(situation, Random(n))).hyperparameters["learning_rate"] for n in range(600)]
    assert sum(rate != 1e-3 for rate in rates) / 600 == pytest.approx(0.25, abs=0.06)


def test_a_seat_whose_agent_failed_without_a_score_has_the_numbers_of_the_best(
    population: MakePopulation, row: Row
) -> None:
    fast = {"learning_rate": 1e-2}
    rows = [row(0, failed=True), *(row(seat, 10.0 * seat, values=fast) for seat in (1, 2, 3))]
    answer = child(gpbt.propose(population(rows).situation(), Random(0)))
    assert answer.parent.agent_number == 3
    assert answer.hyperparameters["learning_rate"] == 1e-2


# --- momentum ----------------------------------------------------------------------------------------------------


def moves(population: MakePopulation, row: Row, *clips: float, **last: Any) -> dict[str, float]:
    """The previous move of seat 0, whose agents had these values; the other seats are busy."""
    others = [row(seat, busy=True) for seat in (1, 2, 3)]
    rows = [*others, *(row(0, 10.0, values={"clip_range": clip}) for clip in clips)]
    if last:
        rows.append(row(0, **last))
    made = population(rows)
    return previous_move(made.seats()[0], "ppo", {"clip_range": Range(0.1, 0.3)}, made.history)


def test_the_previous_move_is_the_difference_of_the_last_two_agents_that_differ(
    population: MakePopulation, row: Row
) -> None:
    assert moves(population, row, 0.12) == {}
    assert moves(population, row, 0.12, 0.12) == {}
    assert moves(population, row, 0.12, 0.16)["clip_range"] == pytest.approx(0.2)
    assert moves(population, row, 0.28, 0.12, 0.16, 0.16, 0.16)["clip_range"] == pytest.approx(0.2)


def test_an_agent_without_a_score_made_no_move(population: MakePopulation, row: Row) -> None:
    found = moves(population, row, 0.12, 0.16, failed=True, values={"clip_range": 0.3})
    assert found["clip_range"] == pytest.approx(0.2)
