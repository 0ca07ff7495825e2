"""Keeps objects in memory and serves them by HTTP, as a checkpoint store does for URLs that StoreService grants."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LARGEST_BYTES = 256 << 20
CONDITION = {"If-None-Match": "*"}
"""Headers that an upload must have: an object is never replaced."""


class Objects:
    """Objects by their digests."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self.url = ""

    def get(self, digest: str) -> bytes | None:
        """Returns an object; None if there is none."""
        with self._lock:
            return self._objects.get(digest)

    def put(self, digest: str, data: bytes) -> int:
        """Stores an object and returns the HTTP status."""
        if hashlib.sha256(data).hexdigest() != digest:
            return 400
        with self._lock:
            if digest in self._objects:
                return 412
            self._objects[digest] = data
        return 200


class _Handler(BaseHTTPRequestHandler):
    objects: Objects

    def do_PUT(self) -> None:
        """Stores the object that the path names."""
        size = int(self.headers.get("Content-Length") or 0)
        if not 0 <= size <= LARGEST_BYTES:
            self._answer(413)
        elif any(self.headers.get(name) != value for name, value in CONDITION.items()):
            self._answer(403)
        else:
            self._answer(self.objects.put(self.path.rpartition("/")[2], self.rfile.read(size)))

    def do_GET(self) -> None:
        """Returns the object that the path names."""
        data = self.objects.get(self.path.rpartition("/")[2])
        self._answer(404 if data is None else 200, data or b"")

    def _answer(self, status: int, data: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""


@contextmanager
def serving_objects(host: str) -> Iterator[Objects]:
    """Serves an empty store on a free port until the block ends."""
    objects = Objects()
    handler = type("Handler", (_Handler,), {"objects": objects})
    server = ThreadingHTTPServer((host, 0), handler)
    objects.url = f"http://{host}:{server.server_address[1]}/objects/"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield objects
    finally:
        server.shutdown()
        server.server_close()
