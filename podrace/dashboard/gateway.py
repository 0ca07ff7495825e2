"""Serves the dashboard: its pages, and JSON for them from calls of the public API."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from importlib.resources import files
from pathlib import Path

import structlog
from aiohttp import web

from podrace.client import Client
from podrace.dashboard.access import Keys, names_of
from podrace.dashboard.changing import ChangeHandlers
from podrace.dashboard.feed_cache import FeedCache
from podrace.dashboard.guarding import guard
from podrace.dashboard.logs import LogFolder
from podrace.dashboard.on_demand.handlers import on_demand
from podrace.dashboard.parameters import LARGEST_BODY_BYTES
from podrace.dashboard.reading import ReadHandlers, answer
from podrace.dashboard.settings import DashboardSettings, RenewedTls
from podrace.dashboard.streaming import StreamHandlers
from podrace.errors import FailedPrecondition
from podrace.http_server import app_runner
from podrace.tasks import cancel_all

ASSETS = Path(str(files("podrace.dashboard") / "assets"))
CONTENT_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
CLOSING_SECONDS = 2.0
"""Time that open requests get when the gateway stops."""
RENEWAL_SECONDS = 30.0
"""Time between two checks whether the certificate was renewed."""
log = structlog.get_logger()


@contextlib.asynccontextmanager
async def serving(settings: DashboardSettings, client: Client) -> AsyncIterator[str]:
    """Serves a dashboard during the block, and yields its URL with the token.

    Args:
        settings: Where it listens and who may open it.
        client: Client of the mesh. All calls have the rights of its token or certificate.

    Raises:
        PodraceError: The settings cannot be used, or the address is taken.
    """
    settings.check()
    keys, tls = Keys(settings.token()), settings.tls()
    async with FeedCache(client) as feeds, on_demand(client, feeds, trusted=settings.logs is not None) as jobs:
        logs = LogFolder(settings.logs)
        streaming = StreamHandlers(client, feeds, logs)
        runner = app_runner(
            application(
                settings,
                keys,
                [
                    *ReadHandlers(client, feeds, logs).routes(),
                    *streaming.routes(),
                    *ChangeHandlers(client, feeds).routes(),
                    *jobs.routes(),
                ],
            ),
            handle_signals=False,
            shutdown_timeout=CLOSING_SECONDS,
        )
        await runner.setup()
        renewing = asyncio.create_task(_keep_renewed(tls))
        try:
            site = web.TCPSite(runner, settings.host, settings.port, ssl_context=tls.context if tls else None)
            try:
                await site.start()
            except OSError as error:
                raise FailedPrecondition(
                    f"--listen {settings.listen}: {error.strerror or error}; choose another port, or 0 for a free one"
                ) from None
            port = runner.addresses[0][1]
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            yield f"{'https' if tls else 'http'}://{host}:{port}/?token={keys.token}"
        finally:
            streaming.stopping.set()
            await cancel_all(renewing)
            await runner.cleanup()


async def _keep_renewed(tls: RenewedTls | None) -> None:
    """Reads the certificate again when it was renewed. One that cannot be used is reported, and the old one kept."""
    while tls:
        await asyncio.sleep(RENEWAL_SECONDS)
        try:
            if await asyncio.to_thread(tls.renew):
                log.info("the certificate was renewed")
        except FailedPrecondition as error:
            log.warning("the certificate cannot be renewed", error=error.message)


def application(settings: DashboardSettings, keys: Keys, routes: Sequence[web.RouteDef]) -> web.Application:
    """Returns the application with the pages and further routes."""
    app = web.Application(
        middlewares=[guard(keys, names_of(settings.host, settings.names))], client_max_size=LARGEST_BODY_BYTES
    )

    async def session(request: web.Request) -> web.Response:
        """Returns the value that changes need; only a page of the same origin can read it."""
        return answer({"change": keys.change})

    app.add_routes([web.get("/", _asset), web.get("/assets/{name:[a-zA-Z0-9./_-]+}", _asset)])
    app.add_routes([web.get("/api/session", session)])
    app.add_routes(routes)
    return app


async def _asset(request: web.Request) -> web.StreamResponse:
    """Returns a file of the pages. Names that leave their folder do not exist."""
    name = request.match_info.get("name", "index.html")
    path = ASSETS / name
    kind = CONTENT_TYPES.get(path.suffix)
    if ".." in Path(name).parts or kind is None or not path.is_file():
        raise web.HTTPNotFound(reason=f"{name}: no such file")
    content = await asyncio.to_thread(path.read_bytes)
    response = web.Response(body=content, content_type=kind, charset="utf-8")
    response.headers["Cache-Control"] = "no-cache"
    return response
