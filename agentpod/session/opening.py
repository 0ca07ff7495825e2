"""Waits until a role has opened a session. Time in which the role reports that it compiles kernels does not count."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from podrace.errors import DeadlineExceeded
from podrace.orchestrator.v1.orchestrator_pb2 import ROLE_PHASE_COMPILING, RolePhase

OPEN_DEADLINE_SECONDS = 120.0
"""Limit of an opening without compilation; stated in the contract."""
POLL_SECONDS = 5.0


async def opened(
    call: Awaitable[Any],
    phase: Callable[[], Awaitable["RolePhase.ValueType | None"]],
    *,
    limit_seconds: float = OPEN_DEADLINE_SECONDS,
    poll_seconds: float = POLL_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Any:
    """Waits for the answer of a role to a request to open a session.

    Args:
        call: The request, with the longest deadline as its own.
        phase: Asks what the role does; None: it does not answer.
        limit_seconds: Longest time outside of the phase COMPILING.
        poll_seconds: Time between two questions.
        clock: Monotonic clock in seconds.

    Raises:
        DeadlineExceeded: It took longer; or the call exceeded its own deadline.
    """
    answer, counted, polled_at = asyncio.ensure_future(call), 0.0, clock()
    try:
        while True:
            await asyncio.wait([answer], timeout=min(poll_seconds, max(0.0, limit_seconds - counted)))
            if answer.done():
                return answer.result()
            compiles, now = await phase() == ROLE_PHASE_COMPILING, clock()
            counted, polled_at = counted + (0.0 if compiles else now - polled_at), now
            if counted >= limit_seconds and not answer.done():
                raise DeadlineExceeded(f"a role did not open within {limit_seconds:g} s")
    finally:
        answer.cancel()
        await asyncio.gather(answer, return_exceptions=True)
