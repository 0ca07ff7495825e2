"""Owns the durable half of a lease: work handed out and taken back, each in one transaction. The rules are in lease."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.decisions import dispatch
from orchestrator.decisions.dispatch import Holder
from orchestrator.state import records
from orchestrator.state.database import Transaction
from orchestrator.state.records import (
    AgentRecord,
    EvaluationRecord,
    PodPhase,
    PodRecord,
    TournamentRecord,
    WorkPhase,
    WorkRecord,
)
from orchestrator.state.transitions import end_evaluation, fail_tournament
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

OUTCOMES = {
    pb.OUTCOME_FINISHED: (WorkPhase.FINISHED, "finished"),
    pb.OUTCOME_DRAINED: (WorkPhase.UNFINISHED, "drained"),
    pb.OUTCOME_AGENT_FAILED: (WorkPhase.FAILED, "failed"),
    # Nothing is wrong with the agent.
    pb.OUTCOME_SPEC_FAILED: (WorkPhase.UNFINISHED, "drained"),
}
"""What becomes of an agent."""
MAXIMUM_FAULT_CHARACTERS = 500
"""Characters of a fault that are written down."""


@dataclass(frozen=True)
class AssignedWork:
    """Work that was handed out."""

    tournament: TournamentRecord
    work: WorkRecord


@dataclass(frozen=True)
class DispatchInputs:
    """What the event loop knows that a transaction needs."""

    expired: Collection[tuple[str, int]]
    """Leases that have expired, as names of the work with their epochs: a lease given meanwhile is none of them."""
    judged_rounds: Mapping[str, int]
    """Rounds of each synchronous tournament after which its objective was judged and not met."""
    works: Sequence[WorkRecord] = ()
    """The work in question, in the order in which it is offered, as it was lately: nothing else can be free. What has
    become free since goes to the next pod that asks."""


# --- handing out -------------------------------------------------------------------------------------------------


def assign_work(
    transaction: Transaction, requester: Holder, inputs: DispatchInputs
) -> AssignedWork | dispatch.Wait | dispatch.Drain:
    """Decides what a pod that asks gets, and makes it durable."""
    pod = records.find(transaction, PodRecord, requester.pod_id)
    if pod is None or pod.phase == PodPhase.GONE:
        return dispatch.Drain(f"pod {requester.pod_id} is not known here")
    if pod.drain_reason:
        return dispatch.Drain(pod.drain_reason)
    return assign_from_tournament(transaction, pod.tournament_id, requester, inputs)


def assign_from_tournament(
    transaction: Transaction, tournament_id: str, requester: Holder, inputs: DispatchInputs
) -> AssignedWork | dispatch.Wait | dispatch.Drain:
    """Decides what a pod gets that asks for work of one tournament, and is welcome there."""
    tournament = records.find_tournament(transaction, tournament_id)
    works = _assignable_work(transaction, requester, inputs)
    state = dispatch.DispatchState(
        drain_reason="",
        end_reason=tournament.end_reason,
        evaluations=[work for record, work in works if isinstance(record, EvaluationRecord)],
        agents=[work for record, work in works if isinstance(record, AgentRecord)],
        next_number=tournament.next_agent,
        rounds=_rounds(transaction, tournament, inputs),
    )
    choice = dispatch.choose(requester, state)
    if isinstance(choice, dispatch.AssignNew):
        return _assign_new_agent(transaction, tournament, requester)
    if isinstance(choice, dispatch.AssignExisting):
        found = next(record for record, _ in works if record.work_id == choice.work_id)
        return AssignedWork(
            tournament, found if choice.again else _assign(transaction, found, requester, choice.reason)
        )
    return choice


def _assignable_work(
    transaction: Transaction, requester: Holder, inputs: DispatchInputs
) -> list[tuple[WorkRecord, dispatch.WorkItem]]:
    """What the pod itself holds, and the first evaluation and the first agent that are free, as they are now."""
    found: list[tuple[WorkRecord, dispatch.WorkItem]] = []
    free: set[type[WorkRecord]] = set()
    for believed in inputs.works:
        if type(believed) in free and believed.pod_id != requester.pod_id:
            continue
        record = records.find_again(transaction, believed)
        if record is None or record.phase != WorkPhase.UNFINISHED:
            continue
        work = _work_item(transaction, record, inputs)
        if isinstance(record, EvaluationRecord) and _fail_if_lost_too_often(transaction, record, work, requester):
            continue
        found.append((record, work))
        if dispatch.why_free(work, requester):
            free.add(type(record))
    return found


def _work_item(transaction: Transaction, record: WorkRecord, inputs: DispatchInputs) -> dispatch.WorkItem:
    if not record.pod_id:
        return dispatch.WorkItem(record.work_id, None)
    pod = records.find(transaction, PodRecord, record.pod_id)
    lives = pod is not None and pod.phase != PodPhase.GONE
    expired = (record.work_id, record.lease_epoch) in inputs.expired
    return dispatch.WorkItem(record.work_id, Holder(record.pod_id, record.incarnation), lives, not expired)


def _rounds(
    transaction: Transaction, tournament: TournamentRecord, inputs: DispatchInputs
) -> dispatch.RoundProgress | None:
    if not tournament.spec.synchronous:
        return None
    first = records.first_unfinished(transaction, tournament.tournament_id)
    judged = inputs.judged_rounds.get(tournament.tournament_id, 0)
    return dispatch.RoundProgress(tournament.round_size, [] if first is None else [first], judged)


def _fail_if_lost_too_often(
    transaction: Transaction, evaluation: EvaluationRecord, work: dispatch.WorkItem, requester: Holder
) -> bool:
    reason = dispatch.lost_too_often(evaluation.lease_epoch, work, requester)
    if reason:
        end_evaluation(transaction, replace(evaluation, phase=WorkPhase.FAILED, error=reason))
    return bool(reason)


def _assign_new_agent(transaction: Transaction, tournament: TournamentRecord, requester: Holder) -> AssignedWork:
    """Commits the next number, or those of the next round, and hands out the first."""
    numbers = range(tournament.next_agent, tournament.next_agent + tournament.round_size)
    tournament = replace(tournament, next_agent=numbers.stop)
    records.save(transaction, tournament)
    agents = [
        AgentRecord(
            agent_id=f"{tournament.tournament_id}-a{number}",
            tournament_id=tournament.tournament_id,
            number=number,
            phase=WorkPhase.UNFINISHED,
            lease_epoch=0,
            pod_id="",
            incarnation="",
            environment_steps=0,
            agent=None,
        )
        for number in numbers
    ]
    for agent in agents:
        records.save(transaction, agent)
    return AssignedWork(tournament, _assign(transaction, agents[0], requester, "the next new agent"))


def _assign(transaction: Transaction, work: WorkRecord, requester: Holder, reason: str) -> WorkRecord:
    handed = replace(work, lease_epoch=work.lease_epoch + 1, pod_id=requester.pod_id, incarnation=requester.incarnation)
    records.save(transaction, handed)
    agent_id = handed.agent_id if isinstance(handed, AgentRecord) else ""
    transaction.record(
        "agent_assigned" if agent_id else "evaluation_assigned",
        f"{handed.work_id} goes to {requester.pod_id}: {reason} (lease epoch {handed.lease_epoch})",
        tournament_id=handed.tournament_id,
        pod_id=requester.pod_id,
        agent_id=agent_id,
    )
    return handed


def save_generated_agent(transaction: Transaction, made: Agent) -> None:
    """Stores an agent that was made, once."""
    agent = records.find(transaction, AgentRecord, made.agent_id)
    if agent and agent.agent is None:
        records.save(transaction, replace(agent, agent=made))
        message = f"{agent.agent_id}: {made.reason}"
        transaction.record("agent_generated", message, tournament_id=agent.tournament_id, agent_id=agent.agent_id)
        _record_left_algorithms(transaction, made)


def _record_left_algorithms(transaction: Transaction, made: Agent) -> None:
    """Says once for each algorithm why no pod gets an agent of it any more; every later agent brings the same."""
    if not made.left_algorithms:
        return
    rows = transaction.execute(
        "SELECT message FROM events WHERE tournament_id = ? AND kind = 'algorithm_left'", made.tournament_id
    )
    told = {message.partition(" ")[0] for (message,) in rows}
    for name, reason in sorted(made.left_algorithms.items()):
        if name not in told:
            message = f"{name} leaves the draw: {reason}; its pods get agents of the others as theirs end"
            transaction.record("algorithm_left", message, tournament_id=made.tournament_id, agent_id=made.agent_id)


def still_held(transaction: Transaction, held: AgentRecord) -> AgentRecord | None:
    """An agent as it is now, if nobody else has got it since; else None."""
    agent = records.find(transaction, AgentRecord, held.agent_id)
    same = agent and (agent.lease_epoch, agent.pod_id) == (held.lease_epoch, held.pod_id)
    return agent if same else None


# --- taking back -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldWork:
    """Some work, and what decides about it."""

    tournament: TournamentRecord
    work: WorkRecord
    drain_reason: str
    useful: bool


def read_lease(transaction: Transaction, work_id: str) -> HeldWork:
    """Reads what decides about a lease; raises NotFound for work that never was."""
    work = records.find_work(transaction, work_id)
    pod = records.find(transaction, PodRecord, work.pod_id)
    tournament = records.find_tournament(transaction, work.tournament_id)
    if pod is None or pod.phase == PodPhase.GONE:
        return HeldWork(tournament, work, f"pod {work.pod_id} is not known here", useful=True)
    return HeldWork(tournament, work, pod.drain_reason, pod.useful)


def mark_useful(transaction: Transaction, pod_id: str) -> None:
    """The pod has done something of use: the deaths before it were accidents."""
    pod = records.find(transaction, PodRecord, pod_id)
    if pod is None:
        return
    records.save(transaction, replace(pod, useful=True))
    tournament = records.find_tournament(transaction, pod.tournament_id)
    if tournament.pods_died_in_row:
        records.save(transaction, replace(tournament, pods_died_in_row=0))


def record_evaluator_fault(transaction: Transaction, tournament_id: str, pod_id: str, fault: str) -> None:
    """A pod's own evaluator scored in the place of the tournament's."""
    reason = f"{pod_id} scores with its own evaluator for a while: {fault[:MAXIMUM_FAULT_CHARACTERS]}"
    transaction.record("evaluator_replaced", reason, tournament_id=tournament_id, pod_id=pod_id)


def complete_lease(
    transaction: Transaction, work_id: str, request: pb.CompleteAssignmentRequest, evaluator_fault: str = ""
) -> WorkRecord | None:
    """Ends a lease; None if it had ended already.

    Args:
        transaction: Where.
        work_id: Of the work that was leased.
        request: What its pod says in the end.
        evaluator_fault: What is to be noted of the tournament's own evaluator, if anything.

    Raises:
        NotFound: There never was such work.
        FailedPrecondition: STALE_EPOCH.
    """
    work = records.find_work(transaction, work_id)
    dispatch.check_epoch(work_id, work.lease_epoch, request.lease_epoch)
    if work.phase != WorkPhase.UNFINISHED or not work.pod_id:
        return None
    if evaluator_fault:
        record_evaluator_fault(transaction, work.tournament_id, work.pod_id, evaluator_fault)
    if request.outcome in (pb.OUTCOME_FINISHED, pb.OUTCOME_AGENT_FAILED):
        mark_useful(transaction, work.pod_id)
    if isinstance(work, AgentRecord):
        return _complete_agent(transaction, work, request)
    return _complete_evaluation(transaction, work, request)


def _complete_agent(transaction: Transaction, agent: AgentRecord, request: pb.CompleteAssignmentRequest) -> AgentRecord:
    phase, word = OUTCOMES[request.outcome]
    steps = max(agent.environment_steps, request.progress.environment_steps)
    ended = replace(agent, phase=phase, pod_id="", incarnation="", environment_steps=steps)
    records.save(transaction, ended)
    transaction.record(
        f"agent_{word}",
        f"{agent.agent_id} {word} after {steps} steps" + (f": {request.message}" if request.message else ""),
        tournament_id=agent.tournament_id,
        pod_id=agent.pod_id,
        agent_id=agent.agent_id,
    )
    _count_failures(transaction, ended, request)
    return ended


def _count_failures(transaction: Transaction, agent: AgentRecord, request: pb.CompleteAssignmentRequest) -> None:
    tournament = records.find_tournament(transaction, agent.tournament_id)
    if request.outcome == pb.OUTCOME_SPEC_FAILED:
        fail_tournament(transaction, tournament.tournament_id, request.message)
    elif request.outcome != pb.OUTCOME_DRAINED:
        failed = tournament.agents_failed_in_row + 1 if agent.phase == WorkPhase.FAILED else 0
        records.save(transaction, replace(tournament, agents_failed_in_row=failed))
        if dispatch.is_last_failure(failed, len(tournament.spec.algorithms)):
            reason = f"{failed} agents failed one after another; the last one: {request.message}"
            fail_tournament(transaction, tournament.tournament_id, reason)


def _complete_evaluation(
    transaction: Transaction, evaluation: EvaluationRecord, request: pb.CompleteAssignmentRequest
) -> EvaluationRecord:
    if request.outcome == pb.OUTCOME_DRAINED:
        given_back = replace(evaluation, pod_id="", incarnation="")
        records.save(transaction, given_back)
        return given_back
    if request.outcome == pb.OUTCOME_FINISHED:
        ended = replace(evaluation, phase=WorkPhase.FINISHED, result=request.evaluation)
    else:
        error = request.message or "the pod gave no reason"
        ended = replace(evaluation, phase=WorkPhase.FAILED, error=error)
    end_evaluation(transaction, ended)
    return ended
