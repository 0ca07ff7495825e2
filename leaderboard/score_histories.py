"""Keeps the score history of each tournament in memory, so that a submission reads only the latest candidates."""

from dataclasses import dataclass, field

from leaderboard.ranking.score_history import ScoreHistory
from leaderboard.store import records
from podrace.database import Transaction

MOST_TOURNAMENTS = 100


@dataclass
class _Entry:
    history: ScoreHistory = field(default_factory=ScoreHistory)
    sequence: int = 0
    """Sequence number of the last candidate in the history."""


class ScoreHistories:
    """Score histories by tournament; each is a function of the recorded candidates."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def of(self, transaction: Transaction, tournament_id: str) -> ScoreHistory:
        """Returns the history of all candidates of a tournament that are recorded."""
        entry = self._entries.pop(tournament_id, None) or _Entry()
        for candidate in records.list_candidates(transaction, tournament_id, after_sequence=entry.sequence):
            entry.history.add(candidate)
            entry.sequence = candidate.sequence
        self._entries[tournament_id] = entry
        while len(self._entries) > MOST_TOURNAMENTS:
            del self._entries[next(iter(self._entries))]
        return entry.history
