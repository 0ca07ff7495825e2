"""Offers what the source of policies has to the engine, again and again."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, NoReturn

import structlog

from podrace.client.reconnect import RETRYABLE
from podrace.errors import DataLoss, NotFound, PodraceError
from podrace.serving import metrics
from podrace.serving.engine import PolicyEngine
from podrace.serving.sources import PolicySource

LONGEST_PAUSE_POLLS = 256
"""Most polls between two attempts to read a damaged version."""
_log = structlog.get_logger(__name__)


class _DamagedVersion(NamedTuple):
    """A version that could not be loaded because it is damaged."""

    version: str
    message: str
    """Of the error."""
    pause_polls: int
    """Polls that skip it before it is read again."""
    polls_left: int
    """How many of these polls are left."""


class SourceFollower:
    """Keeps an engine at the newest version of its source.

    follower = SourceFollower(engine, source)
    await follower.begin()
    while True:
        await follower.poll()
    """

    def __init__(self, engine: PolicyEngine, source: PolicySource, *, pinned: str = "") -> None:
        """Follows a source.

        Args:
            engine: Gets its versions.
            source: The source.
            pinned: Version that is pinned at the start; empty: none.
        """
        self._engine, self._source, self._pinned = engine, source, pinned
        self._last_error, self._begun = "", False
        self._damaged: _DamagedVersion | None = None

    async def begin(self) -> None:
        """Checks the source and makes the first poll. `run` repeats this while the source cannot be reached.

        Raises:
            PodraceError: The source can never be used: it does not exist, for instance, or refuses the caller.
        """
        try:
            await self._source.newest()
            await self._pin()
        except RETRYABLE as error:
            self._count_error(error)
            return
        self._begun = True
        await self.poll()
        if not self._engine.record.current and not self._last_error:
            _log.info("waits for the first policy", source=self._source.description)

    async def poll(self) -> None:
        """Offers the newest version if the engine wants it. An error is logged once, and the present version stays."""
        try:
            await self._pin()
            version = await self._source.newest()
            if self._engine.wants(version):
                await self._read(version)
            self._last_error = ""
        except Exception as error:
            # A defect must not end the polls: the version that serves stays, and the next one may be read.
            self._count_error(error)
        self._engine.tidy()

    async def _read(self, version: str) -> None:
        """Reads a version and offers it to the engine. A damaged one is read again after pauses that double.

        Raises:
            DataLoss: The version is damaged, or was when it was last read.
            PodraceError: It cannot be read or examined now.
        """
        damaged = self._damaged if self._damaged and self._damaged.version == version else None
        if damaged and damaged.polls_left:
            self._damaged = damaged._replace(polls_left=damaged.polls_left - 1)
            raise DataLoss(damaged.message)
        before = self._engine.record.current
        try:
            await self._engine.offer(await self._source.read(version), version)
        except DataLoss as error:
            pause = min(2 * damaged.pause_polls, LONGEST_PAUSE_POLLS) if damaged else 1
            self._damaged = _DamagedVersion(version, error.message, pause, pause)
            raise
        self._damaged = None
        metrics.SWAPS.labels("refused" if self._engine.record.current == before else "served").inc()

    async def _pin(self) -> None:
        if self._pinned:
            await self._engine.pin(await self._source.read(self._pinned), self._pinned)
            self._pinned = ""

    def _count_error(self, error: Exception) -> None:
        metrics.SOURCE_ERRORS.inc()
        expected = isinstance(error, PodraceError)
        text = error.message if isinstance(error, PodraceError) else f"{type(error).__name__}: {error}"
        if text != self._last_error:
            log = _log.warning if expected else _log.exception
            log("no other policy could be read", source=self._source.description, error=text)
        self._last_error = text

    async def run(self, period_seconds: float, polled: Callable[[], Awaitable[None]]) -> NoReturn:
        """Polls until it is cancelled, and calls `polled` after each poll.

        Raises:
            PodraceError: As `begin`, if the source could not be reached before.
        """
        while True:
            await (self.poll() if self._begun else self.begin())
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
