"""One assignment is one trace across the pod, the orchestrator and the leaderboard."""

from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest
from homes import Home

pytestmark = pytest.mark.e2e
SERVICES = {"learner", "orchestrator", "leaderboard"}


class Collector:
    """Receives spans as a collector of OpenTelemetry does."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []

    def export(self, request: Any, _: Any) -> Any:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

        for each in request.resource_spans:
            names = {one.key: one.value.string_value for one in each.resource.attributes}
            for scope in each.scope_spans:
                self.spans += [(names["service.name"], one) for one in scope.spans]
        return ExportTraceServiceResponse()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    found = Collector()
    handler = grpc.unary_unary_rpc_method_handler(
        found.export,
        request_deserializer=service.ExportTraceServiceRequest.FromString,
        response_serializer=service.ExportTraceServiceResponse.SerializeToString,
    )
    name = "opentelemetry.proto.collector.trace.v1.TraceService"
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"Export": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    for program in ("ORCHESTRATOR", "LEADERBOARD"):
        monkeypatch.setenv(f"PODRACE_{program}__TELEMETRY__TRACES", f"http://127.0.0.1:{port}")
    yield found
    server.stop(None).wait()


def test_one_assignment_is_one_trace_across_three_processes(home: Home, collector: Collector) -> None:
    code, _, err = home.run("train", str(home.spec("environment_steps = 8192", pool="maximum_pods = 1")))
    assert code == 0, err
    traces: dict[bytes, list[tuple[str, Any]]] = {}
    for service, one in collector.spans:
        traces.setdefault(one.trace_id, []).append((service, one))
    assert traces
    whole = [found for found in traces.values() if {service for service, _ in found} == SERVICES]
    assert whole, {name: len(found) for name, found in traces.items()}
    (root,) = [(service, one) for service, one in whole[0] if not one.parent_span_id]
    assert (root[0], root[1].name) == ("learner", "assignment")
    assert {"assignment_id", "agent_id", "tournament_id"} == {one.key for one in root[1].attributes}
    names = {(service, one.name) for service, one in whole[0]}
    assert {("leaderboard", "SubmitCandidate"), ("orchestrator", "CompleteAssignment")} <= names
    text = str(collector.spans).lower()
    assert not any(word in text for word in ("bearer", "authorization", "token"))
