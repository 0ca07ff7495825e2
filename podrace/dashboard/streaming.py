"""Sends a page what changed in a tournament, as server-sent events, until the page is closed.

An event names the present version of each part; the page reads the parts that it shows again when their version has
changed. An event therefore stands alone: a page that has missed some needs only the next one.
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
from podrace.errors import PodraceError
from podrace.tasks import wait_at_most

SHORTEST_SECONDS = 0.5
"""Time between two events of a stream, at least."""
LONGEST_SECONDS = 5.0
"""Time between two events of a stream, at most, so that both sides notice a connection that broke."""
MOST_STREAMS = 64
"""Streams at the same time, at most."""
PROBE_SECONDS = 2.0


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

    def __init__(self, client: Client, feeds: FeedCache) -> None:
        """Has no stream yet."""
        self._client, self._feeds = client, feeds
        self._run = uuid.uuid4().hex[:8]
        self._open = 0
        self.stopping = asyncio.Event()
        """When it is set, all streams end."""

    def routes(self) -> list[web.RouteDef]:
        """Returns the routes of the handlers."""
        return [
            web.get("/api/stream", self.mesh),
            web.get("/api/tournaments/{tournament}/stream", self.tournament),
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
