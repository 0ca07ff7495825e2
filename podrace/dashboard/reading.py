"""Answers requests that read: each handler translates one request to calls of feeds and pure functions."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from podrace.client.delivery import CheckpointFetcher
from podrace.dashboard import parameters, views
from podrace.dashboard.answers import answer
from podrace.dashboard.curves import WIDEST, ChartRequest, Curves, chart, chart_json
from podrace.dashboard.entrance.reader import reader_of
from podrace.dashboard.feed import TournamentFeed
from podrace.dashboard.feed_cache import FeedCache
from podrace.dashboard.hyperparameters import parallel, schedules
from podrace.dashboard.lineage import walk
from podrace.dashboard.logs import LogFolder
from podrace.dashboard.points import ChartAxis
from podrace.errors import NotFound

LARGEST_PAGE = 500
MOST_PARTS = 200
"""Parts of a checkpoint in an answer, at most."""


@dataclass
class ReadHandlers:
    """Handlers of requests that read."""

    feeds: FeedCache
    log_folder: LogFolder

    def routes(self) -> list[web.RouteDef]:
        """Returns the routes of the handlers."""
        inner = "/api/tournaments/{tournament}"
        return [
            web.get("/api/tournaments", self.tournaments),
            web.get(inner, self.tournament),
            web.get(f"{inner}/board", self.board),
            web.get(f"{inner}/curves", self.curves),
            web.get(f"{inner}/lineage", self.lineage),
            web.get(f"{inner}/agents", self.agents),
            web.get(f"{inner}/hyperparameters", self.hyperparameters),
            web.get(f"{inner}/pods", self.pods),
            web.get(f"{inner}/events", self.events),
            web.get(f"{inner}/checkpoints/{{digest}}", self.checkpoint),
            web.get(f"{inner}/logs", self.logs),
        ]

    async def feed(self, request: web.Request) -> TournamentFeed:
        """Returns the feed of the tournament in the path."""
        name = parameters.identity(request.match_info, "tournament", required=True)
        return await self.feeds.get(name, reader_of(request))

    async def tournaments(self, request: web.Request) -> web.Response:
        """Lists the tournaments, newest first."""
        words = parameters.words(request.query, "words").lower()
        found = [views.tournament(one) for one in await reader_of(request).client.list_tournaments()]
        chosen = [one for one in found if words in f"{one['tournament_id']} {one['environment']}".lower()]
        return answer(views.page(chosen, *_part(request)))

    async def tournament(self, request: web.Request) -> web.Response:
        """Returns a tournament with its specification."""
        return answer(views.details((await self.feed(request)).tournament))

    async def board(self, request: web.Request) -> web.Response:
        """Returns a part of the board."""
        feed = await self.feed(request)
        await feed.board_known()
        offset, limit = _part(request)
        shown = [views.candidate(one) for one in feed.board[offset : offset + limit]]
        return answer({"entries": shown, "total": len(feed.board), "offset": offset})

    async def curves(self, request: web.Request) -> web.Response:
        """Returns a chart of learning curves, computed in another thread."""
        feed, query = await self.feed(request), request.query
        asked = ChartRequest(
            of=parameters.choice(query, "of", Curves.AGENTS),
            axis=parameters.choice(query, "axis", ChartAxis.SECONDS),
            width=parameters.whole(query, "width", default=400, low=1, high=WIDEST),
            low=parameters.real(query, "low"),
            high=parameters.real(query, "high"),
        )
        version, loaded = feed.versions["points"], feed.loaded

        def compute() -> str:
            return chart_json(chart(feed.points, asked) | {"loaded": loaded, "version": version})

        return web.Response(text=await asyncio.to_thread(compute), content_type="application/json")

    async def lineage(self, request: web.Request) -> web.Response:
        """Returns an agent with its ancestors and children; the champion's agent if none is named."""
        feed = await self.feed(request)
        await feed.board_known()
        named = parameters.identity(request.query, "agent")
        agent = named or feed.tournament.best_agent_id or next(iter(feed.agents), "")
        if agent not in feed.agents:
            raise NotFound(f"agent {agent}: not known in {feed.tournament.tournament_id}" if agent else "no agents yet")
        return answer(walk(feed.agents, feed.points, agent))

    async def agents(self, request: web.Request) -> web.Response:
        """Returns a part of all agents."""
        feed = await self.feed(request)
        await feed.board_known()
        offset, limit = _part(request)
        shown = [views.agent(one) for one in list(feed.agents.values())[offset : offset + limit]]
        return answer({"entries": shown, "total": len(feed.agents), "offset": offset})

    async def hyperparameters(self, request: web.Request) -> web.Response:
        """Returns parallel coordinates and schedules of the agents of one algorithm."""
        feed = await self.feed(request)
        await feed.board_known()
        names = sorted({one.algorithm for one in feed.agents.values()} or feed.tournament.spec.algorithms)
        chosen = parameters.words(request.query, "algorithm") or next(iter(names), "")
        if chosen not in names:
            raise NotFound(f"algorithm {chosen}: no agent of {feed.tournament.tournament_id} has it")

        agents = dict(feed.agents)

        def compute() -> dict[str, Any]:
            return {
                "algorithms": names,
                **parallel(feed.tournament.spec, agents, feed.points, chosen),
                "schedules": schedules(agents, feed.points, feed.tournament.best_agent_id, chosen),
            }

        return answer(await asyncio.to_thread(compute))

    async def pods(self, request: web.Request) -> web.Response:
        """Returns the pods, and the newest events that explain the size of the pool."""
        feed = await self.feed(request)
        offset, limit = _part(request)
        reasons = views.matching(feed.events, kinds=views.POOL_KINDS, limit=50)
        return answer(
            views.page([views.pod(one) for one in feed.pods], offset, limit)
            | {"reasons": [views.event(one) for one in reasons], "gpus": any(one.progress.gpus for one in feed.pods)}
        )

    async def events(self, request: web.Request) -> web.Response:
        """Returns the newest events that match the filters."""
        feed, query = await self.feed(request), request.query
        kind = parameters.words(query, "kind")
        found = views.matching(
            feed.events,
            kinds=frozenset(filter(None, kind.split(","))),
            agent=parameters.identity(query, "agent"),
            pod_id=parameters.identity(query, "pod"),
            words=parameters.words(query, "words"),
            before=parameters.whole(query, "before", default=0, low=0, high=2**63),
            limit=parameters.whole(query, "limit", default=200, low=1, high=LARGEST_PAGE),
        )
        kinds = sorted({one.kind for one in feed.events})
        return answer({"entries": [views.event(one) for one in found], "kinds": kinds, "known": len(feed.events)})

    async def checkpoint(self, request: web.Request) -> web.Response:
        """Returns the parts of a checkpoint with their sizes."""
        feed = await self.feed(request)
        digest = parameters.identity(request.match_info, "digest", required=True)
        address, client = feed.tournament.leaderboard_address, reader_of(request).client
        async with CheckpointFetcher(address, feed.tournament.tournament_id, client.token_for(address)) as fetcher:
            parts = await fetcher.list_parts(digest, every_part=True)
        shown = [
            {"name": views.text(one.name), "digest": one.digest, "size_bytes": one.size_bytes}
            for one in parts[:MOST_PARTS]
        ]
        total = sum(one.size_bytes for one in parts)
        return answer({"manifest_digest": digest, "parts": shown, "total": len(parts), "size_bytes": total})

    async def logs(self, request: web.Request) -> web.Response:
        """Returns the names of the logs of the tournament's pods and of the services."""
        feed = await self.feed(request)
        names = await asyncio.to_thread(self.log_folder.names, feed.tournament.tournament_id)
        return answer({"logs": [views.text(name) for name in names]})


def _part(request: web.Request) -> tuple[int, int]:
    """Returns offset and limit of a request for a part of a list."""
    read: Callable[..., int] = parameters.whole
    offset = read(request.query, "offset", default=0, low=0, high=10**9)
    return offset, read(request.query, "limit", default=100, low=1, high=LARGEST_PAGE)
