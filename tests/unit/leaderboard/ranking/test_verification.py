"""Tests when a candidate must be verified, and what another pod's evaluation says about it."""

from random import Random
from statistics import fmean, variance
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaderboard.ranking.verification import compare, next_of, would_lead
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate


def measured(returns: list[float], *, listed: bool = True) -> Evaluation:
    return Evaluation(
        mean_return=fmean(returns),
        variance=variance(returns),
        episodes=len(returns),
        episode_returns=returns if listed else [],
    )


def stated(returns: list[float], *, listed: bool = True) -> Candidate:
    return Candidate(score=fmean(returns), episodes=len(returns), episode_returns=returns if listed else [])


def noisy(seed: int, count: int, mean: float = 200.0, deviation: float = 50.0) -> list[float]:
    random = Random(seed)
    return [random.gauss(mean, deviation) for _ in range(count)]


def test_the_first_candidate_and_one_that_ranks_before_the_first_would_lead(make_candidate: Any) -> None:
    first = make_candidate(0, 10.0)
    assert would_lead((), first)
    assert would_lead((first,), make_candidate(1, 11.0))
    assert not would_lead((first,), make_candidate(1, 9.0))


def test_the_best_held_candidate_is_verified_first(make_candidate: Any) -> None:
    held = [make_candidate(0, 10.0), make_candidate(1, 30.0), make_candidate(2, 20.0)]
    assert next_of(held) is held[1]
    assert next_of([]) is None


@given(seed=st.integers(0, 500))
def test_the_same_episodes_with_the_same_returns_agree(seed: int) -> None:
    returns = noisy(seed, 64)
    finding = compare(stated(returns), measured(returns[:16]))
    # 16 of 64 episodes may have another mean by chance, within three standard errors.
    spread = variance(returns[:16]) ** 0.5
    if fmean(returns) - fmean(returns[:16]) < 3 * spread * (1 / 16 + 1 / 64) ** 0.5:
        assert finding.agrees, finding.reason


def test_all_episodes_played_again_agree() -> None:
    returns = noisy(1, 64)
    assert compare(stated(returns), measured(returns)).agrees


def test_machines_that_round_differently_agree() -> None:
    returns = noisy(2, 32)
    again = noisy(3, 4) + returns[4:]
    assert compare(stated(returns), measured(again)).agrees


INVENTED = {
    "more for every episode": lambda played: [value + 5.0 for value in played],
    "another policy's returns": lambda played: noisy(9, len(played), mean=400.0),
    "one episode that is far off": lambda played: [played[0] + 100.0 * len(played), *played[1:]],
    "a huge variance": lambda played: [value + (-1e6 if i % 2 else 1e6 + 1000.0) for i, value in enumerate(played)],
    "infinite hopes": lambda played: [1e300] * len(played),
}


@pytest.mark.parametrize("name", INVENTED)
def test_invented_returns_are_found(name: str) -> None:
    played = noisy(4, 32)
    finding = compare(stated(INVENTED[name](played)), measured(played))
    assert not finding.agrees
    assert "another pod measured" in finding.reason


def test_returns_invented_for_the_episodes_that_are_not_played_again_are_found() -> None:
    played = noisy(5, 16)
    finding = compare(stated([*played, *noisy(6, 48, mean=500.0)]), measured(played))
    assert not finding.agrees


def test_without_repeatable_episodes_the_means_are_compared() -> None:
    assert compare(stated(noisy(7, 64), listed=False), measured(noisy(8, 64), listed=False)).agrees
    invented = stated(noisy(7, 64, mean=400.0), listed=False)
    assert not compare(invented, measured(noisy(8, 64), listed=False)).agrees


def test_a_score_that_is_lower_than_the_measured_one_is_accepted() -> None:
    assert compare(stated(noisy(1, 32, mean=100.0)), measured(noisy(2, 32))).agrees


@pytest.mark.parametrize("broken", [{"episodes": 0}, {"mean_return": float("nan")}, {"variance": float("inf")}])
def test_an_evaluation_without_a_score_verifies_nothing(broken: dict[str, Any]) -> None:
    evaluation = measured(noisy(1, 16))
    for name, value in broken.items():
        setattr(evaluation, name, value)
    assert not compare(stated(noisy(1, 16)), evaluation).agrees
