"""Reads and writes candidates that are held until another pod has verified their scores."""

from podrace.database import Transaction
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate, SubmitCandidateRequest

Held = tuple[Candidate, SubmitCandidateRequest]
"""A candidate as it was submitted, with its estimate at that time, and the request."""


def add_held(transaction: Transaction, candidate: Candidate, request: SubmitCandidateRequest) -> None:
    """Records a held candidate unless it is held already."""
    position = int(transaction.execute("SELECT coalesce(max(position), 0) + 1 FROM held")[0][0])
    transaction.execute(
        "INSERT INTO held VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        candidate.candidate_id,
        candidate.tournament_id,
        position,
        candidate.SerializeToString(),
        request.SerializeToString(),
    )


def find_held(transaction: Transaction, candidate_id: str) -> Held | None:
    """Returns a held candidate; None if it is not held."""
    rows = transaction.execute("SELECT candidate, request FROM held WHERE candidate_id = ?", candidate_id)
    return _held(rows[0]) if rows else None


def list_held(transaction: Transaction, tournament_id: str) -> list[Held]:
    """Returns the held candidates of a tournament, by arrival."""
    rows = transaction.execute(
        "SELECT candidate, request FROM held WHERE tournament_id = ? ORDER BY position", tournament_id
    )
    return [_held(row) for row in rows]


def remove_held(transaction: Transaction, candidate_id: str) -> None:
    """Removes a candidate that has arrived at the board, or was refused."""
    transaction.execute("DELETE FROM held WHERE candidate_id = ?", candidate_id)


def held_manifests(transaction: Transaction) -> list[tuple[str, str]]:
    """Returns tournament and digest of the manifests of all held candidates."""
    rows = transaction.execute("SELECT tournament_id, candidate_id FROM held")
    return [(tournament_id, candidate_id) for tournament_id, candidate_id in rows]


def _held(row: tuple[bytes, bytes]) -> Held:
    return Candidate.FromString(row[0]), SubmitCandidateRequest.FromString(row[1])
