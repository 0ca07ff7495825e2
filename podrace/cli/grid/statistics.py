"""What a grid's cells say together: bootstrap intervals of means, and learning curves over seeds (PURE).

Efron 1979: the distribution of a mean is that of the means of samples drawn from the values themselves, with
replacement. Percentile intervals, as Agarwal et al. 2021 (section 4) report them for few runs of deep RL.
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
"""Of an interval in a picture, of which there is one at every step of the curve."""


@dataclass(frozen=True)
class Estimate:
    """A mean, and an interval for it where there are at least two values."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Point:
    """A moment at which the best score of a tournament rose, or its end."""

    environment_steps: float
    """Over all agents, as far as they had submitted."""
    seconds: float
    """Since its first agent began, pauses left out."""
    score: float
    """The best so far."""


@dataclass(frozen=True)
class MeanCurve:
    """The mean over seeds from position to position, constant in between."""

    positions: tuple[float, ...]
    estimates: tuple[Estimate, ...]


# --- bootstrap ---------------------------------------------------------------------------------------------------


def bootstrap_mean(values: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """The mean of values and its percentile bootstrap interval, the same for the same values, order and seed.

    Args:
        values: At least one.
        resamples: Samples that are drawn.
        seed: Of the draws.
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
    """The percentile bootstrap interval of any statistic, such as `statistics.median`.

    Args:
        values: At least two, or the interval is a point.
        statistic: Of a sample as long as `values`; the order must not matter to it.
        confidence: Share of the statistics of samples that lies within, the rest in equal parts below and above.
        resamples: Samples that are drawn.
        seed: Of the draws.
    """
    draws = _draws(len(values), resamples, seed)
    found = sorted((statistic([values[index] for index in draw]), count) for draw, count in draws.items())
    # Rounded: 1 - 0.95 is not quite 0.05 in binary.
    tail = round((1 - confidence) / 2, 9)
    return _quantile(found, tail), _quantile(found, 1 - tail)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@lru_cache(maxsize=32)
def _draws(count: int, resamples: int, seed: int) -> Mapping[tuple[int, ...], int]:
    """Samples of so many indices with replacement, and how often each was drawn: few values have few samples."""
    generator = random.Random(seed)
    return Counter(tuple(sorted(generator.choices(range(count), k=count))) for _ in range(resamples))


def _quantile(weighted: Sequence[tuple[float, int]], fraction: float) -> float:
    """The smallest value at or below which lies at least this share of the weight; values ascend."""
    wanted = fraction * sum(weight for _, weight in weighted)
    reached = 0
    for value, weight in weighted:
        reached += weight
        if reached >= wanted:
            return value
    return weighted[-1][0]


# --- learning curves ---------------------------------------------------------------------------------------------


def running_seconds(seconds: float, pauses: Iterable[tuple[float, float]]) -> float:
    """How long a tournament had been running at a moment.

    Args:
        seconds: The moment, since the tournament was created.
        pauses: Beginning and end of each time it stood still, on the same clock, apart from each other.
    """
    return seconds - sum(max(0.0, min(end, seconds) - begin) for begin, end in pauses)


def best_so_far(
    submissions: Iterable[Candidate], seconds: Mapping[str, float], *, end_steps: float, end_seconds: float
) -> tuple[Point, ...]:
    """The rises of a tournament's best score, and its end; empty if nothing was submitted.

    It is the best of noisy scores and therefore flatters, all tournaments of a grid alike.

    Args:
        submissions: By arrival.
        seconds: When each arrived, by candidate id, the tournament's pauses left out.
        end_steps: Steps over all agents at the end of the tournament.
        end_seconds: How long it had been running then.
    """
    spent: dict[str, int] = {}
    points: list[Point] = []
    for entry in submissions:
        spent[entry.agent_id] = max(entry.agent_environment_steps, spent.get(entry.agent_id, 0))
        if not points or entry.score > points[-1].score:
            points.append(Point(sum(spent.values()), seconds[entry.candidate_id], entry.score))
    if points:
        last = points[-1]
        steps, time = max(end_steps, last.environment_steps), max(end_seconds, last.seconds)
        points.append(Point(steps, time, last.score))
    return tuple(points)


def mean_curve(curves: Sequence[Sequence[tuple[float, float]]]) -> MeanCurve | None:
    """The mean of several step functions from where all of them have begun to the last end.

    A curve that has ended keeps its last value: its champion is still there.

    Args:
        curves: Positions and values, positions ascending; none is empty.

    Returns:
        None without curves.
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
