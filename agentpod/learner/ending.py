"""Decides how an assignment ends, and whether the pod exits with it."""

from dataclasses import dataclass

from agentpod.session.role_client import RoleLost
from podrace.errors import (
    BAD_SPEC,
    UNSUITABLE_SPACE,
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


def ending_of_stop(
    reason: str, *, finished: bool, held: bool, yielded: bool = False, stopped_early: bool = False
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
        opened: Whether the environment could be opened. An error before that would meet every other agent as well and
            fails the specification, unless only this agent's algorithm cannot act in the environment. A later error
            fails the specification only if its reason is BAD_SPEC.
    """
    if isinstance(error, RoleLost):
        return Ending(pb.OUTCOME_DRAINED, error.message, EXIT_ROLE_LOST, publish=True)
    specification_failed = error.reason == BAD_SPEC or (not opened and error.reason != UNSUITABLE_SPACE)
    if specification_failed and isinstance(error, InvalidArgument | Unimplemented | ResourceExhausted | Internal):
        return Ending(pb.OUTCOME_SPEC_FAILED, error.message)
    if isinstance(error, DataLoss | InvalidArgument | Unimplemented | ResourceExhausted | NotFound | Internal):
        return Ending(pb.OUTCOME_AGENT_FAILED, error.message)
    # The agent belongs to another pod, or a service does not answer: nothing is wrong with the agent.
    return Ending(pb.OUTCOME_DRAINED, error.message)
