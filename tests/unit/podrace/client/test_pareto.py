from itertools import product
from random import Random
from typing import Any

import pytest

from podrace.client.pareto import SCORE, STEPS, Measure, dominates, front, parse_measure
from podrace.errors import InvalidArgument
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate

RISK = Measure("annual_volatility", "min")


def candidate(number: int, score: float, steps: int = 0, **others: Any) -> Candidate:
    return Candidate(
        agent_id=f"t-a{number}",
        candidate_id=f"c{number}",
        sequence=number,
        score=score,
        environment_steps=steps,
        **others,
    )


def names(candidates: Any) -> list[str]:
    return [one.candidate_id for one in candidates]


def test_a_candidate_that_is_worse_in_everything_is_dominated() -> None:
    best, cheap, dominated = candidate(0, 9.0, 500), candidate(1, 5.0, 100), candidate(2, 4.0, 200)
    found = front([dominated, cheap, best], [SCORE, STEPS])
    assert names(found.candidates) == ["c0", "c1"], "the best by the first measure comes first"
    assert (found.compared, found.left_out) == (3, 0)


def test_equal_candidates_do_not_dominate_each_other() -> None:
    twins = [candidate(1, 5.0, 100), candidate(0, 5.0, 100)]
    assert names(front(twins, [SCORE, STEPS]).candidates) == ["c0", "c1"]


def test_equal_in_one_measure_and_worse_in_another_is_dominated() -> None:
    assert names(front([candidate(0, 5.0, 100), candidate(1, 5.0, 101)], [SCORE, STEPS]).candidates) == ["c0"]


@pytest.mark.parametrize(("directions", "seed"), list(product(product(["max", "min"], repeat=3), range(3))))
def test_the_front_is_what_the_definition_says(directions: tuple[str, ...], seed: int) -> None:
    random = Random(seed)
    measures = [Measure(name, direction) for name, direction in zip(["score", "x", "y"], directions, strict=True)]
    everyone = [
        candidate(number, random.randrange(6), episode_metrics={"x": random.randrange(6), "y": random.randrange(6)})
        for number in range(60)
    ]

    def losses(one: Candidate) -> list[float]:
        values = one.score, one.episode_metrics["x"], one.episode_metrics["y"]
        return [measure.loss(value) for measure, value in zip(measures, values, strict=True)]

    wanted = {
        one.candidate_id for one in everyone if not any(dominates(losses(other), losses(one)) for other in everyone)
    }
    assert set(names(front(everyone, measures).candidates)) == wanted


def test_candidates_without_a_measure_are_left_out() -> None:
    known = candidate(0, 1.0, episode_metrics={"annual_volatility": 0.2})
    nan = candidate(1, 2.0, episode_metrics={"annual_volatility": float("nan")})
    faulty = candidate(2, 9.0, episode_metrics={"annual_volatility": 0.1}, evaluator_fault="the plugin is late")
    found = front([known, nan, faulty, candidate(3, 3.0)], [SCORE, RISK])
    assert (names(found.candidates), found.compared, found.left_out) == (["c0"], 1, 3)


@pytest.mark.parametrize(
    ("text", "direction"),
    [
        ("annual_volatility", "min"),
        ("sharpe_ratio", "max"),
        ("sharpe_ratio=min", "min"),
        ("environment_steps", "min"),
        ("core_seconds", "min"),
        ("own=max", "max"),
    ],
)
def test_a_measure_has_the_given_direction_or_the_known_one(text: str, direction: str) -> None:
    metrics = {"annual_volatility": 0.1, "sharpe_ratio": 1.0, "own": 2.0}
    measure = parse_measure(text, [candidate(0, 1.0, episode_metrics=metrics)])
    assert (measure.name, measure.direction) == (text.partition("=")[0], direction)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("own", "--measure own: state whether larger or smaller is better, with own=max or own=min"),
        ("own=up", "--measure own=up: state whether larger or smaller is better"),
        ("sharpe", "--measure sharpe: unknown measure 'sharpe'; did you mean 'sharpe_ratio'"),
    ],
)
def test_a_measure_that_cannot_be_used_is_refused(text: str, line: str) -> None:
    with pytest.raises(InvalidArgument, match=line):
        parse_measure(text, [candidate(0, 1.0, episode_metrics={"own": 1.0, "sharpe_ratio": 1.0})])


def test_no_candidates_have_an_empty_front() -> None:
    assert front([], [SCORE, STEPS]).candidates == ()
