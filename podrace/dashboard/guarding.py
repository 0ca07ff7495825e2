"""Answers a request only if it may be answered, translates errors, and adds the headers that protect the pages."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
from aiohttp import web

from podrace.dashboard import access
from podrace.dashboard.access import CHANGE_HEADER, Keys
from podrace.dashboard.live import LIVE_PATH
from podrace.errors import InvalidArgument, PodraceError
from podrace.printable import printable

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
STATUS: Mapping[str, int] = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 403,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "FAILED_PRECONDITION": 409,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
    "CANCELLED": 503,
    "DEADLINE_EXCEEDED": 504,
    "UNIMPLEMENTED": 501,
}
"""HTTP status of each status code of gRPC; 500 for others. 401 is left for the token of the dashboard."""
READING = ("GET", "HEAD")
NO_TOKEN = (
    "This page needs the token of the dashboard. Open the address that `podrace dashboard` printed: it ends with"
    " ?token="
)
log = structlog.get_logger()


def guard(keys: Keys, names: frozenset[str]) -> Any:
    """Returns the middleware that all requests pass.

    Args:
        keys: The token and what is derived from it.
        names: Host names of the dashboard; empty: any.
    """

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = _refusal(request, keys, names) or await _answer(request, handler)
        if not response.prepared:
            response.headers.update(HEADERS)
            response.headers.setdefault("Cache-Control", "no-store")
        return response

    return guarded


async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Calls the handler, and turns errors into JSON with one line for a person."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return problem(error.status, error.reason, "")
    except PodraceError as error:
        details = [str(one) for one in error.violations] if isinstance(error, InvalidArgument) else []
        return problem(STATUS.get(error.code, 500), error.message, error.code, details)
    except Exception:
        log.exception("request failed", path=request.path)
        return problem(500, "the dashboard failed; its log has the traceback", "INTERNAL")


def problem(status: int, message: str, code: str, details: list[str] | None = None) -> web.Response:
    """Returns an error as JSON."""
    lines = [printable(line)[:2000] for line in (details or [])[:100]]
    return web.json_response({"error": printable(message)[:4000], "code": code, "details": lines}, status=status)


def _refusal(request: web.Request, keys: Keys, names: frozenset[str]) -> web.Response | None:
    """Returns the answer to a request that may not be answered; None for any other."""
    if request.path == LIVE_PATH and request.method in READING:
        return web.Response(status=204)
    if not access.accepts_host(request.host, names):
        return problem(421, f"{request.host}: not a name of this dashboard; add it with --name", "")
    if request.method in READING and "token" in request.query and request.path == "/":
        return _enter(request, keys)
    if not keys.is_cookie(request.cookies.get(_cookie_name(request), "")):
        return _without_token(request)
    if request.method not in READING:
        why = access.refused_change(
            origin=request.headers.get("Origin"),
            own_origin=f"{request.scheme}://{request.host}",
            fetch_site=request.headers.get("Sec-Fetch-Site"),
            content_type=request.headers.get("Content-Type", ""),
        )
        if why or not keys.is_change(request.headers.get(CHANGE_HEADER, "")):
            return problem(403, why or "the request does not come from a page of this dashboard; load it again", "")
    return None


def _enter(request: web.Request, keys: Keys) -> web.Response:
    """Exchanges the token in the URL for a cookie, and removes it from the URL."""
    if not keys.is_token(request.query["token"]):
        return _without_token(request)
    response = web.Response(status=303, headers={"Location": "/"})
    response.set_cookie(
        _cookie_name(request),
        keys.cookie,
        httponly=True,
        samesite="Strict",
        secure=request.scheme == "https",
        path="/",
    )
    return response


def _without_token(request: web.Request) -> web.Response:
    if request.path.startswith("/api/"):
        return problem(401, NO_TOKEN, "")
    return web.Response(status=401, text=f"{NO_TOKEN}\n")


def _cookie_name(request: web.Request) -> str:
    transport = request.transport
    address = transport.get_extra_info("sockname") if transport else None
    return access.cookie_name(address[1] if isinstance(address, tuple) else 0)
