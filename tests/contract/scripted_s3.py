"""Provides a small S3 server with scripted faults that a real server does not produce on demand."""

import base64
import hashlib
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from podrace.checkpoint_store.minio import MinioStore
from podrace.checkpoint_store.minio_address import parse_address, read_access
from podrace.checkpoint_store.minio_client import Bucket
from podrace.checkpoint_store.minio_retries import RetryPolicy
from podrace.digests import digest

BUCKET = "checkpoints"
KEYS = {"PODRACE_STORE_ACCESS_KEY": "key", "PODRACE_STORE_SECRET_KEY": "secret"}
AGENT = "agent-7"
POINTER_PATH = f"/{BUCKET}/p/pointers/{AGENT}.json"
MEETING_SECONDS = 10.0
"""Longest time that a request waits for the others at a barrier."""


@dataclass(frozen=True)
class Fault:
    """A fault of one request."""

    method: str
    """Affects the first request with this method."""
    status: int = 0
    """Status of the response; 0: the connection is closed without a response."""
    code: str = ""
    """S3's name of the error; empty: a response without XML."""
    carried_out: bool = False
    """Whether the request takes effect nevertheless."""
    sent_bytes: int = -1
    """Number of bytes of an object that are sent before the connection is closed, instead of an error."""
    date: str = ""
    """Date that the server sends."""
    marker: str = ""
    """Text that path and query of the request must contain."""
    meets: threading.Barrier | None = None
    """Barrier where the request waits for other requests; then it is served without a fault."""


@dataclass
class ScriptedS3:
    """A bucket, the faults to come, and the requests received."""

    endpoint: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    ignored: frozenset[str] = frozenset()
    """Conditions that the server ignores."""
    copies: bool = True
    """Whether an object that is copied onto itself counts as put now."""
    date: str = ""
    """Date that the server sends; empty: the current time."""
    modified: dict[str, str] = field(default_factory=dict)
    """Modification date by path; other objects have the current one."""
    connections: int = 0
    """Number of accepted connections."""
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Method and path with query."""
    checksums: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The digests that the writer signed and sent, by path; paths of parts end with `#` and their number."""
    completions: list[bytes] = field(default_factory=list)
    """Bodies of the requests that complete uploads."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def uri(self) -> str:
        """URI of a store in the bucket."""
        return f"minio+http://{self.endpoint}/{BUCKET}/p"

    def methods(self) -> str:
        """Returns the methods of the requests so far, in order."""
        return " ".join(method for method, _ in self.requests)

    def take_fault(self, method: str, path: str) -> Fault | None:
        """Removes and returns the next fault for a request; None if there is none."""
        for fault in self.faults:
            if fault.method == method and fault.marker in path:
                self.faults.remove(fault)
                return fault
        return None


@contextmanager
def running(
    script: ScriptedS3, tls: tuple[Path, Path] | None = None, listen: tuple[str, int] = ("127.0.0.1", 0)
) -> Iterator[ScriptedS3]:
    """Serves a script, by default on a free port, with TLS if certificate and key are given."""
    handler = type("Bound", (_Handler,), {"script": script})
    with _Server(listen, handler) as server:
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        script.endpoint = f"{listen[0]}:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield script
        finally:
            server.shutdown()
            thread.join(10)


@dataclass
class Time:
    """A clock that only pauses advance."""

    now: float = 0.0
    pauses: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        """Advances the clock and records the pause."""
        self.pauses.append(seconds)
        self.now += seconds


def opened(uri: str, retries: RetryPolicy, environ: Mapping[str, str] = KEYS) -> MinioStore:
    """Opens a store with a retry policy."""
    address = parse_address(uri)
    return MinioStore(Bucket(address, read_access(address, environ), retries))


def path_of(data: bytes) -> str:
    """Returns the path of an object in the bucket."""
    name = digest(data)
    return f"/{BUCKET}/p/objects/{name[:2]}/{name}"


def etag_of(data: bytes) -> str:
    """Returns the ETag of an object."""
    return f'"{hashlib.md5(data).hexdigest()}"'


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Does not log clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    script: ScriptedS3
    protocol_version = "HTTP/1.1"
    date = ""

    def setup(self) -> None:
        super().setup()
        with self.script.lock:
            self.script.connections += 1

    def log_message(self, *_: object) -> None:
        pass

    def date_time_string(self, timestamp: float | None = None) -> str:  # type: ignore[override]
        return self.date or self.script.date or super().date_time_string(timestamp)

    def serve(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.script.lock:
            self.script.requests.append((self.command, self.path))
            fault = self.script.take_fault(self.command, self.path)
        if fault and fault.meets:
            fault.meets.wait(MEETING_SECONDS)
            fault = None
        with self.script.lock:
            if fault is None or fault.carried_out:
                status, answer, headers = self._act(unquote(url.path), parse_qs(url.query, True), body)
        if fault is None:
            self._answer(status, answer, headers)
            return
        self.date = fault.date
        if fault.sent_bytes >= 0:
            data = self.script.objects[unquote(url.path)]
            self._answer(200, data, {"ETag": etag_of(data)}, fault.sent_bytes)
        elif fault.status:
            self._answer(fault.status, *_error(fault.code))
        self.close_connection = not fault.status

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = serve  # noqa: N815

    def _act(self, path: str, query: dict[str, list[str]], body: bytes) -> tuple[int, bytes, dict[str, str]]:
        objects, uploads = self.script.objects, self.script.uploads
        if "uploads" in query and self.command == "POST":
            uploads[path] = {}
            return 200, b"<R><UploadId>upload</UploadId></R>", {}
        if "uploadId" in query:
            return self._act_on_upload(path, query, body)
        if self.command == "PUT" and "x-amz-copy-source" in self.headers:
            return self._copy(path)
        if self.command == "PUT":
            tag = self.headers.get("If-Match") if "If-Match" not in self.script.ignored else None
            new = self.headers.get("If-None-Match") if "If-None-Match" not in self.script.ignored else None
            if (tag and (path not in objects or tag != etag_of(objects[path]))) or (new and path in objects):
                return 412, *_error("PreconditionFailed")
            if not self._sound(path, body):
                return 400, *_error("BadDigest")
            objects[path] = body
            self.script.modified.pop(path, None)
            return 200, b"", {"ETag": etag_of(body)}
        if self.command == "DELETE":
            objects.pop(path, None)
            return 204, b"", {}
        if "list-type" in query:
            return 200, self._listing(query), {"Content-Type": "application/xml"}
        if path not in objects:
            return 404, *_error("NoSuchKey")
        modified = self.script.modified.get(path) or self.date_time_string()
        piece = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")
        data = objects[path][int(piece[0]) : int(piece[1] or len(objects[path])) + 1]
        return 200, data, {"ETag": etag_of(objects[path]), "Last-Modified": modified}

    def _copy(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        if path not in self.script.objects:
            return 404, *_error("NoSuchKey")
        if unquote(self.headers["x-amz-copy-source"]) != path:
            return 501, *_error("NotImplemented")
        if self.script.copies:
            self.script.modified.pop(path, None)
        return 200, b"<R><ETag>x</ETag></R>", {}

    def _act_on_upload(self, path: str, query: dict[str, list[str]], body: bytes) -> tuple[int, bytes, dict[str, str]]:
        uploads = self.script.uploads
        if path not in uploads:
            return 404, *_error("NoSuchUpload")
        if self.command == "PUT":
            number = query["partNumber"][0]
            if not self._sound(f"{path}#{number}", body):
                return 400, *_error("BadDigest")
            uploads[path][int(number)] = body
            return 200, b"", {"ETag": etag_of(body)}
        parts = uploads.pop(path)
        if self.command == "DELETE":
            return 204, b"", {}
        self.script.completions.append(body)
        self.script.modified.pop(path, None)
        self.script.objects[path] = b"".join(parts[number] for number in sorted(parts))
        return 200, b"<R><ETag>x</ETag></R>", {}

    def _sound(self, name: str, body: bytes) -> bool:
        """Whether a body has the digest that its writer sent, if any."""
        stated = base64.b64decode(self.headers.get("x-amz-checksum-sha256", "")).hex()
        self.script.checksums[name] = (self.headers.get("x-amz-content-sha256", ""), stated)
        return stated in ("", hashlib.sha256(body).hexdigest())

    def _listing(self, query: dict[str, list[str]]) -> bytes:
        after = query.get("start-after", [""])[0]
        root = f"/{BUCKET}/"
        names = sorted(
            path.removeprefix(root)
            for path in self.script.objects
            if path.startswith(root + query["prefix"][0]) and path.removeprefix(root) > after
        )
        page = names[: int(query["max-keys"][0])]
        entries = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(self.script.objects[root + name])}</Size>"
            "<LastModified>2026-01-02T03:04:05.678Z</LastModified></Contents>"
            for name in page
        )
        more = f"<IsTruncated>{str(len(page) < len(names)).lower()}</IsTruncated>"
        token = f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if page else ""
        return f"<ListBucketResult><Name>{BUCKET}</Name>{entries}{more}{token}</ListBucketResult>".encode()

    def _answer(self, status: int, body: bytes, headers: dict[str, str], sent_bytes: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:sent_bytes])


def _error(code: str) -> tuple[bytes, dict[str, str]]:
    if not code:
        return b"<html>not S3</html>", {"Content-Type": "text/html"}
    text = f"<Error><Code>{code}</Code><Message>reason {code}</Message></Error>"
    return text.encode(), {"Content-Type": "application/xml"}
