"""Finds the candidates of a tournament that no other candidate dominates in several measures. Pure.

    measures = [SCORE, parse_measure("annual_volatility=min", candidates)]
    found = front(candidates, measures)

A candidate dominates another if it is at least as good in all measures and better in one. The values are means over the
evaluation episodes; their errors are not considered. The ranking of the board does not depend on any of this.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from podrace.config import unknown
from podrace.errors import InvalidArgument
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.specification.objectives import HIGHER_IS_BETTER, LOWER_IS_BETTER

MAXIMIZE, MINIMIZE = "max", "min"


@dataclass(frozen=True)
class Measure:
    """A measure of candidates, and whether larger or smaller values are better."""

    name: str
    direction: str
    """`max` or `min`."""

    def value(self, candidate: Candidate) -> float | None:
        """Returns the value of a candidate; None if it is not recorded or not finite."""
        if self.name in OF_CANDIDATES:
            value: float | None = OF_CANDIDATES[self.name][1](candidate)
        else:
            value = candidate.episode_metrics.get(self.name) if self.name in candidate.episode_metrics else None
        return value if value is not None and math.isfinite(value) else None

    def loss(self, value: float) -> float:
        """Returns the value if it is to be minimized, else its negative."""
        return -value if self.direction == MAXIMIZE else value


OF_CANDIDATES: Mapping[str, tuple[str, Callable[[Candidate], float]]] = {
    "score": (MAXIMIZE, lambda candidate: candidate.score),
    "environment_steps": (MINIMIZE, lambda candidate: float(candidate.environment_steps)),
    "core_seconds": (MINIMIZE, lambda candidate: candidate.core_seconds),
    "standard_error": (MINIMIZE, lambda candidate: candidate.standard_error),
}
"""Measures of every candidate, each with its direction. The other measures are those of single episodes."""
SCORE = Measure("score", MAXIMIZE)
STEPS = Measure("environment_steps", MINIMIZE)


@dataclass(frozen=True)
class ParetoFront:
    """The candidates that are not dominated."""

    measures: tuple[Measure, ...]
    candidates: tuple[Candidate, ...]
    """The best by the first measure first."""
    compared: int
    """Candidates with a value of every measure."""
    left_out: int
    """Candidates without one, or scored by the built-in evaluator in place of a plugin."""


def parse_measure(text: str, candidates: Iterable[Candidate]) -> Measure:
    """Reads `NAME=max`, `NAME=min`, or `NAME` for a measure whose direction is known.

    Args:
        text: What the user wrote.
        candidates: Candidates, for the measures that are recorded with them.

    Raises:
        InvalidArgument: No candidate has the measure, or the direction is missing or unknown.
    """
    name, given, direction = text.partition("=")
    recorded = {measure for candidate in candidates for measure in candidate.episode_metrics}
    if name not in OF_CANDIDATES and name not in recorded:
        raise InvalidArgument(unknown(f"--measure {text}", "measure", name, {*OF_CANDIDATES, *recorded}))
    if not given:
        direction = _direction_of(name)
    if direction not in (MAXIMIZE, MINIMIZE):
        raise InvalidArgument(
            f"--measure {text}: state whether larger or smaller is better, with {name}={MAXIMIZE} or {name}={MINIMIZE}"
        )
    return Measure(name, direction)


def front(candidates: Iterable[Candidate], measures: Sequence[Measure]) -> ParetoFront:
    """Returns the candidates that no other one dominates. Candidates with equal values do not dominate each other.

    Args:
        candidates: Any candidates.
        measures: The measures; the first decides the order of the result.
    """
    losses: list[tuple[tuple[float, ...], Candidate]] = []
    left_out = 0
    for candidate in candidates:
        values = [measure.value(candidate) for measure in measures]
        known = [measure.loss(value) for measure, value in zip(measures, values, strict=True) if value is not None]
        if len(known) < len(measures) or candidate.evaluator_fault:
            left_out += 1
        else:
            losses.append((tuple(known), candidate))
    # In this order a candidate can only be dominated by one before it, and then also by one that is not dominated.
    losses.sort(key=lambda entry: (entry[0], entry[1].sequence))
    kept: list[tuple[tuple[float, ...], Candidate]] = []
    for entry in losses:
        if not any(dominates(other, entry[0]) for other, _ in kept):
            kept.append(entry)
    return ParetoFront(tuple(measures), tuple(candidate for _, candidate in kept), len(losses), left_out)


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Returns whether the first losses are at most the second ones, and not equal to them."""
    return one != other and all(first <= second for first, second in zip(one, other, strict=True))


def _direction_of(name: str) -> str:
    if name in OF_CANDIDATES:
        return OF_CANDIDATES[name][0]
    if name in LOWER_IS_BETTER:
        return MINIMIZE
    return MAXIMIZE if name in HIGHER_IS_BETTER else ""
