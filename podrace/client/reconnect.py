"""Resumes a watch stream whenever its connection breaks, so that a service may restart while a client follows it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeVar

from podrace.errors import Cancelled, DeadlineExceeded, ResourceExhausted, Unavailable

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
        PodraceError: The call failed with an error that is not in `RETRYABLE`; or the caller has too many streams open,
            and none of this watch was open before. Those of a lost connection count until the server notices its loss.
    """
    begun = False
    while True:
        seconds = RETRY_SECONDS
        try:
            async for update in watch(resume_token):
                resume_token, begun = update.resume_token, True
                yield update
        except RETRYABLE:
            pass
        except ResourceExhausted as error:
            if not begun or not error.retry_seconds:
                raise
            seconds = error.retry_seconds
        await asyncio.sleep(seconds)
