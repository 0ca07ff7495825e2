"""Runs a mesh whose calls pass proxies that lose requests and replies, repeat calls, and change their order."""

import asyncio
import contextlib
import random
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

LATE_SECONDS = 0.05
SERVICES = ("leaderboard", "orchestrator")


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


class LossyProxy(grpc.GenericRpcHandler):
    """Forwards every method of a server.

    Attributes:
        counts: Number of calls by what happened to them.
    """

    def __init__(self, target: str, losses: Losses, seed: int) -> None:
        self._target, self._losses, self._draw = target, losses, random.Random(seed)
        self.counts: Counter[str] = Counter()

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method

        async def forward(requests: Any, context: Any) -> AsyncIterator[bytes]:
            async for reply in self._forward(method, requests, context):
                yield reply

        return grpc.stream_stream_rpc_method_handler(forward)

    def connect(self) -> None:
        self._channel = grpc.aio.insecure_channel(self._target)

    async def close(self) -> None:
        await self._channel.close()

    async def _forward(self, method: str, requests: Any, context: Any) -> AsyncIterator[bytes]:
        received = [request async for request in requests]
        what = self._next_fault()
        self.counts[what] += 1
        if what == "request":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the request was lost")
        if what == "late":
            await asyncio.sleep(LATE_SECONDS * self._draw.random())
        call = self._channel.stream_stream(method)
        try:
            if what in ("twice", "reply"):
                async for _ in call(iter(received), metadata=context.invocation_metadata(), timeout=30.0):
                    pass
            if what == "reply":
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the reply was lost")
            timeout = context.time_remaining()
            async for reply in call(iter(received), metadata=context.invocation_metadata(), timeout=timeout):
                yield reply
        except grpc.aio.AioRpcError as error:
            context.set_trailing_metadata(tuple(error.trailing_metadata() or ()))
            await context.abort(error.code(), error.details() or "")

    def _next_fault(self) -> str:
        drawn = self._draw.random()
        for name in ("request", "reply", "twice", "late"):
            drawn -= getattr(self._losses, name)
            if drawn < 0:
                return name
        return "passed"


@contextlib.contextmanager
def lossy_proxies(targets: dict[str, str], losses: Losses, seed: int) -> Iterator[dict[str, tuple[str, LossyProxy]]]:
    """Runs a proxy for each server, in a thread; yields their addresses."""
    made: dict[str, tuple[str, LossyProxy]] = {}
    ready, done = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        servers = []
        for number, (name, target) in enumerate(targets.items()):
            proxy = LossyProxy(target, losses, seed + number)
            proxy.connect()
            server = grpc.aio.server()
            server.add_generic_rpc_handlers((proxy,))
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            servers.append(server)
            made[name] = f"127.0.0.1:{port}", proxy
        ready.set()
        await done.wait()
        for server in servers:
            await server.stop(None)
        for _, proxy in made.values():
            await proxy.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    ready.wait()
    try:
        yield made
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()


@contextlib.contextmanager
def lossy_mesh(folder: Path, losses: Losses, seed: int) -> Iterator[tuple[str, dict[str, LossyProxy]]]:
    """Runs services on TCP; pods and the orchestrator call them through the proxies.

    Yields the address of the orchestrator itself, and the proxies.
    """
    folder.mkdir()
    targets = {service: f"127.0.0.1:{_free_port()}" for service in SERVICES}
    with contextlib.ExitStack() as stack:
        proxies = stack.enter_context(lossy_proxies(targets, losses, seed))
        for service in SERVICES:
            settings = {
                "server.listen": targets[service],
                "database": f"{folder}/{service}.sqlite",
                "store": f"folder://{folder}/store",
                "telemetry.log_format": "json",
            }
            if service == "orchestrator":
                settings |= {
                    "leaderboard": proxies["leaderboard"][0],
                    "advertised": proxies["orchestrator"][0],
                    "runtime_folder": f"{folder}/run",
                    "log_folder": f"{folder}/logs",
                }
            arguments = [text for key, value in settings.items() for text in ("--set", f"{key}={value}")]
            log = stack.enter_context((folder / f"{service}.log").open("wb"))
            process = subprocess.Popen([sys.executable, "-m", service, *arguments], stderr=log)
            stack.callback(_end, process)
        yield targets["orchestrator"], {name: proxy for name, (_, proxy) in proxies.items()}


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(30)


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])
