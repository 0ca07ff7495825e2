"""Reads the newest stored replay memories of a tournament."""

from podrace.database import Transaction
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate, SubmitCandidateResponse

OLDEST_SECONDS = 3600.0
"""Memories that were submitted earlier are not listed: the policies that collected their steps are outdated."""


def newest_with_memory(
    transaction: Transaction, tournament_id: str, after_sequence: int, limit: int
) -> list[Candidate]:
    """Returns the candidates with a replay memory among the last submissions of a tournament, newest first.

    Args:
        transaction: The transaction.
        tournament_id: The tournament.
        after_sequence: Only submissions with a higher sequence number are read.
        limit: At most this many submissions are read, the newest ones.
    """
    rows = transaction.execute(
        "SELECT answer FROM submissions WHERE tournament_id = ? AND sequence > ? ORDER BY sequence DESC LIMIT ?",
        tournament_id,
        after_sequence,
        limit,
    )
    candidates = (SubmitCandidateResponse.FromString(answer).candidate for (answer,) in rows)
    return [candidate for candidate in candidates if candidate.replay_steps]
