"""Serves the dashboard: its pages, and JSON for them from calls of the public API."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from podrace.dashboard.access import Keys, names_of
from podrace.dashboard.answers import answer
from podrace.dashboard.changing import ChangeHandlers
from podrace.dashboard.entrance.callers import caller
from podrace.dashboard.entrance.reader import READER, Entrance, Reader
from podrace.dashboard.entrance.sign_in import SESSION_PATH, SignInEntrance
from podrace.dashboard.entrance.url_token import UrlTokenEntrance
from podrace.dashboard.feed_cache import MOST_FEEDS, MOST_FEEDS_OF_PERSONS, FeedCache
from podrace.dashboard.guarding import guard
from podrace.dashboard.logs import LogFolder
from podrace.dashboard.on_demand.handlers import on_demand
from podrace.dashboard.parameters import LARGEST_BODY_BYTES
from podrace.dashboard.reading import ReadHandlers
from podrace.dashboard.settings import DashboardSettings, RenewedTls
from podrace.dashboard.streaming import StreamHandlers
from podrace.errors import FailedPrecondition, PodraceError
from podrace.http_server import app_runner, listen
from podrace.tasks import cancel_all

ASSETS = Path(str(files("podrace.dashboard") / "assets"))
CONTENT_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
CLOSING_SECONDS = 2.0
"""Time that open requests get when the gateway stops."""
RENEWAL_SECONDS = 30.0
"""Time between two checks whether the certificate was renewed."""
SHARE_OF_DESCRIPTORS = 0.5
"""Share of the file descriptors of the process that connections of browsers may take."""
log = structlog.get_logger()


@contextlib.asynccontextmanager
async def serving(settings: DashboardSettings, address: str) -> AsyncIterator[str]:
    """Serves a dashboard during the block, and yields its URL, with the token if it has one.

    Args:
        settings: Where it listens and who may open it.
        address: Address of the orchestrator. Unless persons sign in, all calls have the rights of the token or the
            certificate of this process.

    Raises:
        PodraceError: The settings cannot be used, or the address is taken.
    """
    settings.check()
    tls = settings.tls()
    async with (
        FeedCache(most_feeds=MOST_FEEDS_OF_PERSONS if settings.sign_in else MOST_FEEDS) as feeds,
        on_demand(feeds, trusted=settings.logs is not None) as jobs,
        _entrance(settings, address, feeds) as (entrance, suffix),
    ):
        logs = LogFolder(settings.logs)
        streaming = StreamHandlers(feeds, logs)
        runner = app_runner(
            application(
                settings,
                entrance,
                [
                    *ReadHandlers(feeds, logs).routes(),
                    *streaming.routes(),
                    *ChangeHandlers(feeds).routes(),
                    *jobs.routes(),
                ],
            ),
            handle_signals=False,
            shutdown_timeout=CLOSING_SECONDS,
        )
        await runner.setup()
        renewing = asyncio.create_task(_keep_renewed(tls))
        try:
            context = tls.context if tls else None
            try:
                await listen(runner, settings.host, settings.port, ssl_context=context, share=SHARE_OF_DESCRIPTORS)
            except OSError as error:
                raise FailedPrecondition(
                    f"--listen {settings.listen}: {error.strerror or error}; choose another port, or 0 for a free one"
                ) from None
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            yield f"{'https' if tls else 'http'}://{host}:{runner.addresses[0][1]}/{suffix}"
        finally:
            streaming.stopping.set()
            await cancel_all(renewing)
            await runner.cleanup()


@contextlib.asynccontextmanager
async def _entrance(settings: DashboardSettings, address: str, feeds: FeedCache) -> AsyncIterator[tuple[Entrance, str]]:
    """Provides the entrance during the block, and what its URL ends with."""
    if settings.sign_in:
        async with SignInEntrance.open(address, feeds.leave) as persons:
            yield persons, ""
        return
    keys = Keys(settings.token())
    reader = Reader(address, keys.change)
    try:
        yield UrlTokenEntrance(keys, reader), f"?token={keys.token}"
    finally:
        await reader.close()


async def _keep_renewed(tls: RenewedTls | None) -> None:
    """Reads the certificate again when it was renewed. One that cannot be used is reported, and the old one kept."""
    while tls:
        await asyncio.sleep(RENEWAL_SECONDS)
        try:
            if await asyncio.to_thread(tls.renew):
                log.info("the certificate was renewed")
        except FailedPrecondition as error:
            log.warning("the certificate cannot be renewed", error=error.message)


def application(settings: DashboardSettings, entrance: Entrance, routes: Sequence[web.RouteDef]) -> web.Application:
    """Returns the application with the pages and further routes."""
    names = names_of(settings.host, settings.names)
    app = web.Application(
        middlewares=[guard(entrance, names, behind_proxy=settings.insecure)], client_max_size=LARGEST_BODY_BYTES
    )

    async def session(request: web.Request) -> web.Response:
        """Returns who the reader is, and the value that changes need; only a page of the same origin can read it."""
        return answer({"sign_in": settings.sign_in, **await described(request.get(READER))})

    app.add_routes([web.get("/", _asset), web.get("/assets/{name:[a-zA-Z0-9./_-]+}", _asset)])
    app.add_routes([web.get(SESSION_PATH, session), *entrance.routes(), *routes])
    return app


async def described(reader: Reader | None) -> dict[str, Any]:
    """Returns who a reader is. A mesh that does not say it is asked again next time."""
    if reader is None:
        return {"caller": None, "change": ""}
    if not reader.caller:
        with contextlib.suppress(PodraceError):
            reader.caller = caller(await reader.client.get_caller())
    return {"caller": reader.caller or None, "change": reader.change}


async def _asset(request: web.Request) -> web.StreamResponse:
    """Returns a file of the pages. Names that leave their folder do not exist."""
    name = Path(request.match_info.get("name", "index.html"))
    path = ASSETS / name
    kind = CONTENT_TYPES.get(path.suffix)
    # Joined to a folder, an absolute name replaces it: `/assets//etc/x.js` would be /etc/x.js.
    if name.is_absolute() or ".." in name.parts or kind is None or not path.is_file():
        raise web.HTTPNotFound(reason=f"{name}: no such file")
    content = await asyncio.to_thread(path.read_bytes)
    response = web.Response(body=content, content_type=kind, charset="utf-8")
    response.headers["Cache-Control"] = "no-cache"
    return response
