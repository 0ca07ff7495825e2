"""Applies state transitions that several packages need: a tournament fails, an evaluation ends."""

from dataclasses import replace

from orchestrator.state import records
from orchestrator.state.database import Transaction
from orchestrator.state.records import FAILED, RUNNING, EvaluationRecord, WorkPhase


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


def fail_tournament(transaction: Transaction, tournament_id: str, reason: str) -> None:
    """Ends a tournament as failed; one that is not running stays unchanged."""
    tournament = records.find_tournament(transaction, tournament_id)
    if tournament.state != RUNNING:
        return
    records.save(transaction, replace(tournament, state=FAILED, reason=reason, end_time=transaction.now))
    transaction.record_event("tournament_failed", reason, tournament_id=tournament_id)
