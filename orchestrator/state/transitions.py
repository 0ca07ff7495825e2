"""Applies state transitions that several packages need: a tournament fails, an evaluation ends."""

from dataclasses import replace

from orchestrator.state import records, target_records
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
