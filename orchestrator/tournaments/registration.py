"""Registers tournaments at the leaderboard, so that it answers reads about them before their first agent.

A tournament is registered when it is created. That does not fail if the leaderboard is unreachable: the reconcile loop
registers what is missing. It repeats all registrations once a minute, because the database of the leaderboard may have
been restored from a backup.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from itertools import islice

import structlog

from orchestrator.leaderboard_client import LeaderboardClient
from orchestrator.state.clock import Clock
from orchestrator.state.runtime import RuntimeState
from podrace.access.ownership import Ownership
from podrace.errors import PodraceError, Unimplemented
from podrace.tasks import wait_at_most

CREATE_SECONDS = 1.0
"""Longest time that the creation of a tournament waits for the leaderboard."""
REPEAT_SECONDS = 60.0
MOST_AT_ONCE = 500
"""Tournaments of one request; they fit into one message."""
_log = structlog.get_logger(__name__)


class Registration:
    """Registers tournaments.

    await registration.register(tournament_id)      # when it was created
    registration.register_missing()                 # in every reconcile cycle
    await registration.close()
    """

    def __init__(self, runtime: RuntimeState, leaderboard: LeaderboardClient, clock: Clock) -> None:
        self._runtime, self._leaderboard, self._clock = runtime, leaderboard, clock
        self._next_repetition = clock.monotonic() + REPEAT_SECONDS
        self._working: asyncio.Task[None] | None = None

    async def register(self, tournament_id: str) -> None:
        """Registers a new tournament; after CREATE_SECONDS without an answer the reconcile loop does it."""
        if tournament_id not in self._runtime.registered:
            await wait_at_most(self._send(lambda: [tournament_id]), CREATE_SECONDS)

    def register_missing(self) -> None:
        """Starts to register the tournaments that the leaderboard may not know, unless that is under way."""
        now = self._clock.monotonic()
        if now >= self._next_repetition:
            self._next_repetition = now + REPEAT_SECONDS
            self._runtime.registered.clear()
        if (self._working is None or self._working.done()) and self._missing():
            self._working = asyncio.create_task(self._register_all())

    async def close(self) -> None:
        """Cancels what is being registered."""
        if self._working:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)

    def _missing(self) -> list[str]:
        registered = self._runtime.registered
        return list(islice((name for name in self._runtime.cache.tournaments if name not in registered), MOST_AT_ONCE))

    async def _register_all(self) -> None:
        while self._missing():
            if not await self._send(self._missing):
                return

    async def _send(self, names: Callable[[], Collection[str]]) -> bool:
        """Registers tournaments; returns whether the leaderboard answered."""
        try:
            done = await self._leaderboard.register_tournaments(lambda: self._owned(names()))
        except Unimplemented:
            # A leaderboard of an earlier version learns of a tournament with its first agent.
            self._runtime.registered.update(names())
            return True
        except PodraceError as error:
            _log.debug("tournaments are registered later", error=error.message)
            return False
        self._runtime.registered.update(done)
        return True

    def _owned(self, names: Collection[str]) -> Mapping[str, Ownership]:
        cache = self._runtime.cache
        return {name: cache.ownership_of(name) or Ownership("") for name in names if name in cache.tournaments}
