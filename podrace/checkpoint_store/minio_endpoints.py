"""Connects to one of several addresses of an S3 server, and avoids those that do not answer.

The name of a server may stand for several addresses. A connection takes the first of them, so a process would meet an
endpoint that hangs again and again. An address that does not accept a connection, or does not answer a request in time,
is tried after the others for a while.
"""

import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError

AVOID_SECONDS = 300.0
"""Time for which an address that did not answer is tried last."""
ANSWER_SECONDS = 15.0
"""Time for an answer to begin, if another address may answer instead."""
Address = tuple[str, int]


class Endpoints:
    """The addresses of the servers of this process, and which of them did not answer."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Starts without experience.

        Args:
            monotonic: Clock in seconds.
        """
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._avoided: dict[Address, float] = {}
        self._known: dict[tuple[str, int], list[Address]] = {}

    def ordered(self, host: str, port: int) -> Sequence[Address]:
        """Resolves a name; the addresses that did not answer come last, the latest at the end. Blocks."""
        found = [entry[4][:2] for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        addresses = [(str(name), int(number)) for name, number in dict.fromkeys(found)]
        with self._lock:
            self._known[host, port] = addresses
            return sorted(addresses, key=lambda one: self._until(one) or 0.0)

    def avoid(self, address: Address) -> None:
        """Records that an address did not answer."""
        with self._lock:
            self._avoided[address] = self._monotonic() + AVOID_SECONDS

    def is_avoided(self, address: Address) -> bool:
        """Whether an address did not answer a short time ago."""
        with self._lock:
            return bool(self._until(address))

    def has_another(self, host: str, port: int, address: Address) -> bool:
        """Whether another address of a name may answer instead of this one."""
        with self._lock:
            return any(one != address and not self._until(one) for one in self._known.get((host, port), ()))

    def _until(self, address: Address) -> float | None:
        until = self._avoided.get(address)
        return until if until is not None and until > self._monotonic() else None


class _Connection(HTTPConnection):
    """A connection to the first address that accepts it; a name is resolved for each connection."""

    endpoints: Endpoints
    address: Address = ("", 0)

    def _new_conn(self) -> socket.socket:
        try:
            addresses = self.endpoints.ordered(self._dns_host, self.port)
        except socket.gaierror as error:
            raise NameResolutionError(self.host, self, error) from error
        failure: OSError = OSError("the name has no address")
        for address in addresses:
            try:
                connected = socket.create_connection(address, self.timeout)
            except OSError as error:
                self.endpoints.avoid(address)
                failure = error
                continue
            for option in self.socket_options or ():
                connected.setsockopt(*option)
            self.address = address
            return connected
        if isinstance(failure, TimeoutError):
            line = f"Connection to {self.host} timed out. (connect timeout={self.timeout})"
            raise ConnectTimeoutError(self, line) from failure
        raise NewConnectionError(self, f"Failed to establish a new connection: {failure}") from failure

    @property
    def is_connected(self) -> bool:
        """Whether the connection may be used again."""
        return super().is_connected and not self._is_left()

    def send(self, data: Any) -> None:
        """Sends; an address that takes nothing is avoided."""
        try:
            super().send(data)
        except TimeoutError:
            self.endpoints.avoid(self.address)
            raise

    def getresponse(self) -> Any:
        """Waits for the answer to begin, not as long if another address may answer."""
        patient = self.timeout
        if isinstance(patient, float) and self.endpoints.has_another(self._dns_host, self.port, self.address):
            self.timeout = min(patient, ANSWER_SECONDS)
        try:
            response = super().getresponse()
        except TimeoutError:
            self.endpoints.avoid(self.address)
            raise
        finally:
            self.timeout = patient
        if self.sock:
            self.sock.settimeout(patient)
        return response

    def _is_left(self) -> bool:
        others = self.endpoints.has_another(self._dns_host, self.port, self.address)
        return others and self.endpoints.is_avoided(self.address)


class _SecureConnection(HTTPSConnection, _Connection):
    pass


def pools(endpoints: Endpoints) -> dict[str, type[HTTPConnectionPool]]:
    """Returns the classes of connection pools by scheme, for a PoolManager."""
    plain = type("Connection", (_Connection,), {"endpoints": endpoints})
    secure = type("SecureConnection", (_SecureConnection,), {"endpoints": endpoints})
    return {
        "http": type("Pool", (HTTPConnectionPool,), {"ConnectionCls": plain}),
        "https": type("SecurePool", (HTTPSConnectionPool,), {"ConnectionCls": secure}),
    }
