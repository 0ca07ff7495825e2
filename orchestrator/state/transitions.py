"""Applies state transitions that several packages need: a tournament fails, work ends or is given back."""

from dataclasses import replace

from orchestrator.state import records, target_records
from orchestrator.state.database import Transaction
from orchestrator.state.records import FAILED, RUNNING, AgentRecord, EvaluationRecord, WorkPhase


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


def find_give_backs(transaction: Transaction, agent_id: str) -> tuple[int, int] | None:
    """Returns the steps of an agent when it was given back last, and how often at these steps; None: it was not."""
    rows = transaction.execute("SELECT environment_steps, count FROM give_backs WHERE agent_id = ?", agent_id)
    return (int(rows[0][0]), int(rows[0][1])) if rows else None


def save_give_backs(transaction: Transaction, agent: AgentRecord, count: int) -> None:
    """Records that an agent was given back for the `count`-th time at its present steps."""
    transaction.execute(
        "INSERT OR REPLACE INTO give_backs (agent_id, tournament_id, environment_steps, count) VALUES (?, ?, ?, ?)",
        *(agent.agent_id, agent.tournament_id, agent.environment_steps, count),
    )


def forget_give_backs(transaction: Transaction, agent_id: str) -> None:
    """Deletes what `save_give_backs` has recorded."""
    transaction.execute("DELETE FROM give_backs WHERE agent_id = ?", agent_id)
