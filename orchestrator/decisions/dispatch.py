"""Decides who works on what, and what a pod that reports is told. Pure: knows no clock, no database and no launcher.

Time decides only who is *offered* an agent; the lease epoch, which grows each time it is handed out, decides who may
publish.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from podrace.errors import FailedPrecondition
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

STALE_EPOCH = "ERROR_REASON_STALE_EPOCH"


@dataclass(frozen=True)
class Holder:
    """One life of a pod."""

    pod_id: str
    incarnation: str


@dataclass(frozen=True)
class WorkItem:
    """An agent that is not finished, or an evaluation that is not done."""

    work_id: str
    """Name of the agent or of the evaluation."""
    holder: Holder | None
    """Who was given it last and has not given it back."""
    holder_alive: bool = True
    """Whether that pod is alive."""
    lease_valid: bool = True
    """Whether that lease has not expired."""


@dataclass(frozen=True)
class RoundProgress:
    """The rounds of a synchronous tournament: agents `size` * r to `size` * (r + 1) - 1 make up round r."""

    size: int
    unfinished_numbers: Sequence[int]
    """Positions of agents that are neither finished nor failed."""
    judged: int
    """Rounds after which the objective was judged and not met."""


@dataclass(frozen=True)
class DispatchState:
    """What there is to do in the tournament of a pod that asks."""

    drain_reason: str
    """Why this pod is to go; empty while it is to stay."""
    end_reason: str
    """Why no agent is trained any more; empty while the tournament is running."""
    evaluations: Sequence[WorkItem]
    """Oldest first."""
    agents: Sequence[WorkItem]
    """Those not finished, oldest first."""
    next_number: int
    """Position of the next new agent."""
    rounds: RoundProgress | None
    """None unless the tournament is synchronous."""


@dataclass(frozen=True)
class AssignExisting:
    """Hand out this work, under a new lease epoch unless `again`."""

    work_id: str
    reason: str
    again: bool = False


@dataclass(frozen=True)
class AssignNew:
    """Make agent `number` and hand it out."""

    number: int


@dataclass(frozen=True)
class Wait:
    """There is nothing to do now."""

    reason: str


@dataclass(frozen=True)
class Drain:
    """The pod is to go."""

    reason: str


Choice = AssignExisting | AssignNew | Wait | Drain


def choose(requester: Holder, state: DispatchState) -> Choice:
    """What a pod that asks for work gets.

    In this order: what it holds already (its answer was lost), a queued evaluation, an agent that nobody works on any
    more, the next new agent.
    """
    if state.drain_reason:
        return Drain(state.drain_reason)
    works = [*state.evaluations, *(() if state.end_reason else state.agents)]
    for work in works:
        if work.holder == requester:
            return AssignExisting(work.work_id, "asked again", again=True)
    for work in works:
        reason = why_free(work, requester)
        if reason:
            return AssignExisting(work.work_id, reason)
    if state.end_reason:
        return Drain(state.end_reason)
    waiting = why_round_is_closed(state.next_number, state.rounds)
    return Wait(waiting) if waiting else AssignNew(state.next_number)


def why_free(work: WorkItem, requester: Holder) -> str:
    """Why a pod that asks may have this work; empty while it belongs to somebody else."""
    holder = work.holder
    if holder is None:
        return "nobody holds it"
    if not work.holder_alive:
        return f"{holder.pod_id} is gone"
    if holder.pod_id == requester.pod_id:
        return "an earlier life of this pod held it"
    return "" if work.lease_valid else f"the lease of {holder.pod_id} expired"


def why_round_is_closed(number: int, rounds: RoundProgress | None) -> str:
    """Why agent `number` cannot be generated yet; empty when it can.

    A round begins when every agent of the earlier ones is finished or failed and the objective was judged on their
    results, so that what the generator sees does not depend on who was faster.
    """
    if rounds is None:
        return ""
    this_round = number // rounds.size
    earlier = [position for position in rounds.unfinished_numbers if position // rounds.size < this_round]
    if earlier:
        return f"round {this_round} waits for agent {min(earlier)} of round {min(earlier) // rounds.size}"
    return "" if rounds.judged >= this_round else f"round {this_round} waits until round {this_round - 1} is judged"


def check_epoch(work_id: str, current_epoch: int, request_epoch: int) -> None:
    """Refuses a pod whose work was handed to another one since.

    Raises:
        FailedPrecondition: STALE_EPOCH.
    """
    if request_epoch != current_epoch:
        raise FailedPrecondition(
            f"{work_id} was handed out again under lease epoch {current_epoch}, this is epoch {request_epoch}:"
            " stop without publishing",
            reason=STALE_EPOCH,
        )


@dataclass(frozen=True)
class LeaseDirective:
    """What a pod that reports is told."""

    directive: pb.Directive.ValueType
    reason: str = ""


def direct(*, held: bool, training: bool, drain_reason: str, end_reason: str) -> LeaseDirective:
    """What the pod that reports on its work is to do.

    Args:
        held: The work was not given back meanwhile.
        training: It is an agent, not an evaluation; evaluations are done even after the end.
        drain_reason: As in DispatchState.
        end_reason: As in DispatchState.
    """
    if not held:
        return LeaseDirective(pb.DIRECTIVE_CANCEL, "the assignment is complete already")
    reason = drain_reason or (end_reason if training else "")
    return LeaseDirective(pb.DIRECTIVE_DRAIN, reason) if reason else LeaseDirective(pb.DIRECTIVE_CONTINUE)


def is_last_failure(failed_in_row: int, algorithms: int = 1, *, limit: int = 3) -> bool:
    """Whether so many agents failed one after another that the next would fail, too, whatever its algorithm."""
    return failed_in_row >= limit * algorithms


def lost_too_often(lease_epoch: int, work: WorkItem, requester: Holder, *, limit: int = 3) -> str:
    """Why an evaluation is given up: it takes its pods with it, as `limit` of them showed; empty while it is not."""
    if work.holder is None or lease_epoch < limit or not why_free(work, requester) or work.holder == requester:
        return ""
    return f"given up after {lease_epoch} pods were lost with it"
