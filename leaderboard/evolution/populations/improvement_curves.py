"""Compares the scores of two runs of training where they have the same performance. Pure; used by `fire-pbt`.

A curve is the scores of one run in the order of its training. Two curves are aligned at the higher one of their first
scores, which the other curve reaches later, and are compared over the length that both have from there on. So a run
that starts from worse parameters is judged by how fast it improves from the same performance on. (Dalibard and
Jaderberg, "Faster Improvement Rate Population Based Training", arXiv 2109.13800.)
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

Curve = Sequence[float]
SHIFTS = 10
"""Shifts that are tried where one curve lies above the other."""


class Overlap(NamedTuple):
    """Where two curves have the same performance."""

    first: int
    """Index in the first curve."""
    second: int
    """Index in the second curve."""
    length: int
    """Number of scores that are compared."""


def overlap_of(first: Curve, second: Curve) -> Overlap | None:
    """Returns where two curves are compared; None if no score of the lower one reaches the beginning of the other.

    Alignment uses means of neighboring scores, so that a single lucky score does not decide it.
    """
    if not first or not second:
        return None
    means, others = smoothed(first), smoothed(second)
    begin, other_begin = _first_at_least(means, others[0]), _first_at_least(others, means[0])
    if begin is None or other_begin is None:
        return None
    return Overlap(begin, other_begin, min(len(first) - begin, len(second) - other_begin))


def smoothed(curve: Curve) -> list[float]:
    """Returns the mean of each score and its two neighbors; the first and the last score have only one, and stay."""
    inner = [math.fsum(curve[place - 1 : place + 2]) / 3 for place in range(1, len(curve) - 1)]
    return [*curve[:1], *inner, *curve[1:][-1:]]


def gain(first: Curve, second: Curve) -> float:
    """Returns by how much the best score of the first curve exceeds that of the second over the same training.

    If every score of the first is higher than all of the second, the first is moved down until they overlap: the result
    is the largest over the possible shifts, at least 0. If every one is lower, it is 0. So the gains of two curves over
    each other need not be opposite.
    """
    shared = overlap_of(first, second)
    if shared is not None:
        return _gain_within(first, second, shared)
    if not first or not second or min(first) <= max(second):
        return 0.0
    least, most = min(first) - max(second), min(first) - min(second)
    gains = [0.0]
    for number in range(SHIFTS):
        shift = least + (most - least) * number / SHIFTS
        moved = [score - shift for score in first]
        shared = overlap_of(moved, second)
        if shared is not None:
            gains.append(_gain_within(moved, second, shared))
    return max(gains)


def sign_test(first: Curve, second: Curve) -> float:
    """Returns the probability that so many scores of the first curve are higher by chance (one-sided sign test).

    It is 0 if all of its scores are higher than all of the second, and 1 if there is nothing to compare.
    """
    shared = overlap_of(first, second)
    if shared is None:
        return 0.0 if first and second and min(first) > max(second) else 1.0
    pairs = zip(first[shared.first :], second[shared.second :], strict=False)
    higher = sum(one > other for one, other in pairs)
    outcomes = sum(math.comb(shared.length, wins) for wins in range(higher, shared.length + 1))
    # A quotient of integers: as a float, the divisor overflows at 1,024 scores.
    return outcomes / (1 << shared.length)


def _gain_within(first: Curve, second: Curve, shared: Overlap) -> float:
    best = max(first[shared.first : shared.first + shared.length])
    return best - max(second[shared.second : shared.second + shared.length])


def _first_at_least(curve: Curve, score: float) -> int | None:
    return next((place for place, one in enumerate(curve) if one >= score), None)
