"""What a service tells about itself: structured logs that carry the tournament, agent and pod ids, and Prometheus
metrics.

Logs go to stderr, as lines for people or as JSON. Metrics live in the process-wide registry of prometheus_client; each
room declares its own beside the code that moves them.
"""

import logging
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import prometheus_client
import structlog

from podrace.errors import InvalidArgument, Unavailable

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication


@dataclass(frozen=True)
class TelemetryConfig:
    """What is told, and where."""

    log_format: str = "console"
    """`console` for people, `json` for machines."""
    log_level: str = "info"
    """`debug`, `info`, `warning` or `error`."""
    metrics_listen: str = "127.0.0.1:0"
    """Address of the Prometheus endpoint (port 0: any free one, told in the log); empty: none."""


Page = Callable[[], tuple[str, bytes]]
"""Content type and body; called from a thread of the metrics endpoint."""


def start(config: TelemetryConfig, *, service: str, pages: Mapping[str, Page] | None = None, **ids: str) -> str:
    """Sets up logging and the metrics endpoint of this process and binds `ids` to every line it logs.

    Args:
        config: What is told, and where.
        service: What this process is, for the log.
        pages: More that the endpoint answers, by path.
        ids: Bound to every line.

    Returns:
        The address of the metrics endpoint, empty if there is none.

    Raises:
        InvalidArgument: The metrics address has no port, or one that cannot be.
        Unavailable: The metrics address cannot be bound.
    """
    configure_logging(config)
    structlog.contextvars.bind_contextvars(service=service, **ids)
    if not config.metrics_listen:
        return ""
    host, _, port = config.metrics_listen.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise InvalidArgument(f"metrics_listen = {config.metrics_listen!r}: expected host:port, the port up to 65535")
    try:
        server, _ = prometheus_client.start_http_server(int(port), addr=host)
    except OSError as error:
        raise Unavailable(
            f"cannot serve metrics on {config.metrics_listen}: {error.strerror}; choose another"
        ) from None
    if pages:
        server.set_app(_with_pages(prometheus_client.make_wsgi_app(), pages))
    return f"{host}:{server.server_port}"


def _with_pages(metrics: "WSGIApplication", pages: Mapping[str, Page]) -> "WSGIApplication":
    def answer(environ: dict[str, Any], start_response: "StartResponse") -> Iterable[bytes]:
        page = pages.get(environ["PATH_INFO"])
        if page is None:
            return metrics(environ, start_response)
        content_type, body = page()
        start_response("200 OK", [("Content-Type", content_type), ("Content-Length", str(len(body)))])
        return [body]

    return answer


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
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    )
    structlog.configure(
        processors=[*shared, *final],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # Looked up at each line: a test or a forked child may have replaced sys.stderr.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(
        stream=sys.stderr, level=max(level, logging.WARNING), format="%(levelname)s %(name)s: %(message)s"
    )
