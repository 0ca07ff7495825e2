"""Reports when a process has no free file descriptors, which would otherwise show only as connections that hang."""

import asyncio
import errno
import os

import structlog

PERIOD_SECONDS = 5.0

_log = structlog.get_logger(__name__)


async def report_exhaustion(period_seconds: float = PERIOD_SECONDS) -> None:
    """Checks forever whether another file can be opened; logs when that begins to fail and when it works again.

    gRPC accepts no connection without a free descriptor. Those that arrive meanwhile wait and are accepted later.
    """
    exhausted = False
    while True:
        before, exhausted = exhausted, is_exhausted()
        if exhausted and not before:
            _log.warning(
                "out of file descriptors: new connections wait; allow the process more (ulimit -n), or lower"
                " server.maximum_connections"
            )
        if before and not exhausted:
            _log.info("file descriptors are free again")
        await asyncio.sleep(period_seconds)


def is_exhausted() -> bool:
    """Whether the process, or the machine, has no free file descriptor."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False
