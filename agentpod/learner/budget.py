"""Decides when the training of an assignment ends: by steps, by time, or because the tournament is about to end."""

import math
from dataclasses import dataclass

from podrace.orchestrator.v1 import orchestrator_pb2 as pb

EVALUATIONS_RESERVED = 1.5
"""Time that is left for the last evaluation before the tournament ends, in durations of the evaluation before."""
PUBLISHING_SECONDS = 1.0
"""Time that is left for publishing and submitting the last checkpoint."""
UNKNOWN_EVALUATION_SHARE = 0.05
"""Share of the wall-clock objective that is left for an evaluation while none was timed yet."""
LONGEST_UNKNOWN_SECONDS = 30.0
"""Longest time that is left for an evaluation while none was timed yet."""


@dataclass(frozen=True)
class Budget:
    """How long an agent is trained."""

    environment_steps: int
    """Own environment steps at which it ends."""
    training_seconds: float
    """Wall-clock time of training at which it ends; infinite if there is no limit."""
    tournament_seconds: float
    """Running time of the tournament at which it ends; infinite if unknown, or if the end must not depend on time."""

    @classmethod
    def of(cls, assignment: pb.Assignment) -> "Budget":
        """Returns the budget of a training assignment."""
        spec, agent = assignment.spec, assignment.train
        steps = agent.assignment_environment_steps or spec.assignment.environment_steps
        if assignment.maximum_environment_steps:
            steps = min(steps, assignment.maximum_environment_steps)
        limit = spec.assignment.duration.ToNanoseconds() / 1e9 if spec.assignment.HasField("duration") else math.inf
        clock = math.inf
        if spec.objective.HasField("wall_clock_duration") and not spec.synchronous:
            clock = spec.objective.wall_clock_duration.ToNanoseconds() / 1e9
        return cls(steps, limit, clock)

    def used_up(self, environment_steps: int, training_seconds: float) -> bool:
        """Whether an agent has trained for long enough.

        Args:
            environment_steps: Its own environment steps, including those that will be collected anyway.
            training_seconds: Wall-clock time of its training.
        """
        return environment_steps >= self.environment_steps or training_seconds >= self.training_seconds

    def must_score(self, running_seconds: float | None, evaluation_seconds: float) -> bool:
        """Whether just enough time is left to score the policy before the tournament ends.

        An agent that the end of the tournament interrupts has no score for its last steps, which are lost.

        Args:
            running_seconds: How long the tournament has been running; None if unknown.
            evaluation_seconds: Time that the last evaluation took; 0 before the first.
        """
        if running_seconds is None or math.isinf(self.tournament_seconds):
            return False
        unknown = min(LONGEST_UNKNOWN_SECONDS, UNKNOWN_EVALUATION_SHARE * self.tournament_seconds)
        reserved = EVALUATIONS_RESERVED * evaluation_seconds if evaluation_seconds else unknown
        return running_seconds >= self.tournament_seconds - reserved - PUBLISHING_SECONDS
