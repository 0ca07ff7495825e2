import math
from collections import Counter
from random import Random

import pytest

from leaderboard.evolution.populations.category_bandit import EXPLORATION, Bandit, Play, draw_category


def test_all_categories_are_equally_probable_at_the_beginning() -> None:
    assert Bandit(4, 8, 10).probabilities([]) == [0.25] * 4
    assert Bandit(4, 2, 10).probabilities([]) == [0.25] * 4


def test_a_round_changes_the_weights_as_in_the_paper() -> None:
    # Each category has the probability 1/2, so the exponent of the first is 0.2 * 1 / (2 * 1/2); both get e/20 of the
    # sum of the weights, which is 2.
    bandit = Bandit(2, 8, 10)
    ratio = (math.exp(0.2) + math.e / 10) / (1 + math.e / 10)
    weights = bandit.updated([1.0, 1.0], [Play(0, 1.0), Play(1, 0.0)])
    assert weights[0] / weights[1] == pytest.approx(ratio)
    expected = [0.8 * ratio / (1 + ratio) + 0.1, 0.8 / (1 + ratio) + 0.1]
    assert bandit.probabilities([[Play(0, 1.0), Play(1, 0.0)]]) == pytest.approx(expected)


def test_a_rare_play_counts_more() -> None:
    # Probabilities are 0.8 * 3/4 + 0.1 and 0.8 / 4 + 0.1: exponents 0.2 / 1.4 and 0.2 / 0.6.
    shared = math.e / 20 * 4
    first, second = Bandit(2, 8, 10).updated([3.0, 1.0], [Play(0, 1.0), Play(1, 1.0)])
    expected = (3 * math.exp(0.2 / 1.4) + shared) / (math.exp(0.2 / 0.6) + shared)
    assert first / second == pytest.approx(expected)


def test_exploration_is_that_of_the_paper_with_fewer_plays_than_categories() -> None:
    assert Bandit(4, 2, 100).exploration == pytest.approx(math.sqrt(4 * math.log(2) / ((math.e - 1) * 200)))
    assert Bandit(40, 1, 1).exploration == 1.0
    assert Bandit(2, 2, 100).exploration == EXPLORATION


def test_no_category_is_expected_more_than_once_in_a_round() -> None:
    bandit = Bandit(4, 2, 100)
    weights, at_cap = bandit._capped([10.0, 1.0, 1.0, 1.0])
    assert at_cap == {0}
    assert bandit._distribution(weights) == pytest.approx([1 / 2, 1 / 6, 1 / 6, 1 / 6])
    assert bandit._capped([1.0, 1.1, 0.9, 1.0]) == ([1.0, 1.1, 0.9, 1.0], frozenset())


def test_several_categories_may_be_at_the_cap() -> None:
    bandit = Bandit(6, 4, 1000)
    weights, at_cap = bandit._capped([50.0, 1.0, 40.0, 1.0, 1.0, 1.0])
    assert at_cap == {0, 2}
    assert bandit._distribution(weights) == pytest.approx([1 / 4, 1 / 8, 1 / 4, 1 / 8, 1 / 8, 1 / 8])


def test_a_category_at_the_cap_does_not_grow() -> None:
    bandit = Bandit(4, 2, 100)
    with_reward = bandit.updated([10.0, 1.0, 1.0, 1.0], [Play(0, 1.0)])
    assert with_reward == pytest.approx(bandit.updated([10.0, 1.0, 1.0, 1.0], []))


def test_no_probability_is_below_the_exploration() -> None:
    rounds = [[Play(0, 1.0)] * 8 for _ in range(200)]
    first, second = Bandit(2, 8, 200).probabilities(rounds)
    assert first + second == pytest.approx(1.0)
    assert EXPLORATION / 2 <= second < 0.11


def test_a_category_that_becomes_the_best_is_found_within_a_few_rounds() -> None:
    bandit = Bandit(2, 8, 25)
    before = [[*[Play(0, 0.8)] * 4, *[Play(1, 0.2)] * 4]] * 20
    after = [[*[Play(0, 0.2)] * 4, *[Play(1, 0.8)] * 4]]
    assert bandit.probabilities(before)[0] > 0.6
    assert bandit.probabilities([*before, *after * 6])[1] > 0.6


def test_equal_rewards_make_no_category_more_probable() -> None:
    rounds = [[Play(category, 0.7) for category in range(3)]] * 30
    assert Bandit(3, 3, 30).probabilities(rounds) == pytest.approx([1 / 3] * 3)


def test_weights_do_not_overflow() -> None:
    rounds = [[Play(0, 1.0)] * 1000 for _ in range(50)]
    assert Bandit(2, 1000, 4).probabilities(rounds)[0] == pytest.approx(0.9)


def test_categories_are_drawn_with_their_probabilities() -> None:
    random = Random(1)
    drawn = Counter(draw_category(random, [0.5, 0.0, 0.3, 0.2]) for _ in range(4000))
    assert [drawn[category] / 4000 for category in range(4)] == pytest.approx([0.5, 0.0, 0.3, 0.2], abs=0.03)
