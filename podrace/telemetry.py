"""Sets up the logs and metrics of a process: structured logs with tournament, agent and pod ids, Prometheus metrics.

Logs are written to stderr, either as lines for people or as JSON. Metrics are kept in the process-wide registry of
prometheus_client; each package declares its own next to the code that updates them.
"""

import contextlib
import io
import logging
import os
import re
import socket
import socketserver
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import prometheus_client
import structlog

from podrace import tracing
from podrace.errors import InvalidArgument, Unavailable
from podrace.printable import printable, printable_lines

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication

    from structlog.typing import ExcInfo

MOST_CONNECTIONS = 32
"""Connections of the metrics endpoint at a time; each has a thread. Further ones are closed at once."""
SILENT_SECONDS = 5.0
"""Time after which the endpoint closes a connection that sends or accepts nothing."""
CONNECTION_SECONDS = 15.0
"""Time after which the endpoint closes a connection that sends or accepts data slowly."""
ACCEPT_PAUSE_SECONDS = 0.1
"""Pause after a connection could not be accepted, for instance without a free file descriptor."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class TelemetryConfig:
    """Format and level of the logs, address of the metrics."""

    log_format: str = "console"
    """`console` for people, `json` for machines."""
    log_level: str = "info"
    """`debug`, `info`, `warning` or `error`."""
    metrics_listen: str = "127.0.0.1:0"
    """Address of the Prometheus endpoint (port 0: any free one, written to the log); empty: no endpoint."""
    traces: str = ""
    """Address of an OpenTelemetry collector (OTLP over gRPC), for instance `http://collector:4317`; `https://` for TLS.
    It gets one trace for each assignment. Needs the extra `tracing`; empty: no traces."""


Page = Callable[[], tuple[str, bytes] | None]
"""Returns content type and body, or None: the page has no content yet (503). Called from a thread of the endpoint."""


def start(config: TelemetryConfig, *, service: str, pages: Mapping[str, Page] | None = None, **ids: str) -> str:
    """Sets up logging and the metrics endpoint of this process and binds `ids` to every line that it logs.

    Warns of TLS certificates that are due for renewal.

    Args:
        config: Format and level of the logs, address of the metrics.
        service: Name of this process in the log.
        pages: Further pages of the endpoint, by path.
        ids: Bound to every line.

    Returns:
        The address of the metrics endpoint, empty if there is none.

    Raises:
        InvalidArgument: The metrics address has no port, or an impossible one.
        FailedPrecondition: There is an address for traces, and the packages for them are not installed.
        Unavailable: The metrics address cannot be bound.
    """
    configure_logging(config)
    structlog.contextvars.bind_contextvars(service=service, **ids)
    if config.traces:
        tracing.start(config.traces, service=service, **ids)
    if os.environ.get("PODRACE_TLS_AUTHORITY_FILE"):
        # Only then, because it imports grpc and cryptography.
        from podrace.certificates import expiry

        expiry.watch(os.environ, time.time())
    if not config.metrics_listen:
        return ""
    host, _, port = config.metrics_listen.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise InvalidArgument(f"metrics_listen = {config.metrics_listen!r}: expected host:port, the port up to 65535")
    try:
        server = _MetricsServer(host, int(port), _with_pages(prometheus_client.make_wsgi_app(), pages or {}))
    except OSError as error:
        raise Unavailable(
            f"cannot serve metrics on {config.metrics_listen}: {error.strerror}; choose another"
        ) from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return f"{host}:{server.server_port}"


class _Handler(WSGIRequestHandler):
    """Answers one request of a connection, and writes nothing to the log: anyone can send requests."""

    timeout = SILENT_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""

    def get_stderr(self) -> IO[str]:
        """Returns where wsgiref writes the traceback of an answer that could not be sent."""
        return io.StringIO()


class _MetricsServer(socketserver.ThreadingMixIn, WSGIServer):
    """HTTP server with a limited number of connections, each of which lasts a limited time."""

    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, host: str, port: int, application: "WSGIApplication") -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self._opened: dict[Any, float] = {}
        """Time at which each connection was accepted."""
        super().__init__((str(found[0][4][0]), port), _Handler)
        self.set_app(application)

    def get_request(self) -> Any:
        """Accepts a connection."""
        try:
            return super().get_request()
        except OSError:
            # The socket stays readable, so the loop would try again without a pause.
            time.sleep(ACCEPT_PAUSE_SECONDS)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is room for a connection."""
        return len(self._opened) < MOST_CONNECTIONS

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts the thread of a connection."""
        self._opened[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Closes a connection."""
        super().shutdown_request(request)
        self._opened.pop(request, None)

    def service_actions(self) -> None:
        """Ends connections that have lasted too long; called by the loop at least twice a second."""
        oldest = time.monotonic() - CONNECTION_SECONDS
        for connection, opened in list(self._opened.items()):
            if opened < oldest:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs an error of the endpoint; a connection that ends early, or is silent, is none."""
        if not isinstance(sys.exception(), OSError):
            _log.exception("a connection of the metrics endpoint failed")


def _with_pages(metrics: "WSGIApplication", pages: Mapping[str, Page]) -> "WSGIApplication":
    def answer(environ: dict[str, Any], start_response: "StartResponse") -> Iterable[bytes]:
        page = pages.get(environ["PATH_INFO"])
        try:
            if page is None:
                return metrics(environ, start_response)
            content = page()
        except Exception:
            _log.exception("a page of the metrics endpoint failed", path=environ["PATH_INFO"])
            raise
        if content is None:
            start_response("503 Service Unavailable", [("Content-Length", "0")])
            return []
        content_type, body = content
        start_response("200 OK", [("Content-Type", content_type), ("Content-Length", str(len(body)))])
        return [body]

    return answer


# --- logging -----------------------------------------------------------------------------------------------------


def configure_logging(config: TelemetryConfig) -> None:
    """Routes structlog and the standard library's warnings to stderr in the chosen format."""
    level = logging.getLevelNamesMapping().get(config.log_level.upper(), logging.INFO)
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    final: list[Any] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if config.log_format == "json"
        else [
            _escape_values,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_write_traceback),
        ]
    )
    structlog.configure(
        processors=[*shared, *final],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # Created for each line: a test or a forked child may have replaced sys.stderr.
        logger_factory=lambda *_: _StderrLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_EscapingFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=max(level, logging.WARNING))


class _StderrLogger(structlog.PrintLogger):
    """Writes lines. A line that cannot be written is lost: a full disk must not stop the service that logs to it."""

    def msg(self, message: str) -> None:
        with contextlib.suppress(OSError):
            super().msg(message)

    log = debug = info = warn = warning = fatal = failure = err = error = critical = exception = msg


class _Quoted:
    """A string that the renderer writes in quotes, with escapes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return repr(self._text)


def _escape_values(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escapes the strings of a line, which may come from other processes: they could forge lines or change a terminal.

    The renderer writes other values as `repr` does, which escapes as well.
    """
    for key, value in event.items():
        if isinstance(value, str) and (escaped := printable(value)) != value:
            event[key] = escaped if key == "event" else _Quoted(value)
    return event


def _write_traceback(file: "IO[str]", exc_info: "ExcInfo") -> None:
    file.write("\n" + printable_lines("".join(traceback.format_exception(*exc_info)).rstrip("\n")))


class _EscapingFormatter(logging.Formatter):
    """Formats records of the standard library with escaped messages."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Formats the first line."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """Formats a traceback, which keeps its line breaks."""
        return printable_lines(super().formatException(ei))
