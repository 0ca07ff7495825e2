"""Decides which pod works on which agent or evaluation, and what a pod must do when it reports. Pure functions.

Rules:
- A pod gets, in this order: the work it already holds, a queued evaluation, an agent without a valid lease, the next
  new agent.
- If that new agent would continue the incumbent of a tournament whose pods may grow, it comes before the agents without
  a lease: those that stopped so that a pod could grow must not take that pod. The grown pod gets it.
- Time decides only which agents are offered again. The lease epoch, which increases each time work is assigned,
  decides which pod may publish.
- A round of a synchronous tournament starts after the objective was checked on all results of the previous round.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from podrace.errors import FailedPrecondition
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

STALE_EPOCH = "ERROR_REASON_STALE_EPOCH"


@dataclass(frozen=True)
class Holder:
    """One run of a pod; a restarted pod has the same id and another incarnation."""

    pod_id: str
    incarnation: str


@dataclass(frozen=True)
class WorkItem:
    """An agent that is not finished, or an evaluation that is not done."""

    work_id: str
    """Id of the agent or evaluation."""
    holder: Holder | None
    """The pod that the work was assigned to last and that has not given it back; None if there is none."""
    holder_alive: bool = True
    """Whether that pod is still alive."""
    lease_valid: bool = True
    """Whether the lease of that pod has not expired."""
    generated: bool = True
    """False for an agent of which only the number is known: there was no work, or the leaderboard did not respond."""


@dataclass(frozen=True)
class RoundProgress:
    """The rounds of a synchronous tournament: agents `size` * r to `size` * (r + 1) - 1 make up round r."""

    size: int
    unfinished_numbers: Sequence[int]
    """Numbers of agents that are neither finished nor failed."""
    judged: int
    """Number of rounds after which the objective was checked and not met."""


@dataclass(frozen=True)
class PausedIncumbent:
    """The trial that leads, while none of its agents is unfinished; the next new agent continues it."""

    pod_id: str = ""
    """Grown pod in which it continues, and which trains no agent and runs no evaluation now; empty: any pod."""


@dataclass(frozen=True)
class DispatchState:
    """The work of one tournament, as seen by a pod that requests work."""

    drain_reason: str
    """Why the requesting pod must drain; empty if it need not."""
    end_reason: str
    """Why agents of this tournament are not trained: it has ended or is paused; empty if they are."""
    evaluations: Sequence[WorkItem]
    """Evaluations that are not done, oldest first."""
    agents: Sequence[WorkItem]
    """Agents that are not finished, oldest first."""
    next_number: int
    """Number of the next new agent."""
    rounds: RoundProgress | None
    """None for a tournament that is not synchronous."""
    selects_champion: bool = False
    """Whether evaluations that select the champion may still be queued although no agents are trained."""
    paused_incumbent: PausedIncumbent | None = None
    """None if the incumbent is trained, or pods do not grow."""


@dataclass(frozen=True)
class AssignExisting:
    """Assign existing work, under a new lease epoch unless the request is repeated."""

    work_id: str
    reason: str
    repeated: bool = False


@dataclass(frozen=True)
class AssignNew:
    """Create agent `number` and assign it."""

    number: int


@dataclass(frozen=True)
class Wait:
    """Assign nothing: there is no work now."""

    reason: str


@dataclass(frozen=True)
class Drain:
    """Ask the pod to complete its assignment and stop."""

    reason: str


Choice = AssignExisting | AssignNew | Wait | Drain


REPEATED = "the request was repeated"


def choose(requester: Holder, state: DispatchState) -> Choice:
    """Decides what a pod that requests work gets.

    The order is: work that this pod already holds (the previous response was lost), a queued evaluation, an agent whose
    number it holds, the next agent of a paused incumbent, an agent that no pod trains any more, the next new agent.
    """
    if state.drain_reason:
        return Drain(state.drain_reason)
    works = [*state.evaluations, *(() if state.end_reason else state.agents)]
    held = [work for work in works if work.holder == requester]
    for work in held:
        if work.generated:
            return AssignExisting(work.work_id, REPEATED, repeated=True)
    paused = None if state.end_reason else state.paused_incumbent
    continues = paused is not None and paused.pod_id in ("", requester.pod_id)
    for work in state.evaluations:
        if reason := why_free(work, requester):
            return AssignExisting(work.work_id, reason)
    for work in held:
        return AssignExisting(work.work_id, REPEATED, repeated=True)
    for work in () if state.end_reason or continues else state.agents:
        if reason := why_free(work, requester):
            return AssignExisting(work.work_id, reason)
    if state.end_reason:
        # The next evaluation follows from the last one: without a wait, each would need another pod.
        return Wait("the champion is being selected") if state.selects_champion else Drain(state.end_reason)
    if paused is not None and not continues:
        return Wait(f"the incumbent continues in {paused.pod_id}, which is between two agents")
    waiting = why_round_is_closed(state.next_number, state.rounds)
    return Wait(waiting) if waiting else AssignNew(state.next_number)


def why_free(work: WorkItem, requester: Holder) -> str:
    """Why work may be assigned to the requesting pod; empty while another pod holds it."""
    holder = work.holder
    if holder is None:
        return "no pod holds it"
    if not work.holder_alive:
        return f"{holder.pod_id} is gone"
    if holder.pod_id == requester.pod_id:
        return "a previous run of this pod held it"
    return "" if work.lease_valid else f"the lease of {holder.pod_id} expired"


def why_round_is_closed(number: int, rounds: RoundProgress | None) -> str:
    """Why agent `number` cannot be generated yet; empty when it can.

    A round starts when all agents of the previous rounds are finished or failed and the objective was checked on their
    results. This way the generator's input does not depend on which pod was faster.
    """
    if rounds is None:
        return ""
    this_round = number // rounds.size
    earlier = [position for position in rounds.unfinished_numbers if position // rounds.size < this_round]
    if earlier:
        return f"round {this_round} waits for agent {min(earlier)} of round {min(earlier) // rounds.size}"
    return "" if rounds.judged >= this_round else f"round {this_round} waits for the check of round {this_round - 1}"


def check_epoch(work_id: str, current_epoch: int, request_epoch: int) -> None:
    """Rejects a request for work that was assigned again in the meantime.

    Raises:
        FailedPrecondition: The request has an old lease epoch (STALE_EPOCH).
    """
    if request_epoch != current_epoch:
        raise FailedPrecondition(
            f"{work_id} was assigned again under lease epoch {current_epoch}, this request has epoch {request_epoch}:"
            " stop without publishing",
            reason=STALE_EPOCH,
        )


@dataclass(frozen=True)
class LeaseDirective:
    """What a pod must do after it renewed a lease."""

    directive: pb.Directive.ValueType
    reason: str = ""


def direct(
    *,
    held: bool,
    training: bool,
    drain_reason: str,
    end_reason: str,
    selects_champion: bool = False,
    yield_reason: str = "",
    stop_reason: str = "",
) -> LeaseDirective:
    """Decides what a pod that renews a lease must do.

    Args:
        held: Whether the assignment has not been completed in the meantime.
        training: True for an agent, False for an evaluation, which is completed even after the tournament has ended.
        drain_reason: See `DispatchState`.
        end_reason: See `DispatchState`.
        selects_champion: See `DispatchState`; the pod stays to evaluate contenders, unless it is drained.
        yield_reason: Why the pod is needed for other work; empty if it is not.
        stop_reason: Why the strategy has no more use for the agent; empty if it has.
    """
    if not held:
        return LeaseDirective(pb.DIRECTIVE_CANCEL, "the assignment is already complete")
    if drain_reason:
        return LeaseDirective(pb.DIRECTIVE_DRAIN, drain_reason)
    if training and end_reason:
        return LeaseDirective(pb.DIRECTIVE_YIELD if selects_champion else pb.DIRECTIVE_DRAIN, end_reason)
    if training and stop_reason:
        return LeaseDirective(pb.DIRECTIVE_STOP, stop_reason)
    if training and yield_reason:
        return LeaseDirective(pb.DIRECTIVE_YIELD, yield_reason)
    return LeaseDirective(pb.DIRECTIVE_CONTINUE)


def is_last_failure(failed_in_row: int, algorithms: int = 1, *, limit: int = 3) -> bool:
    """Whether so many agents failed in a row that the next one would fail too, whatever its algorithm."""
    return failed_in_row >= limit * algorithms


MOST_GIVE_BACKS = 3
"""Number of times after which work fails that pods give back because of an error that may come from the work itself."""
MOST_LOSSES = 10
"""An agent fails when this many pods in a row died while they trained it, without a score or a checkpoint of it:
its simulator or algorithm may end the process. More than MOST_GIVE_BACKS, because pods also die from outside."""


def give_backs(environment_steps: int, previous: tuple[int, int] | None) -> int:
    """Returns how often an agent was given back without a new environment step, this time included.

    Args:
        environment_steps: Its steps now.
        previous: Its steps and the count when it was given back last; None: it was not.
    """
    return previous[1] + 1 if previous and environment_steps <= previous[0] else 1


def has_trained(progress: pb.Progress, known_steps: int, *, stuck: bool) -> bool:
    """Returns whether a pod has trained its agent, according to its report.

    Args:
        progress: The report.
        known_steps: Environment steps of the agent, which the pod or the pods before it reported earlier.
        stuck: Whether the pod also reports a role that is stuck.
    """
    if progress.HasField("score") or progress.HasField("update_age_seconds"):
        return True
    return progress.environment_steps > known_steps or (stuck and progress.activity == pb.POD_ACTIVITY_TRAINING)


def has_advanced(progress: pb.Progress) -> bool:
    """Returns whether a pod has brought its agent further in a way that survives the pod: a score or a checkpoint."""
    return progress.HasField("score") or progress.HasField("stored_environment_steps")


def lost_too_often(lease_epoch: int, work: WorkItem, requester: Holder, *, limit: int = 3) -> str:
    """Why an evaluation fails after `limit` pods that held it were lost; empty if it may be assigned again."""
    if work.holder is None or lease_epoch < limit or not why_free(work, requester) or work.holder == requester:
        return ""
    return f"cancelled after {lease_epoch} pods were lost while they ran it"
