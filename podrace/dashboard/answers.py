"""Builds answers to requests: JSON, and errors as one human-readable line."""

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from podrace.printable import printable

READING = ("GET", "HEAD")
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
"""HTTP status of each status code of gRPC; 500 for others. 401: the request was not admitted."""


def answer(value: Any) -> web.Response:
    """Returns JSON without spaces; numbers that JSON cannot represent are refused."""
    return web.Response(text=json.dumps(value, separators=(",", ":"), allow_nan=False), content_type="application/json")


def problem(status: int, message: str, code: str, details: list[str] | None = None) -> web.Response:
    """Returns an error as JSON."""
    lines = [printable(line)[:2000] for line in (details or [])[:100]]
    return web.json_response({"error": printable(message)[:4000], "code": code, "details": lines}, status=status)


def port_of(request: web.Request) -> int:
    """Returns the port at which a request arrived; browsers share cookies between the ports of a host."""
    transport = request.transport
    address = transport.get_extra_info("sockname") if transport else None
    return int(address[1]) if isinstance(address, tuple) else 0
