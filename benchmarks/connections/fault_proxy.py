"""Forwards TCP connections and injects faults: a tool of tests and benchmarks.

    async with FaultProxy(target) as proxy:
        channel = rpc.connect(proxy.address)
        proxy.half_open()

Faults apply to the connections that exist and, except for `half_open` and `reset`, to new ones until `heal`.
"""

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass
from types import TracebackType
from typing import Self

CHUNK_BYTES = 1 << 16
RESET_LINGER = struct.pack("ii", 1, 0)
"""SO_LINGER with which closing a socket sends RST."""


@dataclass
class _Fault:
    """What happens to the bytes of a connection."""

    delay_seconds: float = 0.0
    swallow_requests: bool = False
    swallow_answers: bool = False


class _Connection:
    """One forwarded connection."""

    def __init__(self, fault: _Fault, writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
        self.fault, self.writers = fault, writers

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, requests: bool) -> None:
        """Copies one direction until its end."""
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if self.fault.delay_seconds:
                    await asyncio.sleep(self.fault.delay_seconds)
                if not (self.fault.swallow_requests if requests else self.fault.swallow_answers):
                    writer.write(data)
                    await writer.drain()
        if not (self.fault.swallow_requests or self.fault.swallow_answers):
            writer.close()

    def reset(self) -> None:
        """Ends both sides with RST."""
        for writer in self.writers:
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_LINGER)
            writer.transport.abort()


class FaultProxy:
    """A TCP proxy on a free port of this machine; see the module.

    Attributes:
        address: `host:port` at which it listens.
        accepted: Number of connections so far.
    """

    def __init__(self, target: str) -> None:
        """Creates the proxy.

        Args:
            target: `host:port` of the server.
        """
        self._host, _, port = target.rpartition(":")
        self._port, self._fault, self._refuses = int(port), _Fault(), False
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.address, self.accepted = "", 0

    async def __aenter__(self) -> Self:
        """Listens."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Ends all connections."""
        self._server.close()
        self.reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- faults -----------------------------------------------------------------------------------------------

    def delay(self, seconds: float) -> None:
        """Delays each piece of data, in both directions."""
        self._set(_Fault(delay_seconds=seconds))

    def drop(self) -> None:
        """Swallows everything: existing connections and new ones are open, and nothing passes."""
        self._set(_Fault(swallow_requests=True, swallow_answers=True))

    def one_way(self) -> None:
        """Swallows what the server sends; requests still arrive."""
        self._set(_Fault(swallow_answers=True))

    def half_open(self) -> None:
        """Swallows everything on existing connections, permanently; new connections work."""
        for connection in self._connections:
            connection.fault = _Fault(swallow_requests=True, swallow_answers=True)

    def reset(self) -> None:
        """Ends existing connections with RST; new connections work."""
        for connection in tuple(self._connections):
            connection.reset()

    def refuse(self) -> None:
        """Ends existing and new connections with RST."""
        self._refuses = True
        self.reset()

    def heal(self) -> None:
        """Ends the fault for new connections, and for delayed ones; what was swallowed stays lost."""
        self._refuses, self._fault = False, _Fault()
        for connection in self._connections:
            connection.fault.delay_seconds = 0.0

    def _set(self, fault: _Fault) -> None:
        self._fault = fault
        for connection in self._connections:
            connection.fault = fault

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        if task:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            there, target = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(self._fault, (writer, target))
        if self._refuses:
            connection.reset()
            return
        self._connections.add(connection)
        try:
            # Cancelled at the end; asyncio would report that as an error of its callback.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(
                    connection.forward(reader, target, requests=True),
                    connection.forward(there, writer, requests=False),
                )
        finally:
            self._connections.discard(connection)
            for each in (writer, target):
                each.close()
