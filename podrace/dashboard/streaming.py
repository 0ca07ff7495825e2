"""Sends a page what changed in a tournament, and the lines of a log, as server-sent events, until the page is closed.

An event of a tournament names the present version of each part; the page reads the parts that it shows again when their
version has changed. Such an event therefore stands alone: a page that has missed some needs only the next one. A stream
of a log begins with its last lines, also when the page connects again.
"""

import asyncio
import contextlib
import json
import uuid
from collections import Counter
from typing import Any

from aiohttp import web

from podrace.dashboard import parameters, views
from podrace.dashboard.entrance.reader import Reader, reader_of
from podrace.dashboard.feed import TournamentFeed
from podrace.dashboard.feed_cache import FeedCache
from podrace.dashboard.guarding import HEADERS
from podrace.dashboard.logs import MOST_LINES, LogFolder
from podrace.errors import PodraceError
from podrace.tasks import wait_at_most

SHORTEST_SECONDS = 0.5
"""Time between two events of a stream, at least."""
LONGEST_SECONDS = 5.0
"""Time between two events of a stream, at most, so that both sides notice a connection that broke."""
MOST_STREAMS = 512
"""Streams at the same time, at most."""
MOST_STREAMS_OF_READER = 64
"""Streams of one reader at the same time, at most."""
PROBE_SECONDS = 2.0
DEFAULT_LINES = 200
"""Last lines of a log with which its stream begins."""


def message(feed: TournamentFeed) -> dict[str, Any]:
    """Shape of an event of a tournament."""
    return {
        "run": feed.run,
        "versions": dict(feed.versions),
        "loaded": feed.loaded,
        "points": feed.points.count,
        "board": len(feed.board),
        "pods": len(feed.pods),
        "events": len(feed.events),
        "faults": {part: views.text(why) for part, why in feed.faults.items()},
        "tournament": views.tournament(feed.tournament),
    }


class StreamHandlers:
    """Handlers of requests that are answered by a stream."""

    def __init__(self, feeds: FeedCache, logs: LogFolder) -> None:
        """Has no stream yet."""
        self._feeds, self._logs = feeds, logs
        self._run = uuid.uuid4().hex[:8]
        self._open: Counter[Reader] = Counter()
        self.stopping = asyncio.Event()
        """When it is set, all streams end."""

    def routes(self) -> list[web.RouteDef]:
        """Returns the routes of the handlers."""
        return [
            web.get("/api/stream", self.mesh),
            web.get("/api/tournaments/{tournament}/stream", self.tournament),
            web.get("/api/tournaments/{tournament}/logs/{log}/stream", self.log),
        ]

    async def tournament(self, request: web.Request) -> web.StreamResponse:
        """Streams the changes of one tournament."""
        reader = reader_of(request)
        first = await self._feeds.get(parameters.identity(request.match_info, "tournament", required=True), reader)

        async def events(response: web.StreamResponse) -> None:
            feed = first
            while self._continues(reader):
                change = feed.changes.next_change()
                await _send(response, message(feed))
                await self._pause(SHORTEST_SECONDS)
                await self._wait(change, LONGEST_SECONDS)
                if self._continues(reader):
                    feed = await self._feeds.renewed(feed, reader)

        return await self._stream(request, events)

    async def mesh(self, request: web.Request) -> web.StreamResponse:
        """Streams whether the mesh answers, and the newest tournaments."""
        reader = reader_of(request)

        async def events(response: web.StreamResponse) -> None:
            while self._continues(reader):
                shown: dict[str, Any] = {"run": self._run, "faults": {}}
                try:
                    listed = await reader.client.list_tournaments()
                    shown |= {"states": {one.tournament_id: views.tournament(one)["state"] for one in listed[:500]}}
                except PodraceError as error:
                    shown["faults"] = {"orchestrator": views.text(error.message)}
                await _send(response, shown)
                await self._pause(PROBE_SECONDS)

        return await self._stream(request, events)

    async def log(self, request: web.Request) -> web.StreamResponse:
        """Streams the last lines of a log, and those that are added."""
        name = parameters.identity(request.match_info, "tournament", required=True)
        log = parameters.identity(request.match_info, "log", required=True)
        lines = parameters.whole(request.query, "lines", default=DEFAULT_LINES, low=0, high=MOST_LINES)
        # The mesh decides whether this caller may read the tournament.
        reader = reader_of(request)
        await self._feeds.get(name, reader)
        tail = await asyncio.to_thread(self._logs.tail, name, log, lines)

        async def events(response: web.StreamResponse) -> None:
            begins, silent = True, 0.0
            while self._continues(reader):
                part = await asyncio.to_thread(tail.read)
                if part.lines or begins or silent >= LONGEST_SECONDS:
                    await _send(response, {"begins": begins, "lines": part.lines, "left_out": part.left_out})
                    begins, silent = False, 0.0
                await self._pause(SHORTEST_SECONDS)
                silent += SHORTEST_SECONDS

        try:
            return await self._stream(request, events)
        finally:
            tail.close()

    def _continues(self, reader: Reader) -> bool:
        """Whether a stream of a reader continues, which then counts as used."""
        if self.stopping.is_set() or reader.ended:
            return False
        reader.use()
        return True

    async def _pause(self, seconds: float) -> None:
        await wait_at_most(self.stopping.wait(), seconds)

    async def _wait(self, change: asyncio.Event, seconds: float) -> None:
        """Waits for a change, for the end of the gateway, or for some time."""
        waiting = [asyncio.create_task(one.wait()) for one in (change, self.stopping)]
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    async def _stream(self, request: web.Request, events: Any) -> web.StreamResponse:
        reader = reader_of(request)
        if self._open[reader] >= MOST_STREAMS_OF_READER or self._open.total() >= MOST_STREAMS:
            raise web.HTTPServiceUnavailable(reason=f"{self._open.total()} pages are open; close some")
        response = web.StreamResponse(headers={**HEADERS, "Cache-Control": "no-store"})
        response.content_type = "text/event-stream"
        self._open[reader] += 1
        try:
            await response.prepare(request)
            # The browser connects again after this time, also when the gateway was restarted.
            await response.write(b"retry: 1000\n\n")
            # A page whose tournament may no longer be read connects again, and gets the error.
            with contextlib.suppress(ConnectionError, PodraceError):
                await events(response)
        finally:
            self._open[reader] -= 1
            if not self._open[reader]:
                del self._open[reader]
        return response


async def _send(response: web.StreamResponse, value: dict[str, Any]) -> None:
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    await response.write(f"data: {text}\n\n".encode())
