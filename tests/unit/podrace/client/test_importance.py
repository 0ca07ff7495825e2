import math
import sys
from collections.abc import Callable
from random import Random
from statistics import fmean
from typing import Any

import pytest

from podrace.client.forest import forest_shares
from podrace.client.importance import (
    SMALLEST_SAMPLE,
    AlgorithmImportance,
    chance_of,
    explained_share,
    importance_of,
    observations_of,
    slices_of,
)
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.specification import resolve
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

NAME = "t-abc123"


def specification(hyperparameters: dict[str, Any] | None = None) -> TournamentSpec:
    values = {
        "environment": {"id": "pendulum"},
        "algorithms": {"ppo": {"hyperparameters": hyperparameters or {}}},
        "objective": {"environment_steps": 1000},
    }
    return resolve.resolve(resolve.parse(values, source="test"))


def agent(number: int, **values: Any) -> Agent:
    made = Agent(agent_id=f"{NAME}-a{number}", tournament_id=NAME, number=number, algorithm="ppo")
    made.hyperparameters.update(values)
    return made


def submission(number: int, score: float, *, trial: int | None = None, **others: Any) -> Candidate:
    return Candidate(
        agent_id=f"{NAME}-a{number}",
        agent_number=number,
        algorithm="ppo",
        trial=number if trial is None else trial,
        score=score,
        **{"environment_steps": 1000, **others},
    )


def importance(
    count: int, score: Callable[[dict[str, Any], Random], float], draw: Callable[[Random], dict[str, Any]]
) -> AlgorithmImportance:
    """Returns the importance in a population of trials with random values."""
    random = Random(count)
    population = [draw(random) for _ in range(count)]
    agents = [agent(number, **values) for number, values in enumerate(population)]
    submissions = [submission(number, score(values, random)) for number, values in enumerate(population)]
    (found,) = importance_of(specification(), agents, submissions)
    return found


def uniform(random: Random) -> dict[str, Any]:
    return {name: random.random() for name in ("strong", "weak", "none")}


def additive(values: dict[str, Any], random: Random) -> float:
    """A function whose variance is 0.8 of `strong`, 0.2 of `weak` and 0 of `none`."""
    return 2 * values["strong"] + values["weak"]


def shares(found: AlgorithmImportance) -> dict[str, float]:
    return {entry.name: entry.share or 0.0 for entry in found.hyperparameters}


def test_the_shares_of_an_additive_function_are_those_of_its_variances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    found = shares(importance(2000, additive, uniform))
    # Five slices see 24/25 of the variance of a linear effect.
    assert found["strong"] == pytest.approx(0.8 * 0.96, abs=0.03)
    assert found["weak"] == pytest.approx(0.2 * 0.96, abs=0.04)
    assert found["none"] == pytest.approx(0.0, abs=0.01)


def test_forty_trials_suffice_to_order_strong_and_weak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    found = importance(40, lambda values, random: additive(values, random) + random.gauss(0, 0.1), uniform)
    assert found.hyperparameters[0].name == "strong"
    assert all(entry.forest_share is None for entry in found.hyperparameters)


def test_a_choice_that_decides_has_all_of_the_variance_whatever_the_order_of_its_values() -> None:
    found = importance(
        60,
        lambda values, random: {"relu": 3.0, "tanh": 1.0, "elu": 2.0}[values["activation"]] + random.gauss(0, 0.01),
        lambda random: {"activation": random.choice(["relu", "tanh", "elu"]), "x": random.random()},
    )
    first = found.hyperparameters[0]
    assert first.name == "activation"
    assert first.share == pytest.approx(1.0, abs=0.01)
    assert {part.label: round(part.mean) for part in first.slices} == {"relu": 3, "tanh": 1, "elu": 2}


def test_an_optimum_in_the_middle_is_important_although_it_has_no_covariance() -> None:
    found = importance(200, lambda values, _: -abs(values["strong"] - 0.5), uniform)
    assert found.hyperparameters[0].name == "strong"
    assert (found.hyperparameters[0].share or 0) > 0.8


def test_the_share_of_what_has_no_effect_is_zero_on_average() -> None:
    random = Random(1)
    measured = []
    for _ in range(400):
        points = [(random.random(), random.gauss(0, 1)) for _ in range(24)]
        measured.append(explained_share([[score for _, score in group] for group in slices_of(points)]))
    known = [share for share in measured if share is not None]
    assert len(known) == 400
    error = (sum((share - fmean(known)) ** 2 for share in known) / 399 / 400) ** 0.5
    assert abs(fmean(known)) < 3 * error


def test_the_probability_by_chance_is_small_only_for_an_effect() -> None:
    random = Random(2)
    below = 0
    for _ in range(200):
        points = [(random.random(), random.gauss(0, 1)) for _ in range(20)]
        below += chance_of([[score for _, score in group] for group in slices_of(points)]) <= 0.05
    assert below <= 20, "200 x 0.05 = 10 with a standard deviation of 3"
    assert chance_of([[1.0, 2.0, 3.0, 2.0, 1.0], [7.0, 8.0, 9.0, 8.0, 7.0], [4.0, 5.0, 4.0, 5.0]]) == 1 / 200


def test_groups_that_do_not_differ_are_certain_by_chance() -> None:
    assert chance_of([[1.0, 2.0], [2.0, 1.0]]) == 1.0


@pytest.mark.parametrize("groups", [[], [[1.0, 2.0]], [[1.0], [2.0]], [[1.0, 1.0], [1.0]]])
def test_a_share_that_is_not_defined_is_none(groups: list[list[float]]) -> None:
    assert explained_share(groups) is None


# --- trials ------------------------------------------------------------------------------------------------------


def test_a_trial_that_was_continued_is_one_observation_with_its_highest_estimate() -> None:
    agents = [agent(0, learning_rate=0.1), agent(1, learning_rate=0.2), agent(2, learning_rate=0.1)]
    submissions = [
        submission(0, 1.0, estimate=0.9),
        submission(1, 5.0, estimate=4.5),
        submission(0, 9.0, estimate=5.0),
        submission(2, 7.0, trial=0, estimate=8.0, environment_steps=3000),
        submission(2, 2.0, trial=0, estimate=4.5),
    ]
    first, second = observations_of(agents, submissions)
    assert (first.number, first.score, first.environment_steps) == (0, 8.0, 3000)
    assert (second.number, second.score, dict(second.values)) == (1, 4.5, {"learning_rate": 0.2})


def test_the_number_of_scores_of_a_trial_does_not_change_the_importance() -> None:
    random = Random(3)
    agents = [agent(number, x=random.random(), y=random.random()) for number in range(30)]
    scores = [one.hyperparameters["x"] + 0.1 * one.hyperparameters["y"] for one in agents]
    once = [submission(number, score) for number, score in enumerate(scores)]
    often = [*once, *(submission(number, score - 1) for number, score in enumerate(scores) if score > 0.6)]
    assert importance_of(specification(), agents, once) == importance_of(specification(), agents, often)


def test_candidates_without_a_trial_count_by_agent_and_scores_of_another_evaluator_do_not_count() -> None:
    old = Candidate(agent_id=f"{NAME}-a0", agent_number=0, algorithm="ppo", score=3.0)
    fault = submission(1, 9.0, evaluator_fault="the plugin is late")
    (found,) = observations_of([agent(0, x=1), agent(1, x=2)], [old, fault])
    assert (found.number, found.score) == (0, 3.0)


def test_trials_in_which_the_condition_is_not_met_are_left_out() -> None:
    spec = specification(
        {
            "activation": {"choices": ["relu", "tanh"]},
            "clip_range": {"low": 0.1, "high": 0.3, "when": {"activation": "relu"}},
        }
    )
    agents = [
        agent(number, activation="relu" if number % 2 else "tanh", clip_range=0.1 + 0.01 * number)
        for number in range(20)
    ]
    (found,) = importance_of(spec, agents, [submission(number, float(number)) for number in range(20)])
    assert {entry.name: entry.trials for entry in found.hyperparameters} == {"activation": 20, "clip_range": 10}


def test_what_does_not_vary_is_not_listed_and_the_steps_are_listed_separately() -> None:
    agents = [agent(number, fixed=1, x=number) for number in range(20)]
    submissions = [submission(number, float(number), environment_steps=1000 * number) for number in range(20)]
    (found,) = importance_of(specification(), agents, submissions)
    assert [entry.name for entry in found.hyperparameters] == ["x"]
    assert found.steps is not None
    assert (found.steps.share or 0) > 0.8


def test_few_trials_have_slices_but_no_share() -> None:
    agents = [agent(number, x=number) for number in range(SMALLEST_SAMPLE - 1)]
    (found,) = importance_of(specification(), agents, [submission(one.number, one.number / 2) for one in agents])
    (entry,) = found.hyperparameters
    assert entry.share is None
    assert sum(part.trials for part in entry.slices) == SMALLEST_SAMPLE - 1


# --- slices ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [8, 13, 20, 57])
def test_slices_of_a_range_are_of_about_equal_size_and_in_order(count: int) -> None:
    random = Random(count)
    points = [(random.random(), 0.0) for _ in range(count)]
    parts = slices_of(points)
    assert len(parts) == max(2, min(5, count // 4))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert [value for part in parts for value, _ in part] == sorted(value for value, _ in points)


def test_equal_values_are_in_one_slice() -> None:
    points = [(float(value), 0.0) for value in [0] * 12 + [1, 2, 3, 4, 5, 6, 7, 8]]
    for part, later in zip(slices_of(points), slices_of(points)[1:], strict=False):
        assert part[-1][0] < later[0][0]


def test_a_slice_has_the_mean_and_its_standard_error() -> None:
    agents = [agent(number, x=float(number // 2)) for number in range(4)]
    (found,) = importance_of(
        specification(), agents, [submission(n, score) for n, score in enumerate([1.0, 3.0, 5.0, 5.0])]
    )
    first, second = found.hyperparameters[0].slices
    assert (first.label, first.mean, first.trials) == ("0", 2.0, 2)
    assert first.standard_error == pytest.approx(math.sqrt(2) / math.sqrt(2))
    assert (second.label, second.mean, second.standard_error) == ("1", 5.0, 0.0)


# --- forest ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_forest_finds_the_shares_of_an_additive_function() -> None:
    pytest.importorskip("sklearn")
    found = {entry.name: entry.forest_share for entry in importance(300, additive, uniform).hyperparameters}
    assert found["strong"] == pytest.approx(0.8, abs=0.08)
    assert found["weak"] == pytest.approx(0.2, abs=0.08)
    assert found["none"] == pytest.approx(0.0, abs=0.03)


@pytest.mark.long
def test_a_forest_gives_noise_no_importance() -> None:
    pytest.importorskip("sklearn")
    found = importance(100, lambda _, random: random.gauss(0, 1), uniform)
    assert all((entry.forest_share or 0) < 0.1 for entry in found.hyperparameters)


def test_a_forest_needs_enough_observations_that_differ() -> None:
    assert forest_shares({"x": [1.0] * 5}, [1.0] * 5) == {}
    assert forest_shares({"x": list(range(30))}, [1.0] * 30) == {}


def test_without_scikit_learn_there_are_no_shares_of_a_forest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    assert forest_shares({"x": list(range(30))}, [float(number) for number in range(30)]) == {}
