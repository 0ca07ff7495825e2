"""A client of HTTP/2 that begins many calls and never completes their requests, which no client library does."""

import socket
import struct
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, WINDOW = 0, 1, 3, 4, 6, 8
ACKNOWLEDGED, END_HEADERS = 1, 4
INITIAL_WINDOW, FRAME_BYTES = 65535, 16384


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _header(name: str, value: str) -> bytes:
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


class IncompleteRequests:
    """Calls of one connection, each of which sends all but the last bytes of a request.

    calls = IncompleteRequests("127.0.0.1:50051", "/grpc.health.v1.Health/Check", 100)
    calls.send(seconds=1.0)
    calls.close()
    """

    def __init__(self, address: str, method: str, count: int, *, request_bytes: int = (4 << 20) - 100) -> None:
        """Connects and begins the calls."""
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10.0)
        self._received = b""
        self._initial, self._window = INITIAL_WINDOW, INITIAL_WINDOW
        self._left = {2 * number + 1: request_bytes - 100 for number in range(count)}
        self._windows = dict.fromkeys(self._left, INITIAL_WINDOW - 5)
        self._socket.sendall(PREFACE + _frame(SETTINGS, 0, 0))
        values = {":method": "POST", ":scheme": "http", ":path": method, ":authority": "x", "te": "trailers"}
        headers = b"".join(map(_header, *zip(*values.items(), strict=True))) + _header(
            "content-type", "application/grpc"
        )
        for stream in self._left:
            self._socket.sendall(_frame(HEADERS, END_HEADERS, stream, headers))
            self._send(stream, b"\0" + struct.pack(">I", request_bytes))

    def send(self, *, seconds: float) -> None:
        """Sends what the server accepts, until it accepts nothing for 0.3 s, or for some seconds."""
        self._socket.settimeout(0.3)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for stream in list(self._left):
                while (size := self._allowed(stream)) > 0:
                    self._left[stream] -= size
                    self._windows[stream] -= size
                    self._send(stream, bytes(size))
            try:
                data = self._socket.recv(1 << 16)
            except (TimeoutError, ConnectionError):
                return
            if not data:
                return
            self._received += data
            self._process()

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def _allowed(self, stream: int) -> int:
        return min(FRAME_BYTES, self._left.get(stream, 0), self._windows.get(stream, 0), self._window)

    def _send(self, stream: int, data: bytes) -> None:
        self._window -= len(data)
        self._socket.sendall(_frame(DATA, 0, stream, data))

    def _process(self) -> None:
        while len(self._received) >= 9:
            length = int.from_bytes(self._received[:3], "big")
            if len(self._received) < 9 + length:
                return
            kind, flags, stream = struct.unpack(">BBI", self._received[3:9])
            payload, self._received = self._received[9 : 9 + length], self._received[9 + length :]
            self._apply(kind, flags, stream, payload)

    def _apply(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACKNOWLEDGED:
            for key, value in struct.iter_unpack(">HI", payload):
                if key == 4:
                    self._windows = {each: window + value - self._initial for each, window in self._windows.items()}
                    self._initial = value
            self._socket.sendall(_frame(SETTINGS, ACKNOWLEDGED, 0))
        elif kind == PING and not flags & ACKNOWLEDGED:
            self._socket.sendall(_frame(PING, ACKNOWLEDGED, 0, payload))
        elif kind == WINDOW and not stream:
            self._window += int.from_bytes(payload, "big")
        elif kind == WINDOW and stream in self._windows:
            self._windows[stream] += int.from_bytes(payload, "big")
        elif kind == RESET:
            self._left.pop(stream, None)
