"""Deletes the rows of a tournament, and records until when the leaderboard has deleted its own.

The rows are deleted first, in one transaction that checks again that the tournament has ended, so it cannot be resumed
meanwhile. The leaderboard's data is deleted afterwards; after a crash, this is repeated until it succeeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.decisions.deletion import Deletable, refusal
from orchestrator.state.database import Transaction
from orchestrator.state.records import (
    END_STATES,
    EvaluationRecord,
    EventRecord,
    PodPhase,
    PodRecord,
    TournamentRecord,
    WorkPhase,
    find,
    find_tournament,
    select,
)
from podrace.errors import FailedPrecondition

TABLES = (
    "agents",
    "evaluations",
    "pods",
    "events",
    "ownerships",
    "pauses",
    "evaluation_epochs",
    "labels",
    "resizes",
    "give_backs",
    "losses",
    "tournaments",
)


@dataclass(frozen=True)
class DeletedTournament:
    """A tournament whose rows were deleted; the cache forgets it."""

    tournament_id: str


@dataclass(frozen=True)
class KeptRecords:
    """What is recorded about a tournament, oldest first."""

    tournament: TournamentRecord
    evaluations: Sequence[EvaluationRecord]
    events: Sequence[EventRecord]


def kept_records(transaction: Transaction, tournament_id: str) -> KeptRecords:
    """Reads what is archived of a tournament; raises NotFound if there is none."""
    return KeptRecords(
        find_tournament(transaction, tournament_id),
        select(transaction, EvaluationRecord, "tournament_id = ? ORDER BY number", tournament_id),
        select(transaction, EventRecord, "tournament_id = ? ORDER BY sequence", tournament_id),
    )


def delete_rows(transaction: Transaction, tournament_id: str) -> list[str]:
    """Deletes the rows of a tournament, and returns the ids of its pods; none if there is no such tournament.

    Raises:
        FailedPrecondition: It has not ended, or its pods or evaluations have not.
    """
    tournament = find(transaction, TournamentRecord, tournament_id)
    if tournament is None:
        return []
    pods = select(transaction, PodRecord, "tournament_id = ?", tournament_id)
    count = "SELECT count(*) FROM evaluations WHERE tournament_id = ? AND phase = ?"
    found = Deletable(
        tournament_id,
        tournament.end_time if tournament.state in END_STATES else None,
        sum(pod.phase != PodPhase.GONE for pod in pods),
        transaction.execute(count, tournament_id, WorkPhase.UNFINISHED)[0][0],
    )
    if reason := refusal(found):
        raise FailedPrecondition(reason)
    for table in TABLES:
        transaction.execute(f"DELETE FROM {table} WHERE tournament_id = ?", tournament_id)
    transaction.execute("INSERT INTO deletions VALUES (?) ON CONFLICT DO NOTHING", tournament_id)
    transaction.saved.append(DeletedTournament(tournament_id))
    return [pod.pod_id for pod in pods]


def pending_deletions(transaction: Transaction) -> list[str]:
    """Returns the deleted tournaments of which the leaderboard may still have something."""
    return [name for (name,) in transaction.execute("SELECT tournament_id FROM deletions ORDER BY tournament_id")]


def finish_deletion(transaction: Transaction, tournament_id: str) -> None:
    """Records that the leaderboard has deleted a tournament."""
    transaction.execute("DELETE FROM deletions WHERE tournament_id = ?", tournament_id)
