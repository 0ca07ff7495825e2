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
LONGEST_FAULT = 500
"""Characters of a fault that are written down."""


@dataclass(frozen=True)
class Given:
    """Work that was handed out."""

    tournament: TournamentRecord
    work: WorkRecord


@dataclass(frozen=True)
class Beliefs:
    """What the event loop knows that a transaction needs."""

    expired: Collection[tuple[str, int]]
    """Leases that have expired, as names of the work with their epochs: a lease given meanwhile is none of them."""
    judged_rounds: Mapping[str, int]
    """Rounds of each synchronous tournament after which its objective was judged and not met."""
    works: Sequence[WorkRecord] = ()
    """The work in question, in the order in which it is offered, as it was lately: nothing else can be free. What has
    become free since goes to the next pod that asks."""


# --- handing out -------------------------------------------------------------------------------------------------


def hand_out(transaction: Transaction, asking: Holder, beliefs: Beliefs) -> Given | dispatch.Wait | dispatch.Drain:
    """Decides what a pod that asks gets, and makes it durable."""
    pod = records.find(transaction, PodRecord, asking.pod_id)
    if pod is None or pod.phase == PodPhase.GONE:
        return dispatch.Drain(f"pod {asking.pod_id} is not known here")
    if pod.drain_reason:
        return dispatch.Drain(pod.drain_reason)
    return offer(transaction, pod.tournament_id, asking, beliefs)


def offer(
    transaction: Transaction, tournament_id: str, asking: Holder, beliefs: Beliefs
) -> Given | dispatch.Wait | dispatch.Drain:
    """Decides what a pod gets that asks for work of one tournament, and is welcome there."""
    tournament = records.find_tournament(transaction, tournament_id)
    works = _in_question(transaction, asking, beliefs)
    situation = dispatch.Situation(
        drain_reason="",
        end_reason=tournament.end_reason,
        evaluations=[work for record, work in works if isinstance(record, EvaluationRecord)],
        agents=[work for record, work in works if isinstance(record, AgentRecord)],
        next_number=tournament.next_agent,
        rounds=_rounds(transaction, tournament, beliefs),
    )
    choice = dispatch.choose(asking, situation)
    if isinstance(choice, dispatch.Begin):
        return _begin(transaction, tournament, asking)
    if isinstance(choice, dispatch.Hand):
        found = next(record for record, _ in works if record.work_id == choice.work_id)
        return Given(tournament, found if choice.again else _hand(transaction, found, asking, choice.reason))
    return choice


def _in_question(transaction: Transaction, asking: Holder, beliefs: Beliefs) -> list[tuple[WorkRecord, dispatch.Work]]:
    """What the pod itself holds, and the first evaluation and the first agent that are free, as they are now."""
    found: list[tuple[WorkRecord, dispatch.Work]] = []
    free: set[type[WorkRecord]] = set()
    for believed in beliefs.works:
        if type(believed) in free and believed.pod_id != asking.pod_id:
            continue
        record = records.find_again(transaction, believed)
        if record is None or record.phase != WorkPhase.UNFINISHED:
            continue
        work = _as_work(transaction, record, beliefs)
        if isinstance(record, EvaluationRecord) and _give_up(transaction, record, work, asking):
            continue
        found.append((record, work))
        if dispatch.why_free(work, asking):
            free.add(type(record))
    return found


def _as_work(transaction: Transaction, record: WorkRecord, beliefs: Beliefs) -> dispatch.Work:
    if not record.pod_id:
        return dispatch.Work(record.work_id, None)
    pod = records.find(transaction, PodRecord, record.pod_id)
    lives = pod is not None and pod.phase != PodPhase.GONE
    expired = (record.work_id, record.lease_epoch) in beliefs.expired
    return dispatch.Work(record.work_id, Holder(record.pod_id, record.incarnation), lives, not expired)


def _rounds(transaction: Transaction, tournament: TournamentRecord, beliefs: Beliefs) -> dispatch.Rounds | None:
    if not tournament.spec.synchronous:
        return None
    first = records.first_unfinished(transaction, tournament.tournament_id)
    judged = beliefs.judged_rounds.get(tournament.tournament_id, 0)
    return dispatch.Rounds(tournament.round_size, [] if first is None else [first], judged)


def _give_up(transaction: Transaction, evaluation: EvaluationRecord, work: dispatch.Work, asking: Holder) -> bool:
    reason = dispatch.lost_too_often(evaluation.lease_epoch, work, asking)
    if reason:
        end_evaluation(transaction, replace(evaluation, phase=WorkPhase.FAILED, error=reason))
    return bool(reason)


def _begin(transaction: Transaction, tournament: TournamentRecord, asking: Holder) -> Given:
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
    return Given(tournament, _hand(transaction, agents[0], asking, "the next new agent"))


def _hand(transaction: Transaction, work: WorkRecord, asking: Holder, reason: str) -> WorkRecord:
    handed = replace(work, lease_epoch=work.lease_epoch + 1, pod_id=asking.pod_id, incarnation=asking.incarnation)
    records.save(transaction, handed)
    agent_id = handed.agent_id if isinstance(handed, AgentRecord) else ""
    transaction.record(
        "agent_assigned" if agent_id else "evaluation_assigned",
        f"{handed.work_id} goes to {asking.pod_id}: {reason} (lease epoch {handed.lease_epoch})",
        tournament_id=handed.tournament_id,
        pod_id=asking.pod_id,
        agent_id=agent_id,
    )
    return handed


def keep_agent(transaction: Transaction, made: Agent) -> None:
    """Stores an agent that was made, once."""
    agent = records.find(transaction, AgentRecord, made.agent_id)
    if agent and agent.agent is None:
        records.save(transaction, replace(agent, agent=made))
        message = f"{agent.agent_id}: {made.reason}"
        transaction.record("agent_generated", message, tournament_id=agent.tournament_id, agent_id=agent.agent_id)
        _tell_who_left(transaction, made)


def _tell_who_left(transaction: Transaction, made: Agent) -> None:
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
class Held:
    """Some work, and what decides about it."""

    tournament: TournamentRecord
    work: WorkRecord
    drain_reason: str
    useful: bool


def read_lease(transaction: Transaction, work_id: str) -> Held:
    """Reads what decides about a lease; raises NotFound for work that never was."""
    work = records.find_work(transaction, work_id)
    pod = records.find(transaction, PodRecord, work.pod_id)
    tournament = records.find_tournament(transaction, work.tournament_id)
    if pod is None or pod.phase == PodPhase.GONE:
        return Held(tournament, work, f"pod {work.pod_id} is not known here", useful=True)
    return Held(tournament, work, pod.drain_reason, pod.useful)


def mark_useful(transaction: Transaction, pod_id: str) -> None:
    """The pod has done something of use: the deaths before it were accidents."""
    pod = records.find(transaction, PodRecord, pod_id)
    if pod is None:
        return
    records.save(transaction, replace(pod, useful=True))
    tournament = records.find_tournament(transaction, pod.tournament_id)
    if tournament.pods_died_in_row:
        records.save(transaction, replace(tournament, pods_died_in_row=0))


def note_evaluator_fault(transaction: Transaction, tournament_id: str, pod_id: str, fault: str) -> None:
    """A pod's own evaluator scored in the place of the tournament's."""
    reason = f"{pod_id} scores with its own evaluator for a while: {fault[:LONGEST_FAULT]}"
    transaction.record("evaluator_replaced", reason, tournament_id=tournament_id, pod_id=pod_id)


def take_back(
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
        note_evaluator_fault(transaction, work.tournament_id, work.pod_id, evaluator_fault)
    if request.outcome in (pb.OUTCOME_FINISHED, pb.OUTCOME_AGENT_FAILED):
        mark_useful(transaction, work.pod_id)
    if isinstance(work, AgentRecord):
        return _take_back_agent(transaction, work, request)
    return _take_back_evaluation(transaction, work, request)


def _take_back_agent(
    transaction: Transaction, agent: AgentRecord, request: pb.CompleteAssignmentRequest
) -> AgentRecord:
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


def _take_back_evaluation(
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
