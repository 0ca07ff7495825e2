"""Resumes a watch stream whenever its connection breaks, so that a service may restart while a client follows it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeVar

from podrace.errors import Cancelled, DeadlineExceeded, Unavailable

RETRYABLE = Unavailable, Cancelled, DeadlineExceeded
"""Errors of calls to a server that restarts; any other error is final."""
RETRY_SECONDS = 0.5
"""Pause between two attempts of the same call."""


class _Update(Protocol):
    @property
    def resume_token(self) -> int: ...


Update = TypeVar("Update", bound=_Update)


async def resumed(watch: Callable[[int], AsyncIterator[Update]], resume_token: int = 0) -> AsyncIterator[Update]:
    """Yields the messages of a watch, and calls it again after the last message received when the stream ends.

    Args:
        watch: Opens the stream after the given resume token.
        resume_token: Where the first stream starts; 0 is the beginning.

    Raises:
        PodraceError: The call failed with an error that is not in `RETRYABLE`.
    """
    while True:
        with contextlib.suppress(*RETRYABLE):
            async for update in watch(resume_token):
                resume_token = update.resume_token
                yield update
        await asyncio.sleep(RETRY_SECONDS)
