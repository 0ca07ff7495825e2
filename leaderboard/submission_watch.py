"""Wakes the callers that wait for new submissions of a tournament."""

import asyncio
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from podrace.errors import Unavailable


class SubmissionWatch:
    """Which submissions have arrived since this service was started.

    with watch.watching(tournament_id):
        async for every page of submissions after `sequence`: send it
        await watch.wait_after(tournament_id, sequence)
    """

    def __init__(self) -> None:
        self._condition = asyncio.Condition()
        self._newest: dict[str, float] = {}
        self._watchers: Counter[str] = Counter()
        self._closing = False

    @contextmanager
    def watching(self, tournament_id: str) -> Iterator[None]:
        """Remembers during the block that a tournament was deleted, so that the waits in it end."""
        self._watchers[tournament_id] += 1
        try:
            yield
        finally:
            self._watchers[tournament_id] -= 1
            if not self._watchers[tournament_id]:
                del self._watchers[tournament_id]
                if self._newest.get(tournament_id) == math.inf:
                    del self._newest[tournament_id]

    async def notify(self, tournament_id: str, sequence: int) -> None:
        """Reports that a submission with this sequence number was recorded."""
        async with self._condition:
            self._newest[tournament_id] = max(sequence, self._newest.get(tournament_id, 0))
            self._condition.notify_all()

    async def end(self, tournament_id: str) -> None:
        """Ends all waits for a tournament that was deleted, also later ones in blocks of `watching` that have begun."""
        async with self._condition:
            if tournament_id in self._watchers:
                self._newest[tournament_id] = math.inf
                self._condition.notify_all()
            else:
                self._newest.pop(tournament_id, None)

    async def wait_after(self, tournament_id: str, sequence: int) -> None:
        """Waits until a later submission has arrived since this service was started; in a block of `watching`.

        Also returns if the tournament was deleted.

        Raises:
            Unavailable: The service is shutting down.
        """
        async with self._condition:
            await self._condition.wait_for(lambda: self._closing or self._newest.get(tournament_id, 0) > sequence)
        if self._closing:
            raise Unavailable("the leaderboard is shutting down; watch again with the last resume_token")

    async def close(self) -> None:
        """Ends all waits, present and future, with Unavailable."""
        async with self._condition:
            self._closing = True
            self._condition.notify_all()
