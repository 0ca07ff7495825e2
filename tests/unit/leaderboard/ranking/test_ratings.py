"""Ratings are the maximum of the likelihood of the results, with errors of its curvature; cycles are no progress."""

import math
from itertools import combinations
from random import Random

import pytest

from leaderboard.ranking.ratings import (
    BUILT_IN,
    PRIOR,
    SCALE,
    Rating,
    Ratings,
    Result,
    circle,
    expected_points,
    most_informative,
)


def test_the_rating_of_one_player_solves_the_hand_derived_equation() -> None:
    ratings = Ratings([Result("a", BUILT_IN, 30, 0, 10)])
    strength = ratings.strengths["a"]
    # 30 (1 - p) - 10 p = s / PRIOR^2, and the curvature is 40 p (1 - p) + 1 / PRIOR^2.
    p = 1 / (1 + math.exp(-strength))
    assert 30 * (1 - p) - 10 * p == pytest.approx(strength / PRIOR**2, abs=1e-7)
    assert strength == pytest.approx(math.log(3), abs=0.01)
    error = SCALE / math.sqrt(40 * p * (1 - p) + 1 / PRIOR**2)
    assert ratings.rating("a").error == pytest.approx(error, rel=1e-6)
    assert ratings.rating("a").value == pytest.approx(SCALE * strength)


def test_a_draw_is_half_a_win() -> None:
    drawn = Ratings([Result("a", BUILT_IN, 0, 20, 0)])
    assert drawn.strengths["a"] == pytest.approx(0.0, abs=1e-9)
    assert Ratings([Result("a", BUILT_IN, 5, 10, 0)]).strengths == Ratings([Result("a", BUILT_IN, 10, 0, 5)]).strengths


def test_the_errors_of_two_players_are_those_of_the_inverse_matrix() -> None:
    ratings = Ratings([Result("a", BUILT_IN, 6, 0, 4), Result("b", "a", 5, 0, 5)])
    a, b = ratings.strengths["a"], ratings.strengths["b"]
    first = 10 * expected_points(a, 0) * expected_points(0, a)
    second = 10 * expected_points(a, b) * expected_points(b, a)
    prior = 1 / PRIOR**2
    # H = [[first + second + prior, -second], [-second, second + prior]]
    determinant = (first + second + prior) * (second + prior) - second**2
    assert ratings.rating("a").error == pytest.approx(SCALE * math.sqrt((second + prior) / determinant), rel=1e-6)
    wide = SCALE * math.sqrt((first + second + prior) / determinant)
    assert ratings.rating("b").error == pytest.approx(wide, rel=1e-6)
    # b is as strong as a, but less is known about it.
    assert ratings.rating("b").error > ratings.rating("a").error


def test_a_player_that_has_won_all_its_games_has_a_finite_rating() -> None:
    rating = Ratings([Result("a", BUILT_IN, 1000, 0, 0)]).rating("a")
    assert 500 < rating.value < 3000
    assert rating.error > 50


def test_unknown_players_have_the_rating_of_the_prior() -> None:
    assert Ratings([]).rating("a").value == 0.0
    assert Ratings([]).rating("a").error == pytest.approx(800.0)
    assert Ratings([]).rating(BUILT_IN).error == 0.0


def test_the_fit_does_not_depend_on_who_was_called_the_player() -> None:
    results = [Result("a", "b", 7, 1, 2), Result("b", "c", 6, 0, 4), Result("c", BUILT_IN, 8, 0, 2)]
    swapped = [Result(one.opponent, one.player, one.losses, one.draws, one.wins) for one in results]
    one, other = Ratings(results), Ratings(swapped)
    assert one.strengths == pytest.approx(other.strengths, abs=1e-7)
    assert one.misfit().value == pytest.approx(other.misfit().value, abs=1e-6)


def test_true_strengths_lie_within_the_errors_and_fit_well() -> None:
    random = Random(4)
    true = {f"p{index}": random.gauss(0.0, 1.0) for index in range(20)} | {BUILT_IN: 0.0}
    results = []
    for one, other in combinations(sorted(true), 2):
        wins = sum(random.random() < expected_points(true[one], true[other]) for _ in range(40))
        results.append(Result(one, other, wins, 0, 40 - wins))
    ratings = Ratings(results)
    deviations = []
    for name in sorted(true):
        if name != BUILT_IN:
            rating = ratings.rating(name)
            deviations.append((rating.value - SCALE * true[name]) / rating.error)
    assert sum(abs(value) < 2 for value in deviations) >= 16
    assert not ratings.misfit().large


def test_a_cycle_has_equal_ratings_and_a_misfit() -> None:
    cycle = [Result("rock", "scissors", 32, 0, 0), Result("scissors", "paper", 32, 0, 0)]
    cycle.append(Result("paper", "rock", 32, 0, 0))
    even = [Result(name, BUILT_IN, 11, 10, 11) for name in ("rock", "paper", "scissors")]
    ratings = Ratings([*cycle, *even])
    assert [ratings.strengths[name] for name in ("rock", "paper", "scissors")] == pytest.approx([0.0] * 3, abs=1e-7)
    assert ratings.misfit().large
    ordered = [Result("a", "b", 24, 0, 8), Result("b", "c", 24, 0, 8), Result("a", "c", 29, 0, 3)]
    assert not Ratings(ordered).misfit().large


def test_opponents_of_equal_strength_say_most() -> None:
    strengths = [("weak", -4.0), ("equal", 0.1), ("strong", 3.0), ("close", -0.5)]
    assert most_informative(0.0, strengths, 3) == ["equal", "close", "strong"]
    assert most_informative(3.0, strengths, 1) == ["strong"]
    assert most_informative(0.0, [], 3) == []


def test_games_against_itself_do_not_count() -> None:
    assert Ratings([Result("a", "a", 5, 0, 5)]).strengths == {}


def test_the_misfit_counts_free_strengths_also_without_the_built_in_opponent() -> None:
    three = [Result("a", "b", 5, 0, 5), Result("b", "c", 5, 0, 5), Result("c", "a", 5, 0, 5)]
    assert Ratings(three).misfit().freedom == 1
    assert Ratings([*three, Result("a", BUILT_IN, 5, 0, 5)]).misfit().freedom == 1
    assert Ratings([Result("a", "b", 5, 0, 5), Result("c", "d", 5, 0, 5)]).misfit().freedom == 0


def test_a_circle_consists_of_leads_that_are_no_chance() -> None:
    clear = [Result("a", "b", 30, 0, 2), Result("b", "c", 20, 0, 4), Result("c", "a", 25, 0, 5)]
    assert circle(clear, "b") == ["b", "c", "a"]
    assert circle([*clear, Result("d", "a", 20, 0, 1)], "d") == []
    chance = [*clear[:2], Result("c", "a", 17, 0, 15)]
    assert circle(chance, "a") == []
    assert circle([], "a") == []


def test_known_ratings_stay_and_their_errors_are_propagated() -> None:
    known = {"k": Rating(200.0, 30.0)}
    exact = Ratings([Result("a", "k", 20, 0, 20)], {"k": Rating(200.0, 0.0)}).rating("a")
    found = Ratings([Result("a", "k", 20, 0, 20)], known)
    assert found.rating("k") == known["k"]
    # As strong as the known one, apart from the influence of the prior.
    assert found.rating("a").value == pytest.approx(200.0, abs=3.0)
    p = expected_points(found.strengths["a"], 200.0 / SCALE)
    weight = 40 * p * (1 - p)
    share = weight / (weight + 1 / PRIOR**2)
    assert found.rating("a").error == pytest.approx(math.hypot(exact.error, share * 30.0), rel=1e-6)
