"""Keeps the score history of each tournament in memory, so that a submission reads only the latest candidates.

A history may have candidates of a transaction that was rolled back later, for example because the disk was full. Their
sequence numbers are given to other candidates. Each history is therefore checked against the database before it is
used, and built from the first candidate if its last one is not the recorded one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from leaderboard.ranking.score_history import RoundHistory, ScoreHistory
from leaderboard.store import records
from podrace.database import Transaction
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

MOST_TOURNAMENTS = 100


@dataclass
class _Entry:
    history: ScoreHistory = field(default_factory=ScoreHistory)
    rounds: RoundHistory = field(default_factory=RoundHistory)
    sequence: int = 0
    """Sequence number of the last candidate in the history."""
    candidate_id: str = ""
    """That candidate; empty before the first."""


class ScoreHistories:
    """Score histories by tournament; each is a function of the recorded candidates."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def of(self, transaction: Transaction, tournament_id: str) -> ScoreHistory:
        """Returns the history of all candidates of a tournament that are recorded."""
        entry = self._entry(tournament_id)
        if entry.candidate_id and records.candidate_at(transaction, entry.sequence) != entry.candidate_id:
            entry = self._entries[tournament_id] = _Entry()
        for candidate in records.list_candidates(transaction, tournament_id, after_sequence=entry.sequence):
            entry.history.add(candidate)
            entry.sequence, entry.candidate_id = candidate.sequence, candidate.candidate_id
        return entry.history

    def of_round(self, spec: TournamentSpec, seen: Sequence[Candidate], candidate: Candidate) -> ScoreHistory:
        """Returns the history that a new candidate of a synchronous tournament is estimated by.

        Args:
            spec: Resolved specification.
            seen: All earlier candidates of the tournament.
            candidate: The new one.
        """
        return self._entry(candidate.tournament_id).rounds.of(spec, seen, candidate)

    def _entry(self, tournament_id: str) -> _Entry:
        """Returns the entry of a tournament, and drops the one that was not used for longest if there are too many."""
        entry = self._entries.pop(tournament_id, None) or _Entry()
        self._entries[tournament_id] = entry
        while len(self._entries) > MOST_TOURNAMENTS:
            del self._entries[next(iter(self._entries))]
        return entry
