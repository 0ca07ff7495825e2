"""Sends traces by OpenTelemetry, if `telemetry.traces` names a collector: one trace for each assignment.

The leader of a pod opens the trace of an assignment. Its calls of the orchestrator and of the leaderboard carry the
trace in their metadata (`traceparent`, W3C Trace Context), and both answer within it. Renewals of leases, and calls
within a pod, are not traced: there are too many.

    with tracing.span("assignment", agent_id=agent_id):
        ...                              # calls of podrace.rpc.call here are part of the trace

Attributes are ids and names of methods and error codes. Tokens, metadata, requests and messages of errors are never
among them. Without a collector nothing is imported, and a span is an empty context manager.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from podrace.errors import FailedPrecondition, PodraceError

PACKAGES = ("podrace.orchestrator.v1", "podrace.leaderboard.v1")
"""Contracts whose calls are traced."""
UNTRACED = frozenset({"RenewAssignment"})
TRACEPARENT = "traceparent"
LONGEST_TRACEPARENT = 100
FLUSH_MILLISECONDS = 2000
EXPORT_MILLISECONDS = 1000
"""Time between two exports."""
Metadata = Sequence[tuple[str, str | bytes]]
_NOTHING: AbstractContextManager[Mapping[str, Any]] = nullcontext({})


class _Tracing:
    """The tracer of this process; None: off."""

    tracer: Any = None
    provider: Any = None


def start(endpoint: str, *, service: str, **ids: str) -> None:
    """Starts to send the traces of this process. Call it after the last fork.

    Args:
        endpoint: Address of an OTLP collector for gRPC, for instance `http://collector:4317`; `https://` for TLS.
        service: Name of this process.
        ids: Attributes of the process.

    Raises:
        FailedPrecondition: The packages of podrace[tracing] are not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise FailedPrecondition(
            f"telemetry.traces = {endpoint!r}: {error.name} is not installed; install podrace[tracing], or leave it"
            " empty"
        ) from None
    provider = TracerProvider(resource=Resource({"service.name": service, **ids}), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=FLUSH_MILLISECONDS // 1000)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=EXPORT_MILLISECONDS))
    use(provider)


def use(provider: Any) -> None:
    """Makes a tracer provider of the SDK that of this process; None: tracing is off."""
    _Tracing.provider = provider
    _Tracing.tracer = provider.get_tracer("podrace") if provider else None


def flush() -> None:
    """Sends what has not been sent; blocks for two seconds at most."""
    if _Tracing.provider:
        _Tracing.provider.force_flush(FLUSH_MILLISECONDS)


def span(name: str, **attributes: str) -> AbstractContextManager[Any]:
    """Opens a span within the current one, or begins a trace."""
    return _span(name, None, "INTERNAL", attributes) if _Tracing.tracer else _NOTHING


def calling(request: Any) -> AbstractContextManager[Mapping[str, Any]]:
    """Opens the span of a call, and yields the keyword arguments by which the call carries it.

    Calls outside of a trace begin none.

    Args:
        request: Message of the call.
    """
    if not _Tracing.tracer:
        return _NOTHING
    return _calling(request)


def answering(method: str, metadata: Metadata | None) -> AbstractContextManager[Any]:
    """Opens the span of a call that a server answers, if its metadata carries a trace.

    Args:
        method: `/package.Service/Method`.
        metadata: Metadata of the call.
    """
    if not _Tracing.tracer:
        return _NOTHING
    carried = next((value for key, value in metadata or () if key == TRACEPARENT), "")
    if not isinstance(carried, str) or not 0 < len(carried) <= LONGEST_TRACEPARENT:
        return _NOTHING
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parent = TraceContextTextMapPropagator().extract({TRACEPARENT: carried})
    return _span(method.rpartition("/")[2], parent, "SERVER", {"rpc.system": "grpc", "rpc.method": method})


@contextlib.contextmanager
def _calling(request: Any) -> Iterator[Mapping[str, Any]]:
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    method = request.DESCRIPTOR.name.removesuffix("Request")
    traced = request.DESCRIPTOR.file.package in PACKAGES and method not in UNTRACED
    if not traced or not get_current_span().get_span_context().is_valid:
        yield {}
        return
    with _span(method, None, "CLIENT", {"rpc.system": "grpc"}):
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        yield {"metadata": ((TRACEPARENT, carrier[TRACEPARENT]),)}


@contextlib.contextmanager
def _span(name: str, parent: Any, kind: str, attributes: Mapping[str, str]) -> Iterator[Any]:
    from opentelemetry.trace import SpanKind, Status, StatusCode

    opened = _Tracing.tracer.start_as_current_span(
        name,
        context=parent,
        kind=SpanKind[kind],
        attributes={key: value for key, value in attributes.items() if value},
        record_exception=False,
        set_status_on_exception=False,
    )
    with opened as current:
        try:
            yield current
        except PodraceError as error:
            # Messages of errors may quote what a caller sent.
            current.set_status(Status(StatusCode.ERROR, error.code))
            raise
        except Exception:
            current.set_status(Status(StatusCode.ERROR, "INTERNAL"))
            raise
