"""Continues a rebuilt tournament when a pod proves that it was running."""

from dataclasses import replace

from orchestrator.rebuilding.derivation import STOPPED
from orchestrator.state import records
from orchestrator.state.database import Transaction
from orchestrator.state.records import CANCELLED, RUNNING, TournamentRecord


def revived(transaction: Transaction, tournament: TournamentRecord, pod_id: str) -> TournamentRecord:
    """Returns a tournament for which a pod works; one that was rebuilt, and counted as stopped, runs from here on."""
    if tournament.state != CANCELLED or tournament.reason != STOPPED:
        return tournament
    running = replace(tournament, state=RUNNING, reason="", end_time=None)
    records.save(transaction, running)
    message = f"{tournament.tournament_id} continues: {pod_id} works for it"
    transaction.record_event("tournament_resumed", message, tournament_id=tournament.tournament_id, pod_id=pod_id)
    return running
