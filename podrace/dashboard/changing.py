"""Answers requests that change something: each handler makes one call, with the rights of its reader."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from podrace.dashboard import parameters, views
from podrace.dashboard.answers import answer
from podrace.dashboard.entrance.reader import reader_of
from podrace.dashboard.feed_cache import FeedCache
from podrace.errors import InvalidArgument
from podrace.specification import resolve
from podrace.specification.files import to_toml
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

SOURCE = "specification"
LONGEST_SPECIFICATION = 256 * 1024
LONGEST_REASON = 1000
MOST_PODS = 10_000
DEFAULT_REASON = "stopped in the dashboard"
PAUSE_REASON = "in the dashboard"


@dataclass
class ChangeHandlers:
    """Handlers of requests that change something."""

    feeds: FeedCache

    def routes(self) -> list[web.RouteDef]:
        """Returns the routes of the handlers."""
        inner = "/api/tournaments/{tournament}"
        return [
            web.post("/api/check", self.check),
            web.post("/api/tournaments", self.create),
            web.post(f"{inner}/stop", self.stop),
            web.post(f"{inner}/pause", self.pause),
            web.post(f"{inner}/resume", self.resume),
            web.post(f"{inner}/scale", self.scale),
            web.post(f"{inner}/delete", self.delete),
        ]

    async def check(self, request: web.Request) -> web.Response:
        """Checks a specification where its tournament would run; creates nothing."""
        spec = specification_of(parameters.body_of(await request.read()))
        resolved, unchecked = await reader_of(request).client.check_specification(spec)
        return answer({"specification": to_toml(resolved), "unchecked": [views.text(line) for line in unchecked]})

    async def create(self, request: web.Request) -> web.Response:
        """Creates a tournament; a repeat with the same `request_id` returns the first one."""
        body = parameters.body_of(await request.read())
        request_id = parameters.text_in(body, "request_id", longest=100)
        created = await reader_of(request).client.create_tournament(specification_of(body), request_id=request_id)
        return answer(views.tournament(created))

    async def stop(self, request: web.Request) -> web.Response:
        """Stops a tournament."""
        body = parameters.body_of(await request.read())
        reason = parameters.text_in(body, "reason", longest=LONGEST_REASON) or DEFAULT_REASON
        return answer(views.tournament(await reader_of(request).client.cancel_tournament(_name(request), reason)))

    async def pause(self, request: web.Request) -> web.Response:
        """Pauses a tournament."""
        body = parameters.body_of(await request.read())
        reason = parameters.text_in(body, "reason", longest=LONGEST_REASON) or PAUSE_REASON
        return answer(views.tournament(await reader_of(request).client.pause_tournament(_name(request), reason)))

    async def resume(self, request: web.Request) -> web.Response:
        """Resumes a paused or stopped tournament."""
        return answer(views.tournament(await reader_of(request).client.resume_tournament(_name(request))))

    async def scale(self, request: web.Request) -> web.Response:
        """Changes the limits of the pool."""
        limits = pool_limits(parameters.body_of(await request.read()))
        return answer(views.tournament(await reader_of(request).client.update_tournament(_name(request), limits)))

    async def delete(self, request: web.Request) -> web.Response:
        """Deletes a tournament that has ended; the request repeats its id as `confirm`."""
        name = _name(request)
        if parameters.text_in(parameters.body_of(await request.read()), "confirm", longest=200) != name:
            raise InvalidArgument(f"confirm: expected {name}, the id of the tournament to delete")
        await reader_of(request).client.delete_tournament(name)
        await self.feeds.drop(name)
        return answer({"deleted": name})


def _name(request: web.Request) -> str:
    return parameters.identity(request.match_info, "tournament", required=True)


def specification_of(body: Mapping[str, Any]) -> TournamentSpec:
    """Reads the TOML text of a request as a specification; the orchestrator fills in the defaults.

    Raises:
        InvalidArgument: It is no TOML, or a key or a value is wrong.
    """
    given = parameters.text_in(body, SOURCE, longest=LONGEST_SPECIFICATION)
    try:
        values = tomllib.loads(given)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidArgument(f"{SOURCE}: not valid TOML: {error}") from None
    return resolve.parse(values, source=SOURCE)


def pool_limits(body: Mapping[str, Any]) -> TournamentSpec:
    """Reads new limits of a pool.

    Raises:
        InvalidArgument: There is none, one is no number of pods, or the smallest is larger than the largest.
    """
    spec = TournamentSpec()
    for name, low in (("minimum_pods", 0), ("maximum_pods", 1)):
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= MOST_PODS:
            raise InvalidArgument(f"{name}: expected a whole number from {low} to {MOST_PODS}")
        setattr(spec.pool, name, value)
    if not spec.HasField("pool"):
        raise InvalidArgument("minimum_pods, maximum_pods: set at least one")
    pool = spec.pool
    if pool.HasField("minimum_pods") and pool.HasField("maximum_pods") and pool.minimum_pods > pool.maximum_pods:
        raise InvalidArgument(f"minimum_pods = {pool.minimum_pods}: more than maximum_pods = {pool.maximum_pods}")
    return spec
