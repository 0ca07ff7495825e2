"""Loses requests and replies, repeats calls, and changes their order.

Within a connection, HTTP/2 delivers each request at most once and in order. A call is executed twice only if its client
repeats it, which clients of podrace do for the methods that their contract marks (`idempotency_level`), and calls
overtake each other only if several are under way. So only marked unary methods are repeated here. Calls of all methods
may be late; a stream of requests is forwarded once it has ended, so streams in both directions cannot pass.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import MethodOptions
from proxied_mesh import ForwardingProxy

from podrace import rpc
from podrace.agentpod.v1 import agentpod_pb2
from podrace.checkpoint.v1 import store_pb2
from podrace.evolution.v1 import evolution_pb2
from podrace.leaderboard.v1 import leaderboard_pb2
from podrace.orchestrator.v1 import orchestrator_pb2
from podrace.policy.v1 import policy_service_pb2

LATE_SECONDS = 0.05
FILES = (agentpod_pb2, store_pb2, evolution_pb2, leaderboard_pb2, orchestrator_pb2, policy_service_pb2)
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
"""Methods of the services that tests call through these proxies, as calls name them."""


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
        if what in ("twice", "reply") and not may_be_repeated(method):
            what = "passed"
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


def may_be_repeated(method: str) -> bool:
    """Whether `/package.Service/Method` is unary, and marked as a method that clients may repeat."""
    found = METHODS.get(method)
    if found is None:
        return False
    marked = found.GetOptions().idempotency_level != MethodOptions.IDEMPOTENCY_UNKNOWN
    return bool(marked and not found.client_streaming and not found.server_streaming)


class LossyCalls:
    """Proxies in the event loop of a test, which what the test runs in its own process calls instead of servers.

    calls = LossyCalls(folder, losses, monkeypatch)
    await calls.cover("unix:/tmp/pr/worker-0.sock")  # before a client connects; the server may start later
    ...
    await calls.close()

    Attributes:
        counts: Number of calls by what happened to them.
    """

    def __init__(self, folder: Path, losses: Losses, monkeypatch: Any) -> None:
        """Covers no server yet; the sockets of the proxies are in the folder."""
        self._folder, self._losses = folder, losses
        self._through: dict[str, str] = {}
        self._running: list[tuple[LossyProxy, grpc.aio.Server]] = []
        connect = rpc.connect

        def connect_through(address: str, *files: Any, **options: Any) -> grpc.aio.Channel:
            return connect(self._through.get(address, address), *files, **options)

        monkeypatch.setattr(rpc, "connect", connect_through)

    @property
    def counts(self) -> Counter[str]:
        return sum((proxy.counts for proxy, _ in self._running), Counter())

    async def cover(self, *addresses: str) -> None:
        """Lets later connections to the addresses pass a proxy each."""
        for address in addresses:
            number = len(self._running)
            proxy, server = LossyProxy(address, self._losses, number), grpc.aio.server()
            proxy.connect()
            server.add_generic_rpc_handlers((proxy,))
            self._through[address] = f"unix:{self._folder}/{number}.proxy"
            server.add_insecure_port(self._through[address])
            await server.start()
            self._running.append((proxy, server))

    async def close(self) -> None:
        for proxy, server in self._running:
            await server.stop(None)
            await proxy.close()
