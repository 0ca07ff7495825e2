"""Decides when the training of an assignment ends, how the assignment ends, and whether the pod exits with it."""

import math
from dataclasses import dataclass

from agentpod.fusion.reachability import LeaderIsolated
from agentpod.session.role_faults import RoleLost, RoleRefused
from agentpod.storage_waits import StorageUnreachable
from podrace.errors import (
    AGENT_UNKNOWN,
    BAD_SPEC,
    UNSUITABLE_SPACE,
    UNUSABLE_ALGORITHM,
    DataLoss,
    Internal,
    InvalidArgument,
    NotFound,
    PodraceError,
    ResourceExhausted,
    Unimplemented,
)
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

EXIT_DONE = 0
EXIT_ROLE_LOST = 3
EXIT_STORAGE_UNREACHABLE = 4
EVALUATIONS_RESERVED = 1.5
"""Time that is left for the last evaluation before the tournament ends, in durations of the evaluation before."""
PUBLISHING_SECONDS = 1.0
"""Time that is left for publishing and submitting the last checkpoint."""
UNKNOWN_EVALUATION_SHARE = 0.05
"""Share of the wall-clock objective that is left for an evaluation while none was timed yet."""
UNKNOWN_AGENT = "the leaderboard lost the agent, which is registered again when it is assigned again"
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


@dataclass(frozen=True)
class Ending:
    """How an assignment ends."""

    outcome: pb.Outcome.ValueType
    """What is reported to the orchestrator."""
    message: str = ""
    """Why, in one line."""
    exit_code: int | None = None
    """Exit code of the pod; None if the pod continues with the next assignment."""
    publish: bool = False
    """Whether to publish the agent's state as it is first."""
    gave_up: bool = False
    """Whether the agent is given back because of an error that may be its own, so that the attempts must be counted."""


def ending_of_stop(
    reason: str,
    *,
    finished: bool,
    held: bool,
    yielded: bool = False,
    stopped_early: bool = False,
) -> Ending:
    """Returns the ending of an assignment whose work was stopped without an error.

    Args:
        reason: Why the work was stopped.
        finished: Whether the work was complete anyway.
        held: Whether this pod still holds the agent. If so, it was the pod that was asked to stop, and it exits.
            If only the agent was taken from it, it asks for another assignment.
        yielded: Whether the pod only gives the agent back, and asks for another assignment.
        stopped_early: Whether the strategy has no more use for the agent; the pod asks for another one.
    """
    if stopped_early:
        return Ending(pb.OUTCOME_FINISHED if finished else pb.OUTCOME_STOPPED, "" if finished else reason)
    exit_code = EXIT_DONE if held and not yielded else None
    if finished:
        return Ending(pb.OUTCOME_FINISHED, exit_code=exit_code)
    return Ending(pb.OUTCOME_DRAINED, reason, exit_code)


def ending_of_error(error: PodraceError, *, opened: bool) -> Ending:
    """Returns what an error means for the agent, for its tournament and for the pod.

    Args:
        error: What ended the work.
        opened: Whether the environment could be opened. An error before that would affect every other agent as well and
            fails the specification, unless only this agent's algorithm cannot act in the environment, or the class of a
            user's algorithm is unusable. A later error
            fails the specification only if its reason is BAD_SPEC.
    """
    if isinstance(error, StorageUnreachable):
        # What is published is safe: the next pod that claims the agent submits it.
        return Ending(pb.OUTCOME_DRAINED, error.message, EXIT_STORAGE_UNREACHABLE)
    if isinstance(error, RoleLost):
        return Ending(pb.OUTCOME_DRAINED, error.message, EXIT_ROLE_LOST, publish=True)
    if isinstance(error, RoleRefused | LeaderIsolated):
        return Ending(pb.OUTCOME_DRAINED, error.message, publish=True, gave_up=True)
    if error.reason == AGENT_UNKNOWN:
        # Its database was restored from a backup or rebuilt. The orchestrator registers the agent again when it assigns
        # it, and the next pod continues from what is published.
        return Ending(pb.OUTCOME_DRAINED, f"{UNKNOWN_AGENT}: {error.message}", publish=True)
    specification_failed = error.reason == BAD_SPEC or (
        not opened and error.reason not in (UNSUITABLE_SPACE, UNUSABLE_ALGORITHM)
    )
    if specification_failed and isinstance(error, InvalidArgument | Unimplemented | ResourceExhausted | Internal):
        return Ending(pb.OUTCOME_SPEC_FAILED, error.message)
    if isinstance(error, DataLoss | InvalidArgument | Unimplemented | ResourceExhausted | NotFound | Internal):
        return Ending(pb.OUTCOME_AGENT_FAILED, error.message)
    # The agent belongs to another pod, or a service does not answer: nothing is wrong with the agent.
    return Ending(pb.OUTCOME_DRAINED, error.message)
