"""HTTP servers of podrace: how many connections are open, how long one may be idle, and what reaches the log."""

import asyncio
import errno
import logging
import os
import resource
import socket
import ssl
import time
import weakref
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

IDLE_SECONDS = 75.0
"""How long a connection stays open without a complete request: longer than proxies keep one (60 s is common), so that
the proxy closes it first. aiohttp's own limit is an hour, in which a client could occupy a connection by sending no
headers, or only some of them."""
MOST_CONNECTIONS = 10_000
"""Most connections of a server at a time; further ones are closed at once."""
MOST_ACCEPTED_AT_ONCE = 128
"""Connections that are closed in one cycle of the event loop because there is no room for them."""
EXHAUSTED_SECONDS = 0.9
"""Time without another attempt after a connection could not be accepted for want of a file descriptor. The event loop
pauses for a second then, but first attempts to accept the other connections that wait, and logs each failure."""


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


def most_connections(share: float) -> int:
    """Returns how many connections a server may have.

    Args:
        share: Share of the file descriptors of the process that they may take.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(MOST_CONNECTIONS, max(1, int(descriptors * share)))


async def listen(
    runner: web.AppRunner, host: str, port: int, *, ssl_context: ssl.SSLContext | None = None, share: float
) -> None:
    """Lets a runner serve an address, with a limited number of connections.

    Args:
        runner: It is set up.
        host: Name or address.
        port: Port; 0: any free one.
        ssl_context: For TLS; None: without.
        share: Share of the file descriptors of the process that the connections may take.

    Raises:
        OSError: The address cannot be bound.
    """
    bound = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port, start_serving=False)
    open_connections: weakref.WeakSet[socket.socket] = weakref.WeakSet()
    most = most_connections(share)
    # A server that does not serve only resolves the name and binds its addresses.
    listeners = [_Listener(os.dup(one.fileno()), open_connections, most) for one in bound.sockets]
    bound.close()
    for listener in listeners:
        await web.SockSite(runner, listener, ssl_context=ssl_context).start()


class _Connection(socket.socket):
    """A connection that is counted until it is closed, its handshake of TLS included."""

    def __init__(self, descriptor: int, counted: "weakref.WeakSet[socket.socket]") -> None:
        super().__init__(fileno=descriptor)
        self._counted = counted
        counted.add(self)

    def close(self) -> None:
        """Closes the connection."""
        super().close()
        self._counted.discard(self)


class _Listener(socket.socket):
    """A listening socket that closes connections for which there is no room."""

    def __init__(self, descriptor: int, counted: "weakref.WeakSet[socket.socket]", most: int) -> None:
        super().__init__(fileno=descriptor)
        self.setblocking(False)
        self._counted, self._most, self._exhausted_until = counted, most, 0.0

    def accept(self) -> tuple[socket.socket, Any]:
        """Returns the next connection for which there is room.

        Raises:
            BlockingIOError: There is none.
            OSError: There is no free file descriptor.
        """
        if time.monotonic() < self._exhausted_until:
            raise BlockingIOError
        for _ in range(MOST_ACCEPTED_AT_ONCE):
            try:
                connection, address = super().accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._exhausted_until = time.monotonic() + EXHAUSTED_SECONDS
                raise
            if len(self._counted) < self._most:
                return _Connection(connection.detach(), self._counted), address
            connection.close()
        raise BlockingIOError
