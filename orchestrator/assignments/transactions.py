"""Assigns work and completes leases in the database, each in one transaction; the rules are in `decisions.dispatch`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.assignments import given_back, incumbents
from orchestrator.decisions import dispatch
from orchestrator.decisions.dispatch import Holder
from orchestrator.decisions.restoration import attempts, next_epoch
from orchestrator.state import pauses, records, resize_records
from orchestrator.state.cache import StateCache
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
from orchestrator.state.saved_state import restored_epoch
from orchestrator.state.transitions import count_end, end_evaluation, fail_tournament, forget_losses
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.printable import printable

OUTCOMES = {
    pb.OUTCOME_FINISHED: (WorkPhase.FINISHED, "finished"),
    pb.OUTCOME_DRAINED: (WorkPhase.UNFINISHED, "drained"),
    pb.OUTCOME_AGENT_FAILED: (WorkPhase.FAILED, "failed"),
    # The specification is wrong, not the agent.
    pb.OUTCOME_SPEC_FAILED: (WorkPhase.UNFINISHED, "drained"),
    pb.OUTCOME_STOPPED: (WorkPhase.STOPPED, "stopped early"),
}
"""Phase of an agent, and the word in its event, after each outcome."""
LONGEST_STUCK_MESSAGE = 5000
"""Characters of the event of a stuck role, before control characters are escaped."""
MAXIMUM_FAULT_CHARACTERS = 500
"""Length of an evaluator fault in its event."""


@dataclass(frozen=True)
class AssignedWork:
    """Work that was assigned to a pod."""

    tournament: TournamentRecord
    work: WorkRecord
    maximum_environment_steps: int = 0
    """Own environment steps at which the agent ends at the latest; 0: no such limit."""


@dataclass(frozen=True)
class DispatchInputs:
    """State in memory that a transaction needs."""

    expired: Collection[tuple[str, int]]
    """Expired leases as pairs of work id and lease epoch; a lease granted since then has another epoch."""
    judged_rounds: Mapping[str, int]
    """By synchronous tournament, the number of rounds after which its objective was checked and not met."""
    works: Sequence[WorkRecord] = ()
    """Work that may be assigned, in the order in which it is offered, as of recently. No other work can be free, except
    what became free since then, which goes to the next pod that requests work."""
    incumbents: Mapping[str, str] = field(default_factory=dict)
    """Newest agent of the trial that leads, by tournament, as the leaderboard reported it last."""


# --- assigning ---------------------------------------------------------------------------------------------------


def assign_work(
    transaction: Transaction, requester: Holder, inputs: DispatchInputs
) -> AssignedWork | dispatch.Wait | dispatch.Drain:
    """Decides what a pod that requests work gets, and stores it."""
    pod = records.find(transaction, PodRecord, requester.pod_id)
    if pod is None:
        # The database may be new or restored from a backup. That is no reason to stop a running pod.
        return dispatch.Wait(f"pod {requester.pod_id} is unknown to this orchestrator")
    if pod.phase == PodPhase.GONE:
        return dispatch.Drain(f"pod {requester.pod_id} counts as gone")
    if pod.drain_reason:
        return dispatch.Drain(pod.drain_reason)
    answer = assign_from_tournament(transaction, pod.tournament_id, requester, inputs)
    if isinstance(answer, dispatch.Drain):
        # Otherwise it would count as dead if it stops before the pool asks it to.
        records.save(transaction, replace(pod, drain_reason=answer.reason))
    return answer


def assign_from_tournament(
    transaction: Transaction, tournament_id: str, requester: Holder, inputs: DispatchInputs
) -> AssignedWork | dispatch.Wait | dispatch.Drain:
    """Decides what a pod gets that may work for the given tournament, and stores it."""
    tournament = records.find_tournament(transaction, tournament_id)
    leading = incumbents.leading_trial(transaction, tournament, inputs.incumbents.get(tournament_id, ""))
    inputs = replace(inputs, works=incumbents.in_order(inputs.works, leading))
    works = _assignable_work(transaction, requester, inputs)
    state = dispatch.DispatchState(
        drain_reason="",
        end_reason=pauses.why_not_trained(transaction, tournament),
        evaluations=[work for record, work in works if isinstance(record, EvaluationRecord)],
        agents=[work for record, work in works if isinstance(record, AgentRecord)],
        next_number=tournament.next_agent,
        rounds=_rounds(transaction, tournament, inputs),
        selects_champion=tournament.selects_champion,
        paused_incumbent=leading.paused if leading else None,
    )
    choice = dispatch.choose(requester, state)
    if isinstance(choice, dispatch.AssignNew):
        return _assign_new_agent(transaction, tournament, requester)
    if isinstance(choice, dispatch.AssignExisting):
        found = next(record for record, _ in works if record.work_id == choice.work_id)
        return AssignedWork(
            tournament, found if choice.repeated else assign(transaction, found, requester, choice.reason)
        )
    return choice


def _assignable_work(
    transaction: Transaction, requester: Holder, inputs: DispatchInputs
) -> list[tuple[WorkRecord, dispatch.WorkItem]]:
    """The work that the pod itself holds, and the first free evaluation and agent, as they are now."""
    found: list[tuple[WorkRecord, dispatch.WorkItem]] = []
    free: set[type[WorkRecord]] = set()
    for believed in inputs.works:
        if type(believed) in free and believed.pod_id != requester.pod_id:
            continue
        record = records.find_again(transaction, believed)
        if record is None or record.phase != WorkPhase.UNFINISHED or _is_excluded(transaction, record, requester):
            continue
        work = work_item(transaction, record, inputs)
        if isinstance(record, EvaluationRecord) and _fail_if_lost_too_often(transaction, record, work, requester):
            continue
        found.append((record, work))
        if dispatch.why_free(work, requester):
            free.add(type(record))
    return found


def _is_excluded(transaction: Transaction, record: WorkRecord, requester: Holder) -> bool:
    """Whether a pod must not have work: an evaluation that would verify what the pod has stated itself, or an agent
    that is kept for a pod of another size.
    """
    if isinstance(record, EvaluationRecord):
        return requester.pod_id in record.request.excluded_pod_ids
    return resize_records.keeper_of(transaction, record.agent_id) not in ("", requester.pod_id)


def work_item(transaction: Transaction, record: WorkRecord, inputs: DispatchInputs) -> dispatch.WorkItem:
    """Returns what decides whether work may be assigned."""
    if not record.pod_id:
        return dispatch.WorkItem(record.work_id, None)
    generated = isinstance(record, EvaluationRecord) or record.agent is not None
    pod = records.find(transaction, PodRecord, record.pod_id)
    alive = pod is not None and pod.phase != PodPhase.GONE
    expired = (record.work_id, record.lease_epoch) in inputs.expired
    holder = Holder(record.pod_id, record.incarnation)
    return dispatch.WorkItem(record.work_id, holder, alive, not expired, generated)


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
    reason = dispatch.lost_too_often(attempts(evaluation.lease_epoch), work, requester)
    if reason:
        end_evaluation(transaction, replace(evaluation, phase=WorkPhase.FAILED, error=reason))
    return bool(reason)


def _assign_new_agent(transaction: Transaction, tournament: TournamentRecord, requester: Holder) -> AssignedWork:
    """Commits the next number, or the numbers of the next round, and assigns the first."""
    numbers = range(tournament.next_agent, tournament.next_agent + tournament.round_size)
    tournament = replace(tournament, next_agent=numbers.stop)
    records.save(transaction, tournament)
    agents = [new_agent(tournament.tournament_id, number) for number in numbers]
    for agent in agents:
        records.save(transaction, agent)
    return AssignedWork(tournament, assign(transaction, agents[0], requester, "the next new agent"))


def new_agent(tournament_id: str, number: int) -> AgentRecord:
    """Returns the record of an agent that the generator has not made yet."""
    return AgentRecord(
        agent_id=f"{tournament_id}-a{number}",
        tournament_id=tournament_id,
        number=number,
        phase=WorkPhase.UNFINISHED,
        lease_epoch=0,
        pod_id="",
        incarnation="",
        environment_steps=0,
        agent=None,
    )


def assign(transaction: Transaction, work: WorkRecord, requester: Holder, reason: str) -> WorkRecord:
    """Assigns work to a pod under the next lease epoch, for a reason that the event states."""
    epoch = next_epoch(work.lease_epoch, restored_epoch(transaction))
    assigned = replace(work, lease_epoch=epoch, pod_id=requester.pod_id, incarnation=requester.incarnation)
    records.save(transaction, assigned)
    agent_id = assigned.agent_id if isinstance(assigned, AgentRecord) else ""
    transaction.record_event(
        "agent_assigned" if agent_id else "evaluation_assigned",
        f"{assigned.work_id} is assigned to {requester.pod_id}: {reason} (lease epoch {assigned.lease_epoch})",
        tournament_id=assigned.tournament_id,
        pod_id=requester.pod_id,
        agent_id=agent_id,
    )
    return assigned


def save_generated_agent(transaction: Transaction, generated: Agent) -> None:
    """Stores a generated agent, unless it is stored already."""
    agent = records.find(transaction, AgentRecord, generated.agent_id)
    if agent and agent.agent is None:
        records.save(transaction, replace(agent, agent=generated))
        message = f"{agent.agent_id}: {generated.reason}"
        transaction.record_event("agent_generated", message, tournament_id=agent.tournament_id, agent_id=agent.agent_id)
        _record_left_algorithms(transaction, generated)


def _record_left_algorithms(transaction: Transaction, generated: Agent) -> None:
    """Records once per algorithm why it is no longer drawn; every later agent carries the same reasons."""
    if not generated.left_algorithms:
        return
    recorded = records.left_algorithms(transaction, generated.tournament_id)
    for name, reason in sorted(generated.left_algorithms.items()):
        if name not in recorded:
            message = f"{name} is eliminated: {reason}; its pods get other algorithms when their agents finish"
            transaction.record_event(
                "algorithm_left", message, tournament_id=generated.tournament_id, agent_id=generated.agent_id
            )


def still_held(transaction: Transaction, held: AgentRecord) -> AgentRecord | None:
    """Returns the current record of an agent; None if it was assigned again since `held` was read."""
    agent = records.find(transaction, AgentRecord, held.agent_id)
    same = agent and (agent.lease_epoch, agent.pod_id) == (held.lease_epoch, held.pod_id)
    return agent if same else None


# --- completing --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldWork:
    """Work and what decides about its lease."""

    tournament: TournamentRecord
    work: WorkRecord
    drain_reason: str
    useful: bool

    @property
    def environment_steps(self) -> int:
        """Environment steps of the agent when it was assigned; 0 for an evaluation."""
        return self.work.environment_steps if isinstance(self.work, AgentRecord) else 0


def read_lease(transaction: Transaction, work_id: str) -> HeldWork:
    """Reads what decides about a lease.

    Raises:
        NotFound: There is no such work.
    """
    work = records.find_work(transaction, work_id)
    pod = records.find(transaction, PodRecord, work.pod_id)
    tournament = records.find_tournament(transaction, work.tournament_id)
    if pod is None or pod.phase == PodPhase.GONE:
        return HeldWork(tournament, work, f"pod {work.pod_id} is unknown to this orchestrator", useful=True)
    return HeldWork(tournament, work, pod.drain_reason, pod.useful)


def known_lease(cache: StateCache, work_id: str) -> HeldWork | None:
    """Like `read_lease`, from memory; None if the work must be read from the database."""
    work = cache.works.get(work_id)
    pod = cache.pods.get(work.pod_id) if work else None
    if work is None or pod is None:
        return None
    return HeldWork(cache.tournaments[work.tournament_id], work, pod.drain_reason, pod.useful)


def mark_useful(transaction: Transaction, pod_id: str) -> None:
    """Records that a pod works, so that earlier pods that could not start no longer count."""
    pod = records.find(transaction, PodRecord, pod_id)
    if pod is None:
        return
    records.save(transaction, replace(pod, useful=True))
    tournament = records.find_tournament(transaction, pod.tournament_id)
    if tournament.pods_died_in_row:
        records.save(transaction, replace(tournament, pods_died_in_row=0))


def record_evaluator_fault(transaction: Transaction, tournament_id: str, pod_id: str, fault: str) -> None:
    """Records that a pod scored with the built-in evaluator because the tournament's evaluator failed."""
    reason = f"{pod_id} falls back to the built-in evaluator for a while: {fault[:MAXIMUM_FAULT_CHARACTERS]}"
    transaction.record_event("evaluator_replaced", reason, tournament_id=tournament_id, pod_id=pod_id)


def record_stuck_roles(transaction: Transaction, work: WorkRecord, stuck_roles: Sequence[pb.StuckRole]) -> None:
    """Records roles of a pod that made no progress, with the stacks of their threads."""
    for stuck in stuck_roles:
        action = "it is restarted" if stuck.restarted else "the pod is replaced"
        message = f"{stuck.progress.role} of {work.pod_id} is stuck, {action}: {stuck.reason}"
        if stuck.stacks:
            message += f"; {stuck.stacks}"
        transaction.record_event(
            "role_stuck",
            printable(message[:LONGEST_STUCK_MESSAGE]),
            tournament_id=work.tournament_id,
            pod_id=work.pod_id,
            agent_id=work.work_id if isinstance(work, AgentRecord) else "",
        )


def complete_lease(
    transaction: Transaction, work_id: str, request: pb.CompleteAssignmentRequest, evaluator_fault: str = ""
) -> WorkRecord | None:
    """Ends a lease and stores the outcome.

    Args:
        transaction: The transaction to write in.
        work_id: The leased work.
        request: The final report of the pod.
        evaluator_fault: Why the tournament's evaluator failed, if that is to be recorded.

    Returns:
        The work as it is now; None if the lease had ended already.

    Raises:
        NotFound: There is no such work.
        FailedPrecondition: The lease epoch is outdated (STALE_EPOCH).
    """
    work = records.find_work(transaction, work_id)
    dispatch.check_epoch(work_id, work.lease_epoch, request.lease_epoch)
    if work.phase != WorkPhase.UNFINISHED or not work.pod_id:
        return None
    if evaluator_fault:
        record_evaluator_fault(transaction, work.tournament_id, work.pod_id, evaluator_fault)
    ended = request.outcome in (pb.OUTCOME_FINISHED, pb.OUTCOME_AGENT_FAILED, pb.OUTCOME_STOPPED)
    if ended or request.progress.HasField("update_age_seconds") or request.progress.storage_fault:
        # An agent that is given back after an update was published first; one that waits for storage may be finished.
        mark_useful(transaction, work.pod_id)
        forget_losses(transaction, work_id)
    if isinstance(work, AgentRecord):
        return _complete_agent(transaction, work, request)
    return _complete_evaluation(transaction, work, request)


def _complete_agent(transaction: Transaction, agent: AgentRecord, request: pb.CompleteAssignmentRequest) -> AgentRecord:
    steps = max(agent.environment_steps, request.progress.environment_steps)
    outcome, message = given_back.outcome_of_agent(transaction, replace(agent, environment_steps=steps), request)
    phase, word = OUTCOMES[outcome]
    ended = replace(agent, phase=phase, pod_id="", incarnation="", environment_steps=steps)
    records.save(transaction, ended)
    transaction.record_event(
        f"agent_{ended.phase if ended.phase != WorkPhase.UNFINISHED else word}",
        f"{agent.agent_id} {word} after {steps} steps" + (f": {message}" if message else ""),
        tournament_id=agent.tournament_id,
        pod_id=agent.pod_id,
        agent_id=agent.agent_id,
    )
    _count_failures(transaction, ended, outcome, message)
    return ended


def _count_failures(
    transaction: Transaction, agent: AgentRecord, outcome: "pb.Outcome.ValueType", message: str
) -> None:
    if outcome == pb.OUTCOME_SPEC_FAILED:
        fail_tournament(transaction, agent.tournament_id, message)
    elif outcome != pb.OUTCOME_DRAINED:
        count_end(transaction, agent, message)


def _complete_evaluation(
    transaction: Transaction, evaluation: EvaluationRecord, request: pb.CompleteAssignmentRequest
) -> EvaluationRecord:
    outcome, message = given_back.outcome_of_evaluation(evaluation, request)
    if outcome == pb.OUTCOME_DRAINED:
        returned = replace(evaluation, pod_id="", incarnation="")
        records.save(transaction, returned)
        return returned
    if outcome == pb.OUTCOME_FINISHED:
        ended = replace(evaluation, phase=WorkPhase.FINISHED, result=request.evaluation)
    else:
        error = message or "failed without a message from the pod"
        ended = replace(evaluation, phase=WorkPhase.FAILED, error=error)
    end_evaluation(transaction, ended)
    return ended
