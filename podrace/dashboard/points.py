"""Keeps the scores of all submissions of a tournament in little memory: 24 bytes for each."""

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from podrace.leaderboard.v1.leaderboard_pb2 import VERDICT_HELD, VERDICT_REFUSED, Candidate


class ChartAxis(StrEnum):
    """What a learning curve is drawn against."""

    SECONDS = "seconds"
    """Wall-clock time since the tournament was created."""
    STEPS = "steps"
    """Environment steps: of a policy with its ancestors, or of all agents for the champion's curve."""
    COMPUTE = "compute"
    """Processor cores times seconds: of an agent, or of all agents for the champion's curve."""


LARGEST_FLOAT32 = 3.4028234663852886e38


def _in_float32(value: float) -> float:
    """Returns a number that a column of 32 bits can hold; larger ones would become infinite there."""
    return min(max(value, -LARGEST_FLOAT32), LARGEST_FLOAT32) if not math.isnan(value) else 0.0


def _floats() -> "array[float]":
    return array("f")


@dataclass
class CurveColumns:
    """One curve; all columns have the same length."""

    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    steps: "array[float]" = field(default_factory=lambda: array("d"))
    compute: "array[float]" = field(default_factory=_floats)
    scores: "array[float]" = field(default_factory=_floats)

    def append(self, seconds: float, steps: float, compute: float, score: float) -> None:
        """Adds a point. A position that is before the last one is moved to it, so that positions ascend."""
        # Scores first: another thread may read in between, and must find a score for each position.
        self.scores.append(score)
        for column, value in ((self.seconds, seconds), (self.steps, steps), (self.compute, compute)):
            column.append(max(value, column[-1]) if column else value)

    def along(self, axis: ChartAxis) -> "array[float]":
        """Returns the positions along an axis, which ascend."""
        return {ChartAxis.SECONDS: self.seconds, ChartAxis.STEPS: self.steps, ChartAxis.COMPUTE: self.compute}[axis]

    def __len__(self) -> int:
        return len(self.scores)


class SubmissionPoints:
    """The learning curves of the agents of one tournament, and of its champion, from its submissions."""

    def __init__(self, start_seconds: float) -> None:
        """Creates curves without points.

        Args:
            start_seconds: When the tournament was created, in seconds since the epoch.
        """
        self._start_seconds = start_seconds
        self._agents: dict[str, CurveColumns] = {}
        self._algorithms: dict[str, str] = {}
        self._spent: dict[str, tuple[float, float]] = {}
        self._total_steps = self._total_compute = 0.0
        self.champion = CurveColumns()
        """Estimate of the candidate that led by then, at each change of the lead. It is the estimate that the board
        ranks by, and not the highest of the noisy scores."""
        self.champion_agents: list[str] = []
        """Agent of each point of `champion`."""
        self.count = 0
        """Number of submissions."""
        self.last_sequence = 0
        """Position of the newest submission, after which a watch continues."""

    def add(self, candidate: Candidate) -> None:
        """Adds a submission; has no effect for one that is not newer than the last."""
        if candidate.sequence <= self.last_sequence:
            return
        self.last_sequence = candidate.sequence
        if not math.isfinite(candidate.score):
            return
        score, compute = candidate.score, candidate.core_seconds
        if not (-LARGEST_FLOAT32 <= score <= LARGEST_FLOAT32 and compute <= LARGEST_FLOAT32):
            score, compute = _in_float32(score), _in_float32(compute)
        self.count += 1
        agent = candidate.agent_id
        seconds = candidate.submit_time.seconds + candidate.submit_time.nanos * 1e-9 - self._start_seconds
        if agent not in self._agents:
            self._agents[agent] = CurveColumns()
            self._algorithms[agent] = candidate.algorithm
        self._agents[agent].append(seconds, candidate.environment_steps, compute, score)
        self._spend(agent, candidate.agent_environment_steps, compute)
        self._lead(candidate, seconds)

    def _spend(self, agent: str, steps: float, compute: float) -> None:
        """Counts the work of all agents by their latest submissions."""
        before = self._spent.get(agent, (0.0, 0.0))
        now = max(before[0], float(steps)), max(before[1], compute)
        self._spent[agent] = now
        self._total_steps += now[0] - before[0]
        self._total_compute += now[1] - before[1]

    def _lead(self, candidate: Candidate, seconds: float) -> None:
        if candidate.verdict in (VERDICT_REFUSED, VERDICT_HELD):
            return
        estimate = candidate.estimate if candidate.HasField("estimate") else candidate.score
        if not len(self.champion) or estimate > self.champion.scores[-1]:
            self.champion.append(seconds, self._total_steps, self._total_compute, _in_float32(estimate))
            self.champion_agents.append(candidate.agent_id)

    @property
    def agents(self) -> Mapping[str, CurveColumns]:
        """The curve of each agent."""
        return self._agents

    def algorithm(self, agent: str) -> str:
        """Returns the algorithm of an agent that has submitted something."""
        return self._algorithms[agent]

    def families(self) -> dict[str, list[CurveColumns]]:
        """Returns the curves of the agents of each algorithm."""
        found: dict[str, list[CurveColumns]] = {}
        for agent, columns in list(self._agents.items()):
            found.setdefault(self._algorithms[agent], []).append(columns)
        return found

    def end(self, axis: ChartAxis) -> tuple[float, float]:
        """Returns the furthest positions along an axis: of any agent, and of all agents together."""
        each = max((columns.along(axis)[-1] for columns in list(self._agents.values())), default=0.0)
        totals = {ChartAxis.STEPS: self._total_steps, ChartAxis.COMPUTE: self._total_compute}
        return each, totals.get(axis, each)
