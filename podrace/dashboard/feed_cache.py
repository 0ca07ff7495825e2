"""Opens a feed for each tournament that pages show, and closes those that have not been used for a while.

All who may read a tournament share its feed. The mesh is asked for each of them whether they may read it. A feed has
the rights of the reader who has opened it, and is closed when the session of that reader ends; the next request of
another one opens it again.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from podrace.dashboard.entrance.reader import Reader
from podrace.dashboard.feed import TournamentFeed
from podrace.tasks import cancel_all

MOST_FEEDS = 12
"""Feeds that are open at the same time, at most."""
MOST_FEEDS_OF_PERSONS = 40
"""The same if persons sign in."""
MOST_POINTS = 3_000_000
"""Submissions that all feeds keep together, at most, unless a single tournament has more: 72 MB."""
IDLE_SECONDS = 300.0
"""A feed that no page has used for this long is closed."""
CLEANING_SECONDS = 10.0


@dataclass
class _Entry:
    feed: TournamentFeed
    used: float
    """When a page used it last, on the clock of the cache."""
    reader: Reader
    """Whose rights the feed has."""


def to_close(
    ages: dict[str, float], points: dict[str, int], *, feeds: int = MOST_FEEDS, most_points: int = MOST_POINTS
) -> list[str]:
    """Returns which feeds to close: idle ones, then the longest unused ones above a limit; never the newest used.

    Args:
        ages: Seconds since each feed was used, by tournament.
        points: Submissions that each keeps.
        feeds: Feeds to keep, at most.
        most_points: Submissions to keep, at most.
    """
    closed, kept, total = [], 0, 0
    for name in sorted(ages, key=lambda one: ages[one]):
        kept, total = kept + 1, total + points[name]
        if ages[name] > IDLE_SECONDS or (kept > 1 and (kept > feeds or total > most_points)):
            closed.append(name)
            kept, total = kept - 1, total - points[name]
    return closed


class FeedCache:
    """The open feeds; an asynchronous context manager that closes them.

    async with FeedCache() as feeds:
        feed = await feeds.get("cartpole-2xxpit", reader)
        while True:
            feed = await feeds.renewed(feed, reader)
            ...
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, most_feeds: int = MOST_FEEDS) -> None:
        """Opens no feed.

        Args:
            clock: Monotonic time in seconds.
            most_feeds: Feeds that are open at the same time, at most.
        """
        self._clock, self._most_feeds = clock, most_feeds
        self._entries: dict[str, _Entry] = {}
        self._lock = asyncio.Lock()
        self._cleaning: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "FeedCache":
        self._cleaning = asyncio.create_task(self._clean())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._cleaning:
            await cancel_all(self._cleaning)
        for entry in self._entries.values():
            await entry.feed.close()

    async def get(self, tournament_id: str, reader: Reader) -> TournamentFeed:
        """Returns the feed of a tournament, which is opened first if it is not open.

        Raises:
            NotFound: The orchestrator does not know the tournament, or not for this reader.
            PodraceError: It does not answer, or refuses.
        """
        if reader.is_person:
            await reader.may_read(tournament_id)
        async with self._lock:
            entry = self._entries.get(tournament_id)
            if entry and entry.feed.refused and entry.reader is not reader:
                await self.drop(tournament_id)
                entry = None
            if entry is None:
                feed = TournamentFeed(reader.client, await reader.client.get_tournament(tournament_id))
                feed.start()
                entry = self._entries[tournament_id] = _Entry(feed, self._clock(), reader)
                await self._close_some()
        entry.used = self._clock()
        return entry.feed

    async def renewed(self, feed: TournamentFeed, reader: Reader) -> TournamentFeed:
        """Returns the feed that now shows the tournament of a feed; raises the errors of `get`."""
        if feed.closed or reader.is_person:
            return await self.get(feed.tournament.tournament_id, reader)
        self.keep(feed.tournament.tournament_id)
        return feed

    async def leave(self, reader: Reader) -> None:
        """Closes the feeds that have the rights of a reader."""
        async with self._lock:
            for name in [name for name, entry in self._entries.items() if entry.reader is reader]:
                await self.drop(name)

    def keep(self, tournament_id: str) -> None:
        """Counts a feed as used now."""
        if tournament_id in self._entries:
            self._entries[tournament_id].used = self._clock()

    async def drop(self, tournament_id: str) -> None:
        """Closes the feed of a tournament that was deleted."""
        entry = self._entries.pop(tournament_id, None)
        if entry:
            await entry.feed.close()

    async def _clean(self) -> None:
        while True:
            await asyncio.sleep(CLEANING_SECONDS)
            async with self._lock:
                await self._close_some()

    async def _close_some(self) -> None:
        ages = {name: self._clock() - entry.used for name, entry in self._entries.items()}
        points = {name: entry.feed.points.count for name, entry in self._entries.items()}
        for name in to_close(ages, points, feeds=self._most_feeds):
            await self.drop(name)
