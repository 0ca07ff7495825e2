"""Fetches a file from a URL of a specification: from allowed hosts only, within limits of size and time.

Each redirect is checked as the first URL was. The name of a host is resolved once, its addresses are checked, and the
connection is made to a checked address, so DNS cannot answer differently the second time. No proxy is used, because a
proxy would resolve the name itself. Errors have the status of a response, never its content.
"""

import http.client
import io
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import IO, Any
from urllib.parse import SplitResult, urljoin

from podrace.errors import DeadlineExceeded, InvalidArgument, ResourceExhausted, Unavailable
from podrace.limits.addresses import is_local, is_metadata, parse_address
from podrace.limits.config import Allowed
from podrace.limits.urls import host_of, may_be_local, port_of, split, url_problem

MOST_REDIRECTS = 5
REDIRECTS = (301, 302, 303, 307, 308)
CHUNK_BYTES = 1 << 20
MEMORY_BYTES = 1 << 26
"""A larger file is kept on disk while it is read."""

Resolve = Callable[[str, int], Sequence[str]]
"""Returns the addresses of a host and a port."""


def resolve(host: str, port: int) -> list[str]:
    """Returns the addresses of a host; raises OSError if there are none."""
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def fetch(
    url: str, allowed: Allowed, resolve: Resolve = resolve, clock: Callable[[], float] = time.monotonic
) -> IO[bytes]:
    """Fetches a file, and returns it opened at its beginning.

    Raises:
        InvalidArgument: The URL, or one that it redirects to, is not allowed, or its host has an address that is never
            connected to.
        ResourceExhausted: The file is too large.
        DeadlineExceeded: It takes too long.
        Unavailable: The host does not answer, or not with the file.
    """
    deadline = clock() + allowed.url_seconds

    def left_seconds() -> float:
        left = deadline - clock()
        if left <= 0:
            raise DeadlineExceeded(f"{_shown(url)}: takes more than {allowed.url_seconds:g} s (allow.url_seconds)")
        return left

    for _ in range(MOST_REDIRECTS + 1):
        if problem := url_problem(url, allowed):
            raise InvalidArgument(f"{_shown(url)}: {problem}")
        parts = split(url)
        assert parts is not None
        connection = _connection(parts, checked_address(parts, allowed, resolve), left_seconds)
        try:
            response = _get(connection, parts)
            location = response.getheader("Location", "")
            if response.status in REDIRECTS and location:
                url = urljoin(url, location)
                continue
            if response.status != http.client.OK:
                raise Unavailable(f"{_shown(url)}: the server answered with status {response.status}")
            return _received(response, url, allowed)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unavailable(f"{_shown(url)}: cannot be fetched ({type(error).__name__})") from None
        finally:
            connection.close()
    raise Unavailable(f"{_shown(url)}: more than {MOST_REDIRECTS} redirects")


def checked_address(parts: SplitResult, allowed: Allowed, resolve: Resolve) -> str:
    """Returns an address of the host; raises InvalidArgument if one of its addresses is never connected to."""
    host = host_of(parts)
    try:
        addresses = list(resolve(host, port_of(parts)))
    except (OSError, UnicodeError):
        addresses = []
    for text in addresses:
        address = parse_address(text)
        if address is None or is_metadata(text) or (is_local(address) and not may_be_local(parts, allowed)):
            raise InvalidArgument(f"{parts.scheme}://{host}: has an address that is never connected to")
    if not addresses:
        raise Unavailable(f"{parts.scheme}://{host}: the host has no address")
    return addresses[0]


class _Plain(http.client.HTTPConnection):
    """A connection to an address that was checked, for a host."""

    def __init__(self, parts: SplitResult, address: str, left_seconds: Callable[[], float]) -> None:
        super().__init__(host_of(parts), port_of(parts))
        self._address, self._left_seconds = address, left_seconds
        self.response_class = partial(_response, left_seconds)  # type: ignore[assignment]

    def connect(self) -> None:
        """Connects to the checked address; the host name is not resolved again."""
        self.sock = socket.create_connection((self._address, self.port), self._left_seconds())
        self.sock.settimeout(self._left_seconds())


class _Encrypted(_Plain):
    default_port = 443

    def connect(self) -> None:
        """Connects, and verifies the certificate of the host name."""
        super().connect()
        self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)
        self.sock.settimeout(self._left_seconds())


class _Reads(io.RawIOBase):
    """Reads from a socket until the deadline, however few bytes arrive at a time.

    The timeout of a socket is that of each read, and a header or the size of a chunk may take any number of reads.
    """

    def __init__(self, sock: socket.socket, left_seconds: Callable[[], float]) -> None:
        self._sock, self._left_seconds = sock, left_seconds
        self._raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._left_seconds())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _response(left_seconds: Callable[[], float], sock: socket.socket, **options: Any) -> http.client.HTTPResponse:
    response = http.client.HTTPResponse(sock, **options)
    response.fp.close()
    response.fp = io.BufferedReader(_Reads(sock, left_seconds))
    return response


def _connection(parts: SplitResult, address: str, left_seconds: Callable[[], float]) -> _Plain:
    kind = _Encrypted if parts.scheme == "https" else _Plain
    return kind(parts, address, left_seconds)


def _get(connection: _Plain, parts: SplitResult) -> http.client.HTTPResponse:
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection.request("GET", target, headers={"User-Agent": "podrace", "Accept-Encoding": "identity"})
    return connection.getresponse()


def _received(response: http.client.HTTPResponse, url: str, allowed: Allowed) -> IO[bytes]:
    received: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES)  # noqa: SIM115
    size = 0
    try:
        while chunk := response.read1(CHUNK_BYTES):
            size += len(chunk)
            if size > allowed.url_bytes:
                raise ResourceExhausted(f"{_shown(url)}: has more than {allowed.url_bytes} bytes (allow.url_bytes)")
            received.write(chunk)
    except BaseException:
        received.close()
        raise
    received.seek(0)
    return received


def _shown(url: str) -> str:
    """Returns a URL without its query, which may contain a key."""
    parts = split(url)
    return repr(url[:100]) if parts is None else f"{parts.scheme}://{parts.netloc}{parts.path}"[:200]
