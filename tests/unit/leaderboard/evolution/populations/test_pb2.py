import math
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from random import Random
from typing import Any

import pytest

from leaderboard.evolution.populations import pb2
from leaderboard.evolution.populations.gaussian_process import Point, most_promising, standardized
from leaderboard.evolution.populations.pb2 import observe, points_of, probabilities
from leaderboard.evolution.space import Choices, Range, spaces_of
from leaderboard.evolution.strategy import Child
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate

pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is not installed")
MakePopulation = Callable[..., Any]
Row = Callable[..., Any]
PB2 = {"strategy": "pb2", "population_size": 4}
SEARCHED = {
    "learning_rate": {"low": 1e-5, "high": 1e-1, "value": 1e-3},
    "clip_range": {"low": 0.1, "high": 0.3},
    "epochs": {"choices": [2, 4, 8]},
    "hidden_sizes": {"choices": [[32, 32], [64, 64]]},
    "gae_lambda": 0.95,
    "entropy_coefficient": 0.01,
}
EPOCHS = [2.0, 4.0, 8.0]
FIXED = {"learning_rate": 1e-3, "clip_range": 0.2, "gae_lambda": 0.95, "entropy_coefficient": 0.01}


def points(*positions: float, time: float = 0.0) -> list[Point]:
    return [Point((position,), time) for position in positions]


def test_values_are_standardized_and_clipped() -> None:
    assert standardized([1.0, 3.0]) == [-1.0, 1.0]
    assert standardized([0.0] * 24 + [5.0])[-1] == 2.0
    assert standardized([4.0, 4.0]) == [0.0, 0.0]


@pytest.mark.long
def test_the_bound_is_highest_where_values_were_high() -> None:
    tried = points(*(n / 10 for n in range(11)))
    values = [-((point.position[0] - 0.7) ** 2) for point in tried]
    offered = points(0.05, 0.3, 0.68, 0.95)
    assert most_promising(offered, tried, values, []) == 2


def test_unexplored_regions_have_a_high_bound() -> None:
    tried = points(0.0, 0.05, 0.1, 0.15, 0.2)
    assert most_promising(points(0.1, 0.9), tried, [0.0, 0.1, 0.0, 0.1, 0.0], []) == 1


def test_a_pending_point_is_not_chosen_again() -> None:
    tried = points(0.4, 0.5, 0.6, 0.45, 0.55)
    values = [0.0, 0.1, 0.0, 0.1, 0.0]
    offered = points(0.0, 1.0)
    alone = most_promising(offered, tried, values, [])
    assert most_promising(offered, tried, values, points(offered[alone].position[0])) == 1 - alone


def test_old_observations_count_less() -> None:
    old = [Point((position,), 0.0) for position in (0.0, 0.1, 0.2, 0.8, 0.9, 1.0)]
    new = [Point((position,), 40.0) for position in (0.0, 0.1, 0.2, 0.8, 0.9, 1.0)]
    values = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    offered = [Point((0.1,), 40.0), Point((0.9,), 40.0)]
    assert most_promising(offered, [*old, *new], values, []) == 1
    then = [Point((0.1,), 0.0), Point((0.9,), 0.0)]
    assert most_promising(then, [*old, *new], values, []) == 0


def test_equal_bounds_go_to_the_first() -> None:
    tried = points(0.2, 0.8)
    assert most_promising(points(0.5, 0.5, 0.5), tried, [0.0, 1.0], []) == 0


def test_the_kernel_is_a_gaussian_times_a_decay() -> None:
    from leaderboard.evolution.populations.gaussian_process import _fitted

    model = _fitted([[0.2, 0.0], [0.5, 3.0]], [0.0, 1.0], 0.4, 0.1, 0.01)
    expected = math.exp(-(0.3**2) / (2 * 0.4**2)) * 0.9**1.5
    assert model.kernel_([[0.2, 0.0]], [[0.5, 3.0]])[0][0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("mixture", [0.0, 0.5, 1.0])
def test_the_kernel_with_choices_is_a_sum_and_a_product(mixture: float) -> None:
    import numpy

    from leaderboard.evolution.populations.gaussian_process import _kernel

    kernel = _kernel(1, 2, 0.4, 0.1, mixture)
    rows = numpy.array([[0.2, 0.0, 3.0, 0.0], [0.5, 1.0, 3.0, 3.0]])
    numeric, categorical = math.exp(-(0.3**2) / (2 * 0.4**2)) * 0.9**1.5, 0.5 * 0.9**1.5
    expected = (1 - mixture) / 2 * (numeric + categorical) + mixture * numeric * categorical
    assert kernel(rows)[0][1] == pytest.approx(expected, rel=1e-6)
    assert kernel(rows).diagonal() == pytest.approx([1.0, 1.0])
    assert kernel.diag(rows) == pytest.approx([1.0, 1.0])


def test_the_best_numbers_depend_on_the_choices() -> None:
    positions = [n / 10 for n in range(11)]
    tried = [Point((position,), 0.0, (choice,)) for choice in (0, 1) for position in positions]
    values = [-((point.position[0] - (0.8 if point.choices[0] else 0.2)) ** 2) for point in tried]
    for choice, best in ((0, 0), (1, 1)):
        offered = [Point((0.2,), 0.0, (choice,)), Point((0.8,), 0.0, (choice,))]
        assert most_promising(offered, tried, values, []) == best


def test_observations_are_position_start_and_speed(make_population: MakePopulation, row: Row) -> None:
    rows = [
        row(0, 10.0, steps=2000, values={"learning_rate": 1e-4}),
        row(0, 30.0, steps=6000, values={"learning_rate": 1e-3}),
        row(0, busy=True, steps=0, values={"learning_rate": 1e-1}),
    ]
    sections: dict[str, Any] = {
        "algorithms": {"ppo": {"hyperparameters": SEARCHED}},
        "evolution": PB2,
        "assignment": {"environment_steps": 4000},
    }
    situation = make_population(rows, **sections).situation()
    for child, start in ((1, 0), (2, 1)):
        situation.history.agents[child].starting_checkpoint.CopyFrom(Checkpoint(manifest_digest=f"c{start}"))
    spaces = spaces_of("ppo", situation.spec.algorithms["ppo"])
    ranges = {name: space for name, space in spaces.items() if isinstance(space, Range)}
    observed = observe(situation, "ppo")
    tried = points_of(observed.ended, observed.starts, ranges, {})
    pending = points_of(observed.training, observed.training_starts, ranges, {})
    assert list(ranges) == ["clip_range", "learning_rate"]
    # Agent 0 has one score and no beginning; agent 1 began after half an assignment and gained 20 in 4,000 steps.
    assert tried == [Point((pytest.approx(0.5), pytest.approx(0.5)), 0.5)]
    assert observed.speeds == [20.0 / 4000]
    assert pending == [Point((pytest.approx(0.5), pytest.approx(1.0)), 1.5)]


def four_generations(row: Row, best_position: float) -> list[Any]:
    """Sixteen agents in four seats, the first far behind, that gained the more, the nearer their rates were to the
    best."""
    rows, scores = [], [-100.0, 0.0, 0.0, 0.0]
    for number in range(16):
        seat, position = number % 4, (number * 7 % 16) / 15
        scores[seat] += 10 * math.exp(-10 * (position - best_position) ** 2)
        values = {"learning_rate": 1e-5 * 1e4**position, "epochs": EPOCHS[number % 3]}
        rows.append(row(seat, scores[seat], steps=1000 * (number // 4 + 1), values=values))
    return rows


def linked(situation: Any) -> Any:
    """Each agent after the first four starts from its predecessor in the seat."""
    for agent in situation.history.agents[4:]:
        agent.starting_checkpoint.CopyFrom(Checkpoint(manifest_digest=f"c{agent.number - 4}"))
    return situation


@pytest.mark.long
@pytest.mark.parametrize("best", [0.2, 0.8])
def test_a_replaced_agent_gets_the_most_promising_values(make_population: MakePopulation, row: Row, best: float) -> None:
    sections: dict[str, Any] = {
        "algorithms": {"ppo": {"hyperparameters": SEARCHED | {"clip_range": 0.2}}},
        "evolution": PB2 | {"resample_probability": 1.0},
        "assignment": {"environment_steps": 1000},
    }
    situation = linked(make_population(four_generations(row, best), **sections).situation())
    answers = [pb2.propose(situation, Random(seed)) for seed in range(6)]
    for answer in answers:
        assert isinstance(answer, Child)
        rate = answer.hyperparameters["learning_rate"]
        assert isinstance(rate, float)
        assert math.log10(rate / 1e-5) / 4 == pytest.approx(best, abs=0.2)
        assert answer.hyperparameters["hidden_sizes"] == [32.0, 32.0], "structural: the parent's"


def with_epochs(make_population: MakePopulation, row: Row, **searched: Any) -> Any:
    """Twenty agents in four seats; those with more epochs gained more."""
    rows, scores = [], [-100.0, 0.0, 0.0, 0.0]
    for number in range(20):
        seat, choice = number % 4, number % 3
        scores[seat] += 10.0 * choice
        values = {"epochs": EPOCHS[choice], "clip_range": 0.2 if choice < 2 else 0.25}
        rows.append(row(seat, scores[seat], steps=1000 * (number // 4 + 1), values=values))
    sections: dict[str, Any] = {
        "algorithms": {"ppo": {"hyperparameters": FIXED | {"epochs": {"choices": [2, 4, 8]}, **searched}}},
        "evolution": PB2,
        "assignment": {"environment_steps": 1000},
    }
    return linked(make_population(rows, **sections).situation())


def epochs_of(situation: Any) -> Any:
    spec = situation.spec.algorithms["ppo"]
    space = spaces_of("ppo", spec)["epochs"]
    assert isinstance(space, Choices)
    return probabilities(situation, observe(situation, "ppo"), "ppo", "epochs", space)


def test_the_choice_that_gained_most_is_the_most_probable(make_population: MakePopulation, row: Row) -> None:
    situation = with_epochs(make_population, row)
    expected = epochs_of(situation)
    assert expected == sorted(expected)
    assert expected[2] > 0.38
    answers = [pb2.propose(situation, Random(seed)) for seed in range(600)]
    drawn = Counter(answer.hyperparameters["epochs"] for answer in answers if isinstance(answer, Child))
    assert [drawn[value] / 600 for value in EPOCHS] == pytest.approx(expected, abs=0.06)


def test_choices_are_drawn_evenly_before_an_agent_has_ended(make_population: MakePopulation, row: Row) -> None:
    situation = with_epochs(make_population, row)
    fresh = type(situation)(**vars(situation) | {"number": 0})
    assert epochs_of(fresh) == pytest.approx([1 / 3] * 3)


def test_an_agent_in_which_a_condition_is_not_met_is_no_play(make_population: MakePopulation, row: Row) -> None:
    conditional = {
        "clip_range": {"choices": [0.2, 0.25]},
        "epochs": {"choices": [2, 4, 8], "when": {"clip_range": 0.2}},
    }
    two, four, eight = epochs_of(with_epochs(make_population, row, **conditional))
    # Agents with eight epochs do not count, so that choice has no reward.
    assert eight < two < four


def test_choices_are_drawn_where_no_number_is_searched(make_population: MakePopulation, row: Row) -> None:
    situation = with_epochs(make_population, row)
    answer = pb2.propose(situation, Random(0))
    assert isinstance(answer, Child)
    changed = {key for key, value in answer.hyperparameters.items() if value != situation.values_of(answer.parent)[key]}
    assert changed <= {"epochs"}


def test_values_are_perturbed_until_there_are_enough_observations(make_population: MakePopulation, row: Row) -> None:
    rows = [row(seat, 10.0 * seat) for seat in range(4)]
    sections: dict[str, Any] = {"algorithms": {"ppo": {"hyperparameters": SEARCHED}}, "evolution": PB2}
    sections["evolution"] = PB2 | {"resample_probability": 0.0, "mutation_probability": 1.0}
    answer = pb2.propose(make_population(rows, **sections).situation(), Random(0))
    assert isinstance(answer, Child)
    assert answer.parent.agent_number == 3
    assert answer.hyperparameters["learning_rate"] in (pytest.approx(8e-4), pytest.approx(1.2e-3))


def test_the_order_of_the_history_does_not_matter(make_population: MakePopulation, row: Row) -> None:
    from leaderboard.evolution.history import history_of

    sections: dict[str, Any] = {"algorithms": {"ppo": {"hyperparameters": SEARCHED}}, "evolution": PB2}
    situation = linked(make_population(four_generations(row, 0.5), **sections).situation())
    known = situation.history
    agents: list[Agent] = list(known.agents)
    candidates: list[Candidate] = list(known.submissions)
    Random(3).shuffle(agents)
    Random(4).shuffle(candidates)
    shuffled = history_of(situation.spec, situation.number, agents, candidates, [], [])
    other = type(situation)(**vars(situation) | {"history": shuffled})
    assert pb2.propose(other, Random(1)) == pb2.propose(situation, Random(1))
