"""Computes bootstrap intervals of means, and mean learning curves over seeds (pure).

The bootstrap (Efron 1979) approximates the distribution of a mean by the means of samples drawn from the values with
replacement. The intervals are percentile intervals, as recommended for few runs of deep RL by Agarwal et al. 2021
(section 4).
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from podrace.leaderboard.v1.leaderboard_pb2 import Candidate

RESAMPLES = 10_000
CONFIDENCE = 0.95
CURVE_RESAMPLES = 2_000
"""Number of resamples for an interval in a plot, which has one interval at every step of the curve."""


@dataclass(frozen=True)
class Estimate:
    """A mean, and its interval if there are at least two values."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class BestScorePoint:
    """A point of a best-score curve: the best score of a tournament rose, or the tournament ended."""

    environment_steps: float
    """Environment steps of all agents until their last submissions."""
    seconds: float
    """Time since the first agent started, without pauses."""
    score: float
    """Best score so far."""


@dataclass(frozen=True)
class MeanCurve:
    """Mean over seeds, constant between two positions."""

    positions: tuple[float, ...]
    estimates: tuple[Estimate, ...]


# --- bootstrap ---------------------------------------------------------------------------------------------------


def bootstrap_mean(values: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """Returns the mean of values and its percentile bootstrap interval, reproducible for the same order and seed.

    Args:
        values: At least one value.
        resamples: Number of samples to draw.
        seed: Seed of the random generator.
    """
    mean = _mean(values)
    if len(values) < 2:
        return Estimate(mean, None, None)
    return Estimate(mean, *bootstrap_interval(values, _mean, resamples=resamples, seed=seed))


def bootstrap_interval(
    values: Sequence[float],
    statistic: Callable[[Sequence[float]], float],
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """Returns the percentile bootstrap interval of a statistic, for instance `statistics.median`.

    Args:
        values: At least two values; the interval of a single value is a point.
        statistic: Function of a sample as long as `values`, independent of its order.
        confidence: Fraction of the sampled statistics within the interval; the rest is split equally.
        resamples: Number of samples to draw.
        seed: Seed of the random generator.
    """
    draws = _draws(len(values), resamples, seed)
    found = sorted((statistic([values[index] for index in draw]), count) for draw, count in draws.items())
    # Rounded, because 1 - 0.95 is not exactly 0.05 in binary.
    tail = round((1 - confidence) / 2, 9)
    return _quantile(found, tail), _quantile(found, 1 - tail)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@lru_cache(maxsize=32)
def _draws(count: int, resamples: int, seed: int) -> Mapping[tuple[int, ...], int]:
    """Returns samples of `count` indices with replacement, and how often each was drawn; few values repeat."""
    generator = random.Random(seed)
    return Counter(tuple(sorted(generator.choices(range(count), k=count))) for _ in range(resamples))


def _quantile(weighted: Sequence[tuple[float, int]], fraction: float) -> float:
    """Returns the smallest value with at least this fraction of the weight at or below it; values are ascending."""
    wanted = fraction * sum(weight for _, weight in weighted)
    reached = 0
    for value, weight in weighted:
        reached += weight
        if reached >= wanted:
            return value
    return weighted[-1][0]


# --- learning curves ---------------------------------------------------------------------------------------------


def running_seconds(seconds: float, pauses: Iterable[tuple[float, float]]) -> float:
    """Returns how long a tournament had been running at a given time.

    Args:
        seconds: Time since the creation of the tournament.
        pauses: Begin and end of each pause on the same clock, without overlaps.
    """
    return seconds - sum(max(0.0, min(end, seconds) - begin) for begin, end in pauses)


def best_so_far(
    submissions: Iterable[Candidate], seconds: Mapping[str, float], *, end_steps: float, end_seconds: float
) -> tuple[BestScorePoint, ...]:
    """Returns the points at which the best score of a tournament rose, and its end; empty without submissions.

    The best of noisy scores overestimates the true score, equally for all tournaments of a grid.

    Args:
        submissions: Candidates in order of arrival.
        seconds: Running time at which each candidate arrived, by candidate id.
        end_steps: Environment steps of all agents at the end of the tournament.
        end_seconds: Running time at the end of the tournament.
    """
    spent: dict[str, int] = {}
    points: list[BestScorePoint] = []
    for entry in submissions:
        spent[entry.agent_id] = max(entry.agent_environment_steps, spent.get(entry.agent_id, 0))
        if not points or entry.score > points[-1].score:
            points.append(BestScorePoint(sum(spent.values()), seconds[entry.candidate_id], entry.score))
    if points:
        last = points[-1]
        steps, time = max(end_steps, last.environment_steps), max(end_seconds, last.seconds)
        points.append(BestScorePoint(steps, time, last.score))
    return tuple(points)


def mean_curve(curves: Sequence[Sequence[tuple[float, float]]]) -> MeanCurve | None:
    """Returns the mean of several step functions, from the position where all have started to the last end.

    A curve that has ended keeps its last value, because its champion remains.

    Args:
        curves: (position, value) pairs of each curve, with ascending positions; no curve is empty.

    Returns:
        The mean curve; None if there are no curves.
    """
    if not curves:
        return None
    begin = max(curve[0][0] for curve in curves)
    positions = sorted({begin} | {position for curve in curves for position, _ in curve if position > begin})
    places = [0] * len(curves)
    estimates = []
    for position in positions:
        for number, curve in enumerate(curves):
            while places[number] + 1 < len(curve) and curve[places[number] + 1][0] <= position:
                places[number] += 1
        values = [curve[place][1] for curve, place in zip(curves, places, strict=True)]
        estimates.append(bootstrap_mean(values, resamples=CURVE_RESAMPLES))
    return MeanCurve(tuple(positions), tuple(estimates))
