"""Measures how long each tournament has been running, without the time it was paused.

The event loop owns this state: no other thread may read or write it.
"""

from collections import defaultdict
from collections.abc import Iterable


class RunningTime:
    """Running seconds by tournament.

    running_time.add(running_ids, seconds_since_last_cycle)
    running_time.set_running(running_ids, now)
    running_time.seconds("cartpole", now)
    """

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        # Tournaments that run now, with the monotonic time up to which `_seconds` counts them.
        self._counted_until: dict[str, float] = {}
        self._unsaved: set[str] = set()

    def restore(self, tournament_id: str, seconds: float) -> None:
        """Loads the running time of a previous run."""
        self._seconds[tournament_id] = seconds

    def add(self, tournament_ids: Iterable[str], seconds: float) -> None:
        """Adds time to tournaments that were running."""
        for tournament_id in tournament_ids:
            self._seconds[tournament_id] += seconds
            if tournament_id in self._counted_until:
                self._counted_until[tournament_id] += seconds
            self._unsaved.add(tournament_id)

    def set_running(self, tournament_ids: Iterable[str], now: float) -> None:
        """Sets which tournaments run from now on; `add` counts their time later. `now` is monotonic."""
        self._counted_until = dict.fromkeys(tournament_ids, now)

    def seconds(self, tournament_id: str, now: float | None = None) -> float:
        """Running time of a tournament: up to the latest `add`, or up to `now` (monotonic) if given."""
        uncounted = 0.0 if now is None else max(0.0, now - self._counted_until.get(tournament_id, now))
        return self._seconds.get(tournament_id, 0.0) + uncounted

    def forget(self, tournament_id: str) -> None:
        """Forgets a tournament that was deleted."""
        self._seconds.pop(tournament_id, None)
        self._counted_until.pop(tournament_id, None)
        self._unsaved.discard(tournament_id)

    def take_unsaved(self) -> dict[str, float]:
        """Running seconds of the tournaments that changed since the last call."""
        tournaments, self._unsaved = self._unsaved, set()
        return {tournament_id: self._seconds[tournament_id] for tournament_id in tournaments}

    def mark_unsaved(self, tournament_ids: Iterable[str]) -> None:
        """Includes these tournaments in the next `take_unsaved`, because they could not be saved.

        Tournaments that were forgotten meanwhile are omitted.
        """
        self._unsaved.update(name for name in tournament_ids if name in self._seconds)
