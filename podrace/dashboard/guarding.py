"""Answers a request only if it may be answered, translates errors, and adds the headers that protect the pages."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
from aiohttp import web

from podrace.dashboard import access
from podrace.dashboard.access import CHANGE_HEADER
from podrace.dashboard.answers import READING, STATUS, problem
from podrace.dashboard.entrance.reader import READER, Entrance, Reader
from podrace.dashboard.live import LIVE_PATH
from podrace.errors import InvalidArgument, PodraceError, Unauthenticated

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self';"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
        " require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
log = structlog.get_logger()


def guard(entrance: Entrance, names: frozenset[str], *, behind_proxy: bool = False) -> Any:
    """Returns the middleware that all requests pass.

    Args:
        entrance: Decides who may use the dashboard.
        names: Host names of the dashboard; empty: any.
        behind_proxy: Whether a proxy may provide TLS.
    """

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == LIVE_PATH and request.method in READING:
            response: web.StreamResponse = web.Response(status=204)
        elif not access.accepts_host(request.host, names):
            response = problem(421, f"{request.host}: not a name of this dashboard; add it with --name", "")
        else:
            reader, refusal = entrance.admit(request)
            refusal = refusal or _refused_change(request, reader, behind_proxy)
            if reader:
                request[READER] = reader
            response = refusal or await _answer(request, handler, entrance, reader)
        if not response.prepared:
            response.headers.update(HEADERS)
            response.headers.setdefault("Cache-Control", "no-store")
        return response

    return guarded


def _refused_change(request: web.Request, reader: Reader | None, behind_proxy: bool) -> web.Response | None:
    """Returns the answer to a request that may not change anything; None for any other."""
    if request.method in READING:
        return None
    why = access.refused_change(
        origin=request.headers.get("Origin"),
        own_origins=access.own_origins(request.scheme, request.host, behind_proxy=behind_proxy),
        fetch_site=request.headers.get("Sec-Fetch-Site"),
        content_type=request.headers.get("Content-Type", ""),
    )
    if not why and reader and not access.is_change(request.headers.get(CHANGE_HEADER, ""), reader.change):
        why = "the request does not come from a page of this dashboard; load it again"
    return problem(403, why, "") if why else None


async def _answer(
    request: web.Request, handler: Handler, entrance: Entrance, reader: Reader | None
) -> web.StreamResponse:
    """Calls the handler, and turns errors into JSON with one human-readable line."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return problem(error.status, error.reason, "")
    except PodraceError as error:
        if isinstance(error, Unauthenticated) and reader and (ended := await entrance.unauthenticated(reader)):
            return ended
        details = [str(one) for one in error.violations] if isinstance(error, InvalidArgument) else []
        return problem(STATUS.get(error.code, 500), error.message, error.code, details)
    except Exception:
        log.exception("request failed", path=request.path)
        return problem(500, "the dashboard failed; its log has the traceback", "INTERNAL")
