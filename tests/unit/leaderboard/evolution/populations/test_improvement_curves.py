"""Comparison of two runs of training from the same performance on."""

import itertools
from collections.abc import Sequence

import pytest

from leaderboard.evolution.populations.improvement_curves import gain, overlap_of, sign_test, smoothed

LOW = [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]


@pytest.mark.parametrize(
    ("curve", "expected"),
    [(LOW, LOW), ([0.0, 9.0, 0.0, 9.0], [0.0, 3.0, 6.0, 9.0]), ([3.0, 5.0], [3.0, 5.0]), ([3.0], [3.0]), ([], [])],
)
def test_a_score_counts_with_its_neighbors(curve: Sequence[float], expected: Sequence[float]) -> None:
    assert smoothed(curve) == expected


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (LOW, (0, 0, 6)),
        ([28.0, 32.0, 60.0], (3, 0, 3)),
        ([44.0, 46.0, 90.0, 91.0], (5, 0, 1)),
        ([60.0, 70.0], None),
        ([-20.0, -10.0, 0.0, 10.0, 20.0], (0, 2, 3)),
        ([-20.0, -10.0], None),
        ([], None),
    ],
)
def test_curves_are_aligned_at_the_higher_first_score(
    other: Sequence[float], expected: tuple[int, int, int] | None
) -> None:
    assert overlap_of(LOW, other) == expected
    mirrored = None if expected is None else (expected[1], expected[0], expected[2])
    assert overlap_of(other, LOW) == mirrored


def test_the_gain_is_that_from_the_same_performance_on() -> None:
    fast = [28.0, 32.0, 60.0, 95.0]
    assert gain(fast, LOW) == 60.0 - 50.0, "over three scores: the other one ends there"
    assert gain(LOW, fast) == -10.0
    assert gain(fast, fast) == 0.0


def test_a_curve_that_lies_above_the_other_is_moved_down() -> None:
    # Moved down by 90 to 10, the second score of the other: after four more scores, it is at 70 and the other at 50.
    steep = [100.0, 115.0, 130.0, 145.0, 160.0, 175.0]
    flat = [100.0, 100.5, 101.0, 101.5, 102.0, 102.5]
    assert gain(steep, LOW) == 20.0
    assert gain(flat, LOW) == 0.0
    assert gain(LOW, steep) == gain(LOW, flat) == 0.0


def test_a_gain_does_not_depend_on_the_origin_of_scores() -> None:
    fast = [28.0, 32.0, 60.0, 95.0]
    moved, other = [one - 1000.0 for one in fast], [one - 1000.0 for one in LOW]
    assert gain(moved, other) == gain(fast, LOW)


@pytest.mark.parametrize("length", [1, 4, 7])
def test_the_probability_is_that_of_as_many_heads_of_a_coin(length: int) -> None:
    base = [0.0] * length
    for wins in range(length + 1):
        curve = [1.0 if place >= length - wins else -1.0 for place in range(length)]
        shared = overlap_of(curve, base)
        if shared is None or shared.length < length:
            continue
        tosses = list(itertools.product((0, 1), repeat=length))
        expected = sum(sum(toss) >= wins for toss in tosses) / len(tosses)
        assert sign_test(curve, base) == expected


def test_a_curve_above_all_of_the_other_is_ahead_without_doubt() -> None:
    assert sign_test([60.0, 70.0], LOW) == 0.0
    assert sign_test(LOW, [60.0, 70.0]) == 1.0
    assert sign_test([], LOW) == 1.0


def test_curves_of_any_length_are_compared() -> None:
    assert sign_test([1.0] * 3_000, [0.0, *[2.0] * 2_999]) == 1.0
    assert sign_test([0.0, *[1.0] * 2_999], [0.0] * 3_000) < 1e-300
