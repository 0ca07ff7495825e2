"""Offers what the source of policies has to the engine, again and again."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from podrace.errors import NotFound, PodraceError
from podrace.serving import metrics
from podrace.serving.engine import PolicyEngine
from podrace.serving.sources import PolicySource

_log = structlog.get_logger(__name__)


class SourceFollower:
    """Keeps an engine at the newest version of its source.

    follower = SourceFollower(engine, source)
    while True:
        await follower.poll()
    """

    def __init__(self, engine: PolicyEngine, source: PolicySource) -> None:
        self._engine, self._source = engine, source
        self._last_error = ""

    async def poll(self) -> None:
        """Offers the newest version if the engine wants it. An error is logged once, and the present version stays."""
        try:
            version = await self._source.newest()
            if self._engine.wants(version):
                before = self._engine.record.current
                await self._engine.offer(await self._source.read(version))
                metrics.SWAPS.labels("refused" if self._engine.record.current == before else "served").inc()
            self._last_error = ""
        except PodraceError as error:
            metrics.SOURCE_ERRORS.inc()
            if error.message != self._last_error:
                _log.warning("no other policy could be read", source=self._source.description, error=error.message)
            self._last_error = error.message
        self._engine.tidy()

    async def run(self, period_seconds: float, polled: Callable[[], Awaitable[None]]) -> None:
        """Polls until it is cancelled, and calls `polled` after each poll."""
        while True:
            await self.poll()
            await polled()
            await asyncio.sleep(period_seconds)


async def model_of(engine: PolicyEngine, source: PolicySource, version: str) -> bytes:
    """Returns the ONNX file of a version that is loaded, or that the source has.

    Raises:
        NotFound: Neither has it.
        PodraceError: As `PolicySource.read`.
    """
    try:
        return engine.policy(version).model
    except NotFound:
        return await source.read(version)
