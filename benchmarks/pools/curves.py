"""Computes the scores of simulated agents from learning curves, recorded or artificial. Pure.

A curve belongs to one lineage. A new agent follows the curve with its number (modulo the number of curves); a child
continues its parent's curve, from where that curve first reaches the score it starts with.
"""

import bisect
import itertools
import math
from collections.abc import Sequence

Points = Sequence[tuple[float, float]]
"""Environment steps of an agent and its score at that time, ordered by steps."""


class Curve:
    """The best score of an agent up to a number of steps, interpolated linearly between points."""

    def __init__(self, points: Points) -> None:
        """Builds a curve from measured points; scores lower than an earlier one are replaced by it.

        Raises:
            ValueError: There are no points.
        """
        if not points:
            raise ValueError("a learning curve without points; record it again")
        ordered = sorted(points)
        self._steps = [float(steps) for steps, _ in ordered]
        self._scores = list(itertools.accumulate((float(score) for _, score in ordered), max))

    def score_at(self, steps: float) -> float:
        """Returns the score after a number of steps; before the first and after the last point, that point's score."""
        index = bisect.bisect_right(self._steps, steps)
        if index == 0:
            return self._scores[0]
        if index == len(self._steps):
            return self._scores[-1]
        before, after = self._steps[index - 1], self._steps[index]
        share = (steps - before) / (after - before)
        return self._scores[index - 1] + share * (self._scores[index] - self._scores[index - 1])

    def steps_to(self, score: float) -> float:
        """Returns the steps after which a score is first reached; those of the last point if it never is."""
        index = bisect.bisect_left(self._scores, score)
        if index == 0:
            return self._steps[0] if score >= self._scores[0] else 0.0
        if index == len(self._scores):
            return self._steps[-1]
        before, after = self._scores[index - 1], self._scores[index]
        return self._steps[index - 1] + (score - before) / (after - before) * (
            self._steps[index] - self._steps[index - 1]
        )


class Curves:
    """Several curves, by number."""

    def __init__(self, curves: Sequence[Points]) -> None:
        self._curves = [Curve(points) for points in curves]

    def of(self, number: int) -> Curve:
        """Returns the curve of a new agent with this number."""
        return self._curves[number % len(self._curves)]


def due_steps(steps: int, every: int, budget: int, rollout_steps: int) -> int:
    """Returns when an agent is evaluated next: at the first whole rollout at or beyond a multiple of `every`."""
    due = min((steps // every + 1) * every, budget)
    return -(-due // rollout_steps) * rollout_steps


class SimulatedLearner:
    """The training progress of a simulated agent.

    Attributes:
        steps: Environment steps taken; the caller increments it.
        number: Number of the curve that it follows.
    """

    def __init__(self, curves: Curves, number: int, steps: int, inherited_steps: int, score: float | None) -> None:
        """Starts or resumes an agent.

        Args:
            curves: All curves.
            number: Number of the curve to follow: the agent's own number if it is new, else its parent's curve.
            steps: Steps it has taken already.
            inherited_steps: Steps of its ancestors.
            score: Score it starts with: its own last one, or its parent's; None: a new agent.
        """
        self.number = number
        self._curve = curves.of(number)
        self._offset = 0.0 if score is None else self._curve.steps_to(score) - steps
        self._floor = -math.inf if score is None else score
        self.steps, self._inherited_steps = steps, inherited_steps

    @property
    def score(self) -> float:
        """The current score."""
        return max(self._floor, self._curve.score_at(self._offset + self.steps))

    @property
    def lineage_steps(self) -> int:
        """Environment steps, including those of its ancestors."""
        return self._inherited_steps + self.steps
