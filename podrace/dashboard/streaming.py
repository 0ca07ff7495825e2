"""Sends a page what changed in a tournament, and the lines of a log, as server-sent events, until the page is closed.

An event of a tournament names the present version of each part; the page reads the parts that it shows again when their
version has changed. Such an event therefore stands alone: a page that has missed some needs only the next one. A stream
of a log begins with its last lines, also when the page connects again.
"""

import asyncio
import contextlib
import json
import uuid
from typing import Any

from aiohttp import web

from podrace.client import Client
from podrace.dashboard import parameters, views
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
MOST_STREAMS = 64
"""Streams at the same time, at most."""
PROBE_SECONDS = 2.0
DEFAULT_LINES = 200
"""Last lines of a log with which its stream begins."""


def message(feed: TournamentFeed, run: str) -> dict[str, Any]:
    """Shape of an event of a tournament.

    Args:
        feed: The feed of the tournament.
        run: Differs between two runs of the gateway, whose versions cannot be compared.
    """
    return {
        "run": run,
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

    def __init__(self, client: Client, feeds: FeedCache, logs: LogFolder) -> None:
        """Has no stream yet."""
        self._client, self._feeds, self._logs = client, feeds, logs
        self._run = uuid.uuid4().hex[:8]
        self._open = 0
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
        name = parameters.identity(request.match_info, "tournament", required=True)
        feed = await self._feeds.get(name)

        async def events(response: web.StreamResponse) -> None:
            while not self.stopping.is_set():
                change = feed.changes.next_change()
                await _send(response, message(feed, self._run))
                self._feeds.keep(name)
                await self._pause(SHORTEST_SECONDS)
                await self._wait(change, LONGEST_SECONDS)

        return await self._stream(request, events)

    async def mesh(self, request: web.Request) -> web.StreamResponse:
        """Streams whether the mesh answers, and the newest tournaments."""

        async def events(response: web.StreamResponse) -> None:
            while not self.stopping.is_set():
                shown: dict[str, Any] = {"run": self._run, "faults": {}}
                try:
                    listed = await self._client.list_tournaments()
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
        await self._feeds.get(name)
        tail = await asyncio.to_thread(self._logs.tail, name, log, lines)

        async def events(response: web.StreamResponse) -> None:
            begins, silent = True, 0.0
            while not self.stopping.is_set():
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
        if self._open >= MOST_STREAMS:
            raise web.HTTPServiceUnavailable(reason=f"{MOST_STREAMS} pages are open; close some")
        response = web.StreamResponse(headers={**HEADERS, "Cache-Control": "no-store"})
        response.content_type = "text/event-stream"
        self._open += 1
        try:
            await response.prepare(request)
            # The browser connects again after this time, also when the gateway was restarted.
            await response.write(b"retry: 1000\n\n")
            with contextlib.suppress(ConnectionError):
                await events(response)
        finally:
            self._open -= 1
        return response


async def _send(response: web.StreamResponse, value: dict[str, Any]) -> None:
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    await response.write(f"data: {text}\n\n".encode())
