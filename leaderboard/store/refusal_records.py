"""Reads and writes refused submissions in the database."""

from leaderboard.store.records import timestamp
from podrace.database import Transaction
from podrace.leaderboard.v1.leaderboard_pb2 import Refusal

MOST_REFUSALS = 1000
"""Refusals of a tournament that are kept; a pod that submits nonsense without end must not fill the database."""
PAGE_SIZE = 100
LONGEST_MESSAGE = 500
"""Characters of the message of a refusal. It may quote a checkpoint, whose texts can have any length."""


def add_refusal(transaction: Transaction, tournament_id: str, draft: Refusal) -> bool:
    """Records a refusal unless its manifest was refused before; returns whether it was recorded.

    Args:
        transaction: The transaction.
        tournament_id: The tournament.
        draft: The refusal without number and time.
    """
    rows = transaction.execute(
        "SELECT coalesce(max(number), 0), coalesce(max(CASE WHEN manifest_digest = ? THEN 1 END), 0) FROM refusals"
        " WHERE tournament_id = ?",
        draft.manifest_digest,
        tournament_id,
    )
    last, known = rows[0]
    if known or last >= MOST_REFUSALS:
        return False
    refusal = Refusal(number=last + 1, refuse_time=timestamp(transaction.now))
    refusal.MergeFrom(draft)
    transaction.execute(
        "INSERT INTO refusals VALUES (?, ?, ?, ?)",
        tournament_id,
        refusal.number,
        refusal.manifest_digest,
        refusal.SerializeToString(),
    )
    return True


def find_refusal(transaction: Transaction, tournament_id: str, manifest_digest: str) -> Refusal | None:
    """Returns the refusal of a manifest; None if it was not refused."""
    rows = transaction.execute(
        "SELECT refusal FROM refusals WHERE tournament_id = ? AND manifest_digest = ?", tournament_id, manifest_digest
    )
    return Refusal.FromString(rows[0][0]) if rows else None


def count_refusals(transaction: Transaction, tournament_id: str, agent_id: str, error_reason: str) -> int:
    """Returns how many manifests of an agent were refused for a reason."""
    rows = transaction.execute("SELECT refusal FROM refusals WHERE tournament_id = ?", tournament_id)
    found = (Refusal.FromString(data) for (data,) in rows)
    return sum(one.agent_id == agent_id and one.error_reason == error_reason for one in found)


def refusals_after(transaction: Transaction, tournament_id: str, number: int) -> list[Refusal]:
    """Returns the refusals of a tournament after a number, at most PAGE_SIZE, in order; their messages are cut."""
    rows = transaction.execute(
        "SELECT refusal FROM refusals WHERE tournament_id = ? AND number > ? ORDER BY number LIMIT ?",
        tournament_id,
        number,
        PAGE_SIZE,
    )
    found = [Refusal.FromString(data) for (data,) in rows]
    for refusal in found:
        # Recorded by a version that did not cut it.
        refusal.message = refusal.message[:LONGEST_MESSAGE]
    return found
