"""Owns what simulated agents score: learning curves, measured or made up. Pure.

A curve is what one line of descent has learned. A fresh agent follows the curve of its number, and beyond the last they
begin again; a child goes on on its parent's, from where that first has the score that it begins with.
"""

import bisect
import itertools
import math
from collections.abc import Sequence

Points = Sequence[tuple[float, float]]
"""Environment steps of an agent and the score it had then, by steps."""


class Curve:
    """The best score that an agent had after so many steps, linear between points."""

    def __init__(self, points: Points) -> None:
        """Takes points as they were measured; what was lost after a best score is left out.

        Raises:
            ValueError: There is none.
        """
        if not points:
            raise ValueError("a learning curve without a point; record it again")
        ordered = sorted(points)
        self._steps = [float(steps) for steps, _ in ordered]
        self._scores = list(itertools.accumulate((float(score) for _, score in ordered), max))

    def score_at(self, steps: float) -> float:
        """The score after so many steps; before the first and after the last point that of the point."""
        index = bisect.bisect_right(self._steps, steps)
        if index == 0:
            return self._scores[0]
        if index == len(self._steps):
            return self._scores[-1]
        before, after = self._steps[index - 1], self._steps[index]
        share = (steps - before) / (after - before)
        return self._scores[index - 1] + share * (self._scores[index] - self._scores[index - 1])

    def steps_to(self, score: float) -> float:
        """After how many steps it first has a score; that of its last point if it never has."""
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
    """Curves to choose from."""

    def __init__(self, curves: Sequence[Points]) -> None:
        self._curves = [Curve(points) for points in curves]

    def of(self, number: int) -> Curve:
        """The curve with this number, as fresh agents are numbered."""
        return self._curves[number % len(self._curves)]


def due_steps(steps: int, every: int, budget: int, rollout_steps: int) -> int:
    """When an agent is scored next: with the first whole rollout at or beyond a multiple of `every`, or its budget."""
    due = min((steps // every + 1) * every, budget)
    return -(-due // rollout_steps) * rollout_steps


class Learner:
    """How far an agent has come.

    Attributes:
        steps: Environment steps it took; whoever trains it counts them here.
        number: Of the curve that it follows.
    """

    def __init__(self, curves: Curves, number: int, steps: int, inherited_steps: int, score: float | None) -> None:
        """Begins, or goes on.

        Args:
            curves: All that there are.
            number: Of the one that it follows: its own if it is fresh, else its parent's.
            steps: That it took already.
            inherited_steps: Of its ancestors.
            score: That it begins with: its own last, or its parent's; None: it is fresh.
        """
        self.number = number
        self._curve = curves.of(number)
        self._offset = 0.0 if score is None else self._curve.steps_to(score) - steps
        self._floor = -math.inf if score is None else score
        self.steps, self._inherited_steps = steps, inherited_steps

    @property
    def score(self) -> float:
        """The score it has now."""
        return max(self._floor, self._curve.score_at(self._offset + self.steps))

    @property
    def lineage_steps(self) -> int:
        """Steps behind it, those of its ancestors included."""
        return self._inherited_steps + self.steps
