"""Runs a mesh whose calls pass proxies: pods and the orchestrator call the services through them."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import grpc

from podrace import rpc

SERVICES = ("leaderboard", "orchestrator")
START_SECONDS = 60.0


class ForwardingProxy(grpc.GenericRpcHandler):
    """Forwards every method of a server."""

    def __init__(self, target: str) -> None:
        self._target = target

    def service(self, handler_call_details: Any) -> Any:
        """Handles every method as one with streams; a single message is a stream of one."""
        method = handler_call_details.method

        async def handle(requests: Any, context: Any) -> AsyncIterator[bytes]:
            received = [request async for request in requests]
            async for reply in self.replies(method, received, context):
                yield reply

        return grpc.stream_stream_rpc_method_handler(handle)

    def connect(self) -> None:
        """Opens the channel, in the event loop of the proxy."""
        self.channel = grpc.aio.insecure_channel(self._target)

    async def close(self) -> None:
        """Closes the channel."""
        await self.channel.close()

    async def replies(self, method: str, requests: list[bytes], context: Any) -> AsyncIterator[bytes]:
        """Yields the replies of a call."""
        async for reply in self.forward(method, requests, context):
            yield reply

    async def forward(self, method: str, requests: list[bytes], context: Any) -> AsyncIterator[bytes]:
        """Calls the server and yields its replies; its errors are passed on."""
        try:
            call = self.channel.stream_stream(method)
            timeout = context.time_remaining()
            async for reply in call(iter(requests), metadata=context.invocation_metadata(), timeout=timeout):
                yield reply
        except grpc.aio.AioRpcError as error:
            context.set_trailing_metadata(tuple(error.trailing_metadata() or ()))
            await context.abort(error.code(), error.details() or "")


Proxy = TypeVar("Proxy", bound=ForwardingProxy)


@contextlib.contextmanager
def running_proxies(
    targets: dict[str, str], make: Callable[[str, int], Proxy], sockets: Path | None = None
) -> Iterator[dict[str, tuple[str, Proxy]]]:
    """Runs a proxy for each server, in a thread; yields their addresses.

    Args:
        targets: Addresses of the servers by name.
        make: Makes the proxy of an address; also receives its number.
        sockets: Folder of the Unix sockets on which they listen; None: they listen on ports of this machine.
    """
    made: dict[str, tuple[str, Proxy]] = {}
    ready, done = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        servers = []
        for number, (name, target) in enumerate(targets.items()):
            proxy = make(target, number)
            proxy.connect()
            server = grpc.aio.server()
            server.add_generic_rpc_handlers((proxy,))
            address = f"unix:{sockets}/{name}.proxy" if sockets else "127.0.0.1:0"
            port = server.add_insecure_port(address)
            await server.start()
            servers.append(server)
            made[name] = address if sockets else f"127.0.0.1:{port}", proxy
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
def proxied_mesh(
    folder: Path,
    make: Callable[[str, int], Proxy],
    home: Path | None = None,
    lease_seconds: float = 10.0,
    *,
    sockets: bool = False,
) -> Iterator[tuple[str, dict[str, Proxy]]]:
    """Runs services; pods and the orchestrator call them through the proxies.

    Yields the address of the orchestrator itself, and the proxies.

    Args:
        folder: Folder for logs and, without `home`, for databases and store; it is created.
        make: See `running_proxies`.
        home: Folder with databases and a store; None: they are new.
        lease_seconds: Duration of leases, of which pods renew each third.
        sockets: Whether services and proxies listen on Unix sockets. Such services have no key of the mesh, so callers
            need no tokens.
    """
    # Services refuse to listen on a socket in a folder that others may enter.
    folder.mkdir(mode=0o700)
    data = home or folder
    targets = {
        service: f"unix:{folder}/{service}.sock" if sockets else f"127.0.0.1:{_free_port()}" for service in SERVICES
    }
    with contextlib.ExitStack() as stack:
        proxies = stack.enter_context(running_proxies(targets, make, folder if sockets else None))
        for service in SERVICES:
            settings = {
                "server.listen": targets[service],
                "database": f"{data}/{service}.sqlite",
                "store": f"folder://{data}/store",
                "telemetry.log_format": "json",
            }
            if service == "orchestrator":
                settings |= {
                    "leaderboard": proxies["leaderboard"][0],
                    "advertised": proxies["orchestrator"][0],
                    "lease_duration_seconds": lease_seconds,
                    "runtime_folder": f"{folder}/run",
                    "log_folder": f"{folder}/logs",
                }
            arguments = [text for key, value in settings.items() for text in ("--set", f"{key}={value}")]
            log = stack.enter_context((folder / f"{service}.log").open("wb"))
            process = subprocess.Popen([sys.executable, "-m", service, *arguments], stderr=log)
            stack.callback(_end, process)
        for target in targets.values():
            asyncio.run(rpc.wait_until_serving(target, deadline_seconds=START_SECONDS))
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
