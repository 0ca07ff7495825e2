"""Loses requests and replies, repeats calls, and changes their order."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
from proxied_mesh import ForwardingProxy

LATE_SECONDS = 0.05


@dataclass(frozen=True)
class Losses:
    """Shares of the calls that a fault meets."""

    request: float = 0.0
    """Lost before the server sees them."""
    reply: float = 0.0
    """Executed, and the reply is lost."""
    twice: float = 0.0
    """Executed twice, one after the other; the second reply counts."""
    late: float = 0.0
    """Delayed, so that later calls overtake them."""


class LossyProxy(ForwardingProxy):
    """Forwards every method of a server, unless a fault meets the call.

    Attributes:
        counts: Number of calls by what happened to them.
    """

    def __init__(self, target: str, losses: Losses, seed: int) -> None:
        super().__init__(target)
        self._losses, self._draw = losses, random.Random(seed)
        self.counts: Counter[str] = Counter()

    async def replies(self, method: str, requests: list[bytes], context: Any) -> AsyncIterator[bytes]:
        """See ForwardingProxy."""
        what = self._next_fault()
        self.counts[what] += 1
        if what == "request":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the request was lost")
        if what == "late":
            await asyncio.sleep(LATE_SECONDS * self._draw.random())
        if what in ("twice", "reply"):
            async for _ in self.forward(method, requests, context):
                pass
        if what == "reply":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the reply was lost")
        async for reply in self.forward(method, requests, context):
            yield reply

    def _next_fault(self) -> str:
        drawn = self._draw.random()
        for name in ("request", "reply", "twice", "late"):
            drawn -= getattr(self._losses, name)
            if drawn < 0:
                return name
        return "passed"
