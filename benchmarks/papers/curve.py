"""Records a learning curve of a peer for `paper.py`, keeps the best policy, and reports its results.

Only the standard library is imported here: a peer may run in its own interpreter. The options of a request are

    TRAIN, VALIDATION   options of the environments for training, and for evaluations
    reports             by name, options of the environment, and the number of episodes that the best policy plays
"""

import statistics
import time
from collections.abc import Callable, Sequence

from loops.process import Answer, Request

TRAIN, VALIDATION = "train", "validation"
REPORT = "report:"
"""Prefix of the names of reports among a request's options."""
EPISODES_OPTION = "paper_episodes"
"""Option of a report: its number of episodes."""
FRESH_SEED = 777_000


class PeerCurve:
    """Evaluates at regular steps until the budget is spent, and keeps the best policy.

    curve = PeerCurve(request, evaluate, keep)     # before the environments are made
    while not curve.over(environment_steps):
        ...
    """

    def __init__(self, request: Request, evaluate: Callable[[], float], keep: Callable[[], None]) -> None:
        """Starts to count seconds; evaluations are not counted."""
        self._request, self._evaluate, self._keep = request, evaluate, keep
        self._due_steps = request.every_steps
        self._seconds, self._began = 0.0, time.perf_counter()
        self.points: list[tuple[int, float, float]] = []
        """Environment steps, training seconds, score."""

    def over(self, steps: int) -> bool:
        """Whether the budget is spent after `steps` steps; evaluates the policy if that is due."""
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
        """Returns the answer to the request."""
        steps, seconds, _ = self.points[-1]
        return {
            "curve": self.points,
            "selection_score": max(score for _, _, score in self.points),
            "environment_steps": steps,
            "training_seconds": seconds,
            "reports": reports,
        }


def reports_of(request: Request) -> dict[str, tuple[dict[str, object], int]]:
    """Returns the requested reports: options and number of episodes by name."""
    found = {}
    for name, options in request.options.items():
        if name.startswith(REPORT):
            others = {key: value for key, value in options.items() if key != EPISODES_OPTION}
            found[name.removeprefix(REPORT)] = others, int(options[EPISODES_OPTION])
    return found


def report_answer(returns: Sequence[float], metrics: dict[str, float] | None = None) -> Answer:
    """Builds the answer of a report."""
    return {"mean_return": statistics.fmean(returns), "episodes": len(returns), "metrics": metrics or {}}
