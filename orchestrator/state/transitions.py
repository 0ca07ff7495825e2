"""Applies state transitions that several packages need: a tournament fails, work ends or is given back."""

from dataclasses import replace

from orchestrator.decisions import dispatch
from orchestrator.state import records, target_records
from orchestrator.state.database import Transaction
from orchestrator.state.records import FAILED, RUNNING, AgentRecord, EvaluationRecord, PodRecord, WorkPhase


def end_evaluation(transaction: Transaction, evaluation: EvaluationRecord) -> None:
    """Stores an evaluation that is finished or failed."""
    records.save(transaction, replace(evaluation, pod_id="", incarnation=""))
    well = evaluation.phase == WorkPhase.FINISHED
    transaction.record_event(
        f"evaluation_{evaluation.phase}",
        f"{evaluation.evaluation_id} is done" if well else f"{evaluation.evaluation_id} failed: {evaluation.error}",
        tournament_id=evaluation.tournament_id,
        pod_id=evaluation.pod_id,
    )
    if target_records.is_target_check(evaluation):
        target_records.record_result(transaction, evaluation)


def withdraw_target_checks(transaction: Transaction, tournament_id: str) -> None:
    """Ends the checks of the target return that are not done, because their tournament has ended."""
    for evaluation in records.unfinished(transaction, EvaluationRecord, tournament_id):
        if target_records.is_target_check(evaluation):
            withdrawn = replace(evaluation, phase=WorkPhase.FAILED, error=target_records.WITHDRAWN)
            end_evaluation(transaction, withdrawn)


def fail_tournament(transaction: Transaction, tournament_id: str, reason: str) -> None:
    """Ends a tournament as failed; one that is not running stays unchanged."""
    tournament = records.find_tournament(transaction, tournament_id)
    if tournament.state != RUNNING:
        return
    records.save(transaction, replace(tournament, state=FAILED, reason=reason, end_time=transaction.now))
    transaction.record_event("tournament_failed", reason, tournament_id=tournament_id)
    withdraw_target_checks(transaction, tournament_id)


def count_end(transaction: Transaction, agent: AgentRecord, message: str) -> None:
    """Counts an agent that has ended, and fails its tournament if too many failed in a row.

    Args:
        transaction: The transaction to write in.
        agent: The agent, which is finished, failed or stopped.
        message: Why it failed.
    """
    tournament = records.find_tournament(transaction, agent.tournament_id)
    failed = tournament.agents_failed_in_row + 1 if agent.phase == WorkPhase.FAILED else 0
    records.save(transaction, replace(tournament, agents_failed_in_row=failed))
    if dispatch.is_last_failure(failed, len(tournament.spec.algorithms)):
        reason = f"{failed} agents failed in a row, the last one with: {message}"
        fail_tournament(transaction, tournament.tournament_id, reason)


# --- agents that pods give back, or that lose their pods ---------------------------------------------------------


def find_give_backs(transaction: Transaction, agent_id: str) -> tuple[int, int] | None:
    """Returns the steps of an agent when it was given back last, and how often at these steps; None: it was not."""
    rows = transaction.execute("SELECT environment_steps, count FROM give_backs WHERE agent_id = ?", agent_id)
    return (int(rows[0][0]), int(rows[0][1])) if rows else None


def save_give_backs(transaction: Transaction, agent: AgentRecord, count: int) -> None:
    """Records that an agent was given back for the `count`-th time at its present steps."""
    transaction.execute(
        "INSERT INTO give_backs (agent_id, tournament_id, environment_steps, count) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (agent_id) DO UPDATE SET environment_steps = excluded.environment_steps, count = excluded.count",
        *(agent.agent_id, agent.tournament_id, agent.environment_steps, count),
    )


def forget_give_backs(transaction: Transaction, agent_id: str) -> None:
    """Deletes what `save_give_backs` has recorded."""
    transaction.execute("DELETE FROM give_backs WHERE agent_id = ?", agent_id)


def find_losses(transaction: Transaction, agent_id: str) -> int:
    """Returns the number of pods in a row that died while they trained an agent."""
    rows = transaction.execute("SELECT count FROM losses WHERE agent_id = ?", agent_id)
    return int(rows[0][0]) if rows else 0


def save_losses(transaction: Transaction, agent: AgentRecord, count: int) -> None:
    """Records that `count` pods in a row died while they trained an agent."""
    transaction.execute(
        "INSERT INTO losses (agent_id, tournament_id, count) VALUES (?, ?, ?)"
        " ON CONFLICT (agent_id) DO UPDATE SET count = excluded.count",
        *(agent.agent_id, agent.tournament_id, count),
    )


def forget_losses(transaction: Transaction, agent_id: str) -> None:
    """Deletes what `save_losses` has recorded, because a pod has brought the agent further."""
    transaction.execute("DELETE FROM losses WHERE agent_id = ?", agent_id)


def last_agent_of(transaction: Transaction, pod: PodRecord) -> AgentRecord | None:
    """Returns the agent that was assigned to a pod last; None if there is none, or if the pod got an evaluation since.

    Another pod may hold it by now.
    """
    rows = transaction.execute(
        "SELECT agent_id FROM events WHERE tournament_id = ? AND kind IN ('agent_assigned', 'evaluation_assigned')"
        " AND pod_id = ? ORDER BY sequence DESC LIMIT 1",
        *(pod.tournament_id, pod.pod_id),
    )
    return records.find(transaction, AgentRecord, rows[0][0]) if rows else None
