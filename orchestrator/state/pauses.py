"""Pauses running tournaments for users, and ends these pauses.

A pause is stored in a separate table, so that it survives a restart. Its tournament stays in the state RUNNING.
"""

from orchestrator.state.cache import StateCache
from orchestrator.state.database import Transaction
from orchestrator.state.records import RUNNING, PauseRecord, TournamentRecord, find, save
from podrace.errors import FailedPrecondition

TOURNAMENT_ENDED = "ERROR_REASON_TOURNAMENT_ENDED"


def pause_reason(name: str, reason: str) -> str:
    """Returns why a tournament is paused: who did it, and the reason that was given, if any."""
    return f"paused by {name}: {reason}" if reason else f"paused by {name}"


def pause(transaction: Transaction, tournament: TournamentRecord, reason: str) -> None:
    """Pauses a running tournament; the first pause keeps its reason.

    Raises:
        FailedPrecondition: The tournament is not running (TOURNAMENT_ENDED).
    """
    if tournament.state != RUNNING:
        raise FailedPrecondition(
            f"tournament {tournament.tournament_id} has ended ({tournament.reason}) and cannot be paused",
            reason=TOURNAMENT_ENDED,
        )
    if not _pause_of(transaction, tournament.tournament_id):
        save(transaction, PauseRecord(tournament.tournament_id, reason))
        transaction.record_event("tournament_paused", reason, tournament_id=tournament.tournament_id)


def end_pause(transaction: Transaction, tournament_id: str) -> str:
    """Ends the pause of a tournament; returns why it was paused, empty if it was not."""
    reason = _pause_of(transaction, tournament_id)
    if reason:
        save(transaction, PauseRecord(tournament_id, ""))
    return reason


def why_not_trained(transaction: Transaction, tournament: TournamentRecord) -> str:
    """Returns why agents of a tournament are not trained now: it has ended or is paused; empty if they are."""
    return tournament.end_reason or _described(tournament, _pause_of(transaction, tournament.tournament_id))


def known_why_not_trained(cache: StateCache, tournament: TournamentRecord) -> str:
    """Like `why_not_trained`, from memory."""
    return tournament.end_reason or _described(tournament, cache.pauses.get(tournament.tournament_id, ""))


def is_training(cache: StateCache, tournament: TournamentRecord) -> bool:
    """Whether agents of a tournament are trained now, as far as users decide: it is running and not paused."""
    return not known_why_not_trained(cache, tournament)


def _pause_of(transaction: Transaction, tournament_id: str) -> str:
    found = find(transaction, PauseRecord, tournament_id)
    return found.reason if found else ""


def _described(tournament: TournamentRecord, reason: str) -> str:
    return f"tournament {tournament.tournament_id} is {reason}" if reason else ""
