"""HTTP servers of podrace: how long a connection may be idle, and what reaches the log."""

import logging
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

IDLE_SECONDS = 75.0
"""How long a connection stays open without a complete request: longer than proxies keep one (60 s is common), so that
the proxy closes it first. aiohttp's own limit is an hour, in which a client could occupy a connection by sending no
headers, or only some of them."""


class _Malformed(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is about anything but a request that is not HTTP."""
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


def app_runner(application: web.Application, *, idle_seconds: float = IDLE_SECONDS, **options: Any) -> web.AppRunner:
    """Returns a runner that closes idle connections and leaves requests that are not HTTP out of the log.

    aiohttp writes a traceback for each malformed request, and anyone can send them.

    Args:
        application: What answers requests.
        idle_seconds: How long a connection may stay open without a complete request.
        options: Other options of `aiohttp.web.AppRunner`.
    """
    logger = logging.getLogger("podrace.http")
    if not logger.filters:
        logger.addFilter(_Malformed())
    return web.AppRunner(application, access_log=None, logger=logger, keepalive_timeout=idle_seconds, **options)
