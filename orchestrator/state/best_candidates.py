"""Remembers the best candidate of each tournament, and which of them is the selected champion.

The event loop owns this state: no other thread may read or write it.
"""

from collections.abc import Iterable

from podrace.leaderboard.v1.leaderboard_pb2 import Candidate


class BestCandidates:
    """The best candidate that the leaderboard reported last.

    best.update("cartpole", candidate)
    best.by_tournament.get("cartpole")

    Attributes:
        by_tournament: Best candidate by tournament.
    """

    def __init__(self) -> None:
        self.by_tournament: dict[str, Candidate] = {}
        self._champion_selected: set[str] = set()
        self._unsaved: set[str] = set()

    def restore(self, tournament_id: str, best: Candidate, *, champion_selected: bool) -> None:
        """Loads the best candidate of a previous run."""
        self.by_tournament[tournament_id] = best
        if champion_selected:
            self._champion_selected.add(tournament_id)

    def update(self, tournament_id: str, best: Candidate) -> bool:
        """Stores the best candidate, unless the champion is already selected.

        Returns:
            Whether the best candidate changed.
        """
        if tournament_id in self._champion_selected or self.by_tournament.get(tournament_id) == best:
            return False
        self.by_tournament[tournament_id] = best
        self._unsaved.add(tournament_id)
        return True

    def select_champion(self, tournament_id: str, champion: Candidate) -> None:
        """Stores the selected champion; later updates from the board no longer replace it."""
        self.update(tournament_id, champion)
        self._champion_selected.add(tournament_id)

    def forget(self, tournament_id: str) -> None:
        """Forgets a tournament that was deleted."""
        self.by_tournament.pop(tournament_id, None)
        self._champion_selected.discard(tournament_id)
        self._unsaved.discard(tournament_id)

    def take_unsaved(self) -> dict[str, Candidate]:
        """Best candidates that changed since the last call, by tournament."""
        tournaments, self._unsaved = self._unsaved, set()
        return {tournament_id: self.by_tournament[tournament_id] for tournament_id in tournaments}

    def mark_unsaved(self, tournament_ids: Iterable[str]) -> None:
        """Includes these tournaments in the next `take_unsaved`, because they could not be saved.

        Tournaments that were forgotten meanwhile are omitted.
        """
        self._unsaved.update(name for name in tournament_ids if name in self.by_tournament)
