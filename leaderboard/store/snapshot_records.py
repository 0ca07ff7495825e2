"""Reads and writes the snapshots of agents and champions in the database."""

from collections.abc import Sequence

from leaderboard.store.records import timestamp
from podrace.database import LARGEST_NUMBER, Transaction
from podrace.leaderboard.v1.leaderboard_pb2 import Snapshot

CHAMPION = ""
"""Subject of the champion's snapshots; an agent's have its id."""


def find_snapshot(transaction: Transaction, tournament_id: str, subject: str, number: int) -> Snapshot | None:
    """Returns the snapshot of a subject and a number; None if it was not taken."""
    rows = transaction.execute(
        "SELECT snapshot FROM snapshots WHERE tournament_id = ? AND subject = ? AND number = ?",
        tournament_id,
        subject,
        number,
    )
    return Snapshot.FromString(rows[0][0]) if rows else None


def add_snapshot(transaction: Transaction, draft: Snapshot) -> tuple[Snapshot, bool]:
    """Records a snapshot unless its subject has one with this number.

    Args:
        transaction: The transaction.
        draft: The snapshot without sequence number and time.

    Returns:
        The recorded snapshot, and whether it is the given one.
    """
    subject = CHAMPION if draft.champion else draft.agent_id
    recorded = find_snapshot(transaction, draft.tournament_id, subject, draft.number)
    if recorded:
        return recorded, False
    last = transaction.execute("SELECT coalesce(max(sequence), 0) FROM snapshots")[0][0]
    snapshot = Snapshot(sequence=int(last) + 1, create_time=timestamp(transaction.now))
    snapshot.MergeFrom(draft)
    transaction.execute(
        "INSERT INTO snapshots (sequence, tournament_id, subject, number, manifest_digest, total_steps, snapshot)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        snapshot.sequence,
        snapshot.tournament_id,
        subject,
        snapshot.number,
        snapshot.manifest_digest,
        snapshot.tournament_environment_steps if snapshot.champion else None,
        snapshot.SerializeToString(),
    )
    return snapshot, True


def list_snapshots(
    transaction: Transaction, tournament_id: str, after_sequence: int = 0, limit: int = LARGEST_NUMBER
) -> list[Snapshot]:
    """Returns at most `limit` snapshots of a tournament after a sequence number, by arrival.

    Only the champion's snapshots are taken with the environment steps of the whole tournament. An agent's snapshot has
    the same number as the champion's of the same time, and gets its steps.
    """
    rows = transaction.execute(
        "SELECT own.snapshot, champions.total_steps FROM snapshots AS own LEFT JOIN snapshots AS champions"
        " ON champions.tournament_id = own.tournament_id AND champions.subject = ? AND champions.number = own.number"
        " WHERE own.tournament_id = ? AND own.sequence > ? ORDER BY own.sequence LIMIT ?",
        CHAMPION,
        tournament_id,
        after_sequence,
        limit,
    )
    return [_with_total(Snapshot.FromString(data), total) for data, total in rows]


def _with_total(snapshot: Snapshot, total_steps: int | None) -> Snapshot:
    snapshot.tournament_environment_steps = total_steps or 0
    return snapshot


def snapshot_manifests(transaction: Transaction, tournament_id: str) -> Sequence[str]:
    """Returns the digests of the manifests of a tournament's snapshots, oldest first."""
    rows = transaction.execute(
        "SELECT manifest_digest FROM snapshots WHERE tournament_id = ? GROUP BY manifest_digest ORDER BY min(sequence)",
        tournament_id,
    )
    return [manifest_digest for (manifest_digest,) in rows]
