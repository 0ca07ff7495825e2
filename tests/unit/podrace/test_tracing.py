"""A trace follows a call from the caller to the server, has no secrets, and costs nothing while it is off."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from podrace import rpc, tracing
from podrace.errors import FailedPrecondition, NotFound
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

SECRET = "a-secret-token"
METHOD = "/podrace.orchestrator.v1.OrchestratorService/GetTournament"


@pytest.fixture
def spans() -> Iterator[Any]:
    """Turns tracing on; returns what was exported."""
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter").InMemorySpanExporter()
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    provider = trace.TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(trace.export.SimpleSpanProcessor(memory))
    tracing.use(provider)
    yield memory.get_finished_spans
    tracing.use(None)


class Server:
    """A method that answers within the trace of the caller, and records what it was called with."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure, self.calls = failure, []  # type: ignore[var-annotated]

    async def __call__(self, request: Any, *, timeout: float, metadata: Any = None) -> Any:
        self.calls.append(metadata)
        with tracing.answering(METHOD, (("authorization", f"Bearer {SECRET}"), *(metadata or ()))):
            if self.failure:
                raise self.failure
            return pb.GetTournamentResponse()


def call(server: Server, request: Any = None) -> None:
    asyncio.run(rpc.call(server, request or pb.GetTournamentRequest(tournament_id="t"), deadline_seconds=1.0))


def test_a_call_within_a_span_is_one_trace_with_the_server(spans: Any) -> None:
    with tracing.span("assignment", agent_id="a0", tournament_id=""):
        call(Server())
    by_kind = {one.kind.name: one for one in spans()}
    root, client, server = (by_kind[name] for name in ("INTERNAL", "CLIENT", "SERVER"))
    assert {one.context.trace_id for one in spans()} == {root.context.trace_id}
    assert (client.parent.span_id, server.parent.span_id) == (root.context.span_id, client.context.span_id)
    assert [one.name for one in (root, client, server)] == ["assignment", "GetTournament", "GetTournament"]
    assert dict(root.attributes) == {"agent_id": "a0"}


def test_no_attribute_has_a_token_or_the_message_of_an_error(spans: Any) -> None:
    with pytest.raises(NotFound), tracing.span("assignment"):
        call(Server(NotFound(f"no tournament {SECRET}")))
    assert spans()
    assert SECRET not in "".join(one.to_json() for one in spans())
    assert {one.status.description for one in spans()} == {"NOT_FOUND"}


def test_calls_outside_of_a_trace_and_renewals_are_not_traced(spans: Any) -> None:
    server = Server()
    call(server)
    with tracing.span("assignment"):
        call(server, pb.RenewAssignmentRequest())
    assert server.calls == [None, None]
    assert [one.name for one in spans()] == ["assignment"]


@pytest.mark.parametrize("carried", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "x" * 1000])
def test_a_call_with_a_malformed_trace_is_answered(spans: Any, carried: str) -> None:
    with tracing.answering(METHOD, ((tracing.TRACEPARENT, carried),)):
        pass
    assert all(one.parent is None for one in spans())


def test_off_nothing_is_sent_and_every_span_is_the_same_object() -> None:
    server = Server()
    with tracing.span("assignment", agent_id="a0"):
        call(server)
    assert server.calls == [None]
    assert tracing.span("a") is tracing.calling(pb.GetTournamentRequest()) is tracing.answering(METHOD, ())
    tracing.flush()


def test_a_collector_without_the_packages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(FailedPrecondition, match=r"podrace\[tracing\]"):
        tracing.start("http://127.0.0.1:4317", service="test")
