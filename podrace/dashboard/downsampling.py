"""Reduces curves to what a chart of limited width can show. Pure."""

import bisect
import itertools
import math
from collections.abc import Sequence
from statistics import quantiles

Value = float | None


def edges(low: float, high: float, buckets: int) -> list[float]:
    """Returns the limits of equal parts of a range: `buckets` + 1 numbers in ascending order.

    Raises:
        ValueError: There is no bucket, or the range is not finite.
    """
    if buckets < 1 or not math.isfinite(low) or not math.isfinite(high):
        raise ValueError(f"edges({low}, {high}, {buckets}): expected a finite range and at least one bucket")
    width = max(high - low, 0.0) / buckets
    return [low + width * number for number in range(buckets)] + [max(low, high)]


def slots(limits: Sequence[float]) -> list[float]:
    """Returns the two positions of each bucket, at a quarter and at three quarters, to which values are moved."""
    return [start + (end - start) * share for start, end in itertools.pairwise(limits) for share in (0.25, 0.75)]


def extremes(positions: Sequence[float], values: Sequence[float], limits: Sequence[float]) -> list[Value]:
    """Returns the smallest and the largest value of each bucket, in the order in which they occur.

    A curve that is drawn through them has the same outline as one through all values. A bucket with a single value has
    it in its first slot.

    Args:
        positions: Positions in ascending order.
        values: One value for each position.
        limits: Limits of the buckets, as from `edges`. Values outside of them are left out.

    Returns:
        Two slots for each bucket; None: there is no value.
    """
    first, end = _inside(positions, limits)
    last = len(limits) - 2
    bucket = _bucket_of(positions[first], limits, 0) if first < end else 0
    found: list[Value] = [None, None] * bucket
    while first < end:
        after = bisect.bisect_left(positions, limits[bucket + 1], first, end) if bucket < last else end
        found += _outline(values[first:after])
        first, bucket = after, bucket + 1
    return found + [None] * (2 * (last + 1) - len(found))


def _outline(part: Sequence[float]) -> tuple[Value, Value]:
    """Returns the smallest and the largest value in the order in which they occur."""
    if not part:
        return None, None
    low, high = min(part), max(part)
    if low == high:
        return low, None
    return (low, high) if part.index(low) < part.index(high) else (high, low)


def _inside(positions: Sequence[float], limits: Sequence[float]) -> tuple[int, int]:
    first = bisect.bisect_left(positions, limits[0])
    return first, bisect.bisect_right(positions, limits[-1], first)


def _bucket_of(position: float, limits: Sequence[float], at_least: int) -> int:
    """Returns the bucket of a position within the limits; the last one includes its upper limit."""
    return min(bisect.bisect_right(limits, position, at_least) - 1, len(limits) - 2)


def bands(
    curves: Sequence[tuple[Sequence[float], Sequence[float]]], limits: Sequence[float]
) -> tuple[list[Value], list[Value], list[Value]]:
    """Returns the 10 % quantile, the median and the 90 % quantile over several curves in each bucket.

    Args:
        curves: Positions in ascending order and values of each curve.
        limits: Limits of the buckets, as from `edges`.

    Returns:
        Three lists with two slots for each bucket, of which the second is always None.
    """
    gathered: list[list[float]] = [[] for _ in limits[1:]]
    for positions, values in curves:
        first, end = _inside(positions, limits)
        bucket = 0
        while first < end:
            bucket = _bucket_of(positions[first], limits, bucket)
            after = bisect.bisect_left(positions, limits[bucket + 1], first, end) if bucket + 2 < len(limits) else end
            gathered[bucket].extend(values[first:after])
            first = after
    low: list[Value] = [None] * (2 * len(gathered))
    middle, high = list(low), list(low)
    for number, found in enumerate(gathered):
        if found:
            tenths = quantiles(found, n=10, method="inclusive") if len(found) > 1 else [found[0]] * 9
            low[2 * number], middle[2 * number], high[2 * number] = tenths[0], tenths[4], tenths[8]
    return low, middle, high


def held(positions: Sequence[float], values: Sequence[float], at: Sequence[float]) -> list[Value]:
    """Returns the values of a step curve at given positions: the last value at or before each; None before the first.

    Args:
        positions: Positions of the steps in ascending order.
        values: One value for each step.
        at: Positions in ascending order.
    """
    found: list[Value] = []
    step = 0
    for position in at:
        step = bisect.bisect_right(positions, position, step)
        found.append(values[step - 1] if step else None)
    return found
