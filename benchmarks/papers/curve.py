"""Owns what `paper.py` asks of a peer: a learning curve up to a budget, the best policy on it, and how that one does.

Only the standard library is imported here: a peer may run in an interpreter of its own. For a peer,

    TRAIN, VALIDATION   options of the environments that it learns in, and that its policies are scored in
    reports             by name, options of the environment and the number of episodes that the best policy plays last
"""

import statistics
import time
from collections.abc import Callable, Sequence

from loops.process import Answer, Request

TRAIN, VALIDATION = "train", "validation"
REPORT = "report:"
"""Before the names of reports among a request's options."""
EPISODES_OPTION = "paper_episodes"
"""Among the options of a report."""
FRESH_SEED = 777_000


class Curve:
    """Scores every so many steps until the budget is spent; the best policy is kept.

    curve = Curve(request, evaluate, keep)     # before the environments are made
    while not curve.over(environment_steps):
        ...
    """

    def __init__(self, request: Request, evaluate: Callable[[], float], keep: Callable[[], None]) -> None:
        """Begins to count seconds; evaluations are not counted."""
        self._request, self._evaluate, self._keep = request, evaluate, keep
        self._due_steps = request.every_steps
        self._seconds, self._began = 0.0, time.perf_counter()
        self.points: list[tuple[int, float, float]] = []
        """Environment steps, seconds of training, score."""

    def over(self, steps: int) -> bool:
        """Whether the budget is spent, now that `steps` were taken; scores the policy if that is due."""
        seconds = self._seconds + time.perf_counter() - self._began
        spent = steps >= self._request.limit_steps or seconds >= self._request.limit_seconds
        if steps < self._due_steps and not spent:
            return False
        self._due_steps = (steps // self._request.every_steps + 1) * self._request.every_steps
        score = self._evaluate()
        if not self.points or score > max(score for _, _, score in self.points):
            self._keep()
        self.points.append((steps, seconds, score))
        self._seconds, self._began = seconds, time.perf_counter()
        return spent

    def answer(self, reports: dict[str, Answer]) -> Answer:
        """What is told at the end."""
        steps, seconds, _ = self.points[-1]
        return {
            "curve": self.points,
            "selection_score": max(score for _, _, score in self.points),
            "environment_steps": steps,
            "training_seconds": seconds,
            "reports": reports,
        }


def reports_of(request: Request) -> dict[str, tuple[dict[str, object], int]]:
    """The reports that a request asks for: options and episodes by name."""
    found = {}
    for name, options in request.options.items():
        if name.startswith(REPORT):
            others = {key: value for key, value in options.items() if key != EPISODES_OPTION}
            found[name.removeprefix(REPORT)] = others, int(options[EPISODES_OPTION])
    return found


def told(returns: Sequence[float], metrics: dict[str, float] | None = None) -> Answer:
    """A report."""
    return {"mean_return": statistics.fmean(returns), "episodes": len(returns), "metrics": metrics or {}}
