"""Measures what traces cost a call: processor time of caller and server together, in one process.

    python -m benchmarks.services.tracing [--calls 2000] [--rounds 5]

The modes alternate, each round of a mode is a new process, and the collector is another one. `off`: `telemetry.traces`
is empty. `outside`: it is set, and the call belongs to no trace. `inside`: the call is one of twenty in a trace, with a
span of the caller and one of the server, which are exported.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from concurrent import futures
from typing import Any

import grpc

from podrace import rpc, tracing
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.tournament.v1.tournament_pb2 import Tournament

MODES = ("off", "outside", "inside")
WARM_CALLS = 300
CALLS_OF_A_TRACE = 20
DEADLINE_SECONDS = 10.0


class Answers(pb_grpc.OrchestratorServiceServicer):
    """Answers one method at once."""

    async def GetTournament(self, request: Any, context: Any) -> Any:
        """Returns a tournament that has only an id."""
        return pb.GetTournamentResponse(tournament=Tournament(tournament_id=request.tournament_id))


@contextlib.asynccontextmanager
async def _stub() -> AsyncIterator[pb_grpc.OrchestratorServiceStub]:
    with tempfile.TemporaryDirectory(prefix="pt-") as folder:
        address = f"unix:{folder}/o.sock"
        descriptor = pb.DESCRIPTOR.services_by_name["OrchestratorService"]
        add = pb_grpc.add_OrchestratorServiceServicer_to_server
        config = rpc.ServerConfig(listen=address, grace_seconds=0.0)
        server = await rpc.Server.start(config, [rpc.Service(descriptor, add, Answers())])
        async with rpc.connect(address, pb.DESCRIPTOR) as channel:
            yield pb_grpc.OrchestratorServiceStub(channel)
        await server.drain()


async def _measure(mode: str, calls: int) -> float:
    """Returns microseconds of processor time for each call."""
    async with _stub() as stub:

        async def some(count: int) -> None:
            request = pb.GetTournamentRequest(tournament_id="cartpole-abc123")
            for begin in range(0, count, CALLS_OF_A_TRACE):
                with tracing.span("assignment") if mode == "inside" else contextlib.nullcontext():
                    for _ in range(min(CALLS_OF_A_TRACE, count - begin)):
                        await rpc.call(stub.GetTournament, request, deadline_seconds=DEADLINE_SECONDS)

        await some(WARM_CALLS)
        start = time.process_time()
        await some(calls)
        tracing.flush()
        return (time.process_time() - start) / calls * 1e6


def _collect() -> None:
    """Receives spans until the process is stopped; prints its port."""
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service

    handler = grpc.unary_unary_rpc_method_handler(
        lambda request, context: service.ExportTraceServiceResponse(),
        request_deserializer=service.ExportTraceServiceRequest.FromString,
        response_serializer=service.ExportTraceServiceResponse.SerializeToString,
    )
    server = grpc.server(futures.ThreadPoolExecutor(2))
    name = "opentelemetry.proto.collector.trace.v1.TraceService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"Export": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    server.wait_for_termination()


def main() -> None:
    """Prints the median and all rounds of each mode."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mode", choices=(*MODES, "collector"), help="what a child process does")
    parser.add_argument("--endpoint", default="")
    options = parser.parse_args()
    if options.mode == "collector":
        _collect()
    elif options.mode:
        if options.mode != "off":
            tracing.start(options.endpoint, service="benchmark")
        print(asyncio.run(_measure(options.mode, options.calls)))
    else:
        _compare(options.calls, options.rounds)


def _compare(calls: int, rounds: int) -> None:
    own = [sys.executable, "-m", "benchmarks.services.tracing"]
    found: dict[str, list[float]] = {mode: [] for mode in MODES}
    with subprocess.Popen([*own, "--mode", "collector"], stdout=subprocess.PIPE, text=True) as collector:
        assert collector.stdout is not None
        endpoint = f"http://127.0.0.1:{collector.stdout.readline().strip()}"
        try:
            for _ in range(rounds):
                for mode, figures in found.items():
                    command = [*own, "--mode", mode, "--endpoint", endpoint, "--calls", str(calls)]
                    figures.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
        finally:
            collector.kill()
    for mode, figures in found.items():
        ratio = statistics.median(one / off for one, off in zip(figures, found["off"], strict=True))
        rounded = " ".join(f"{one:.0f}" for one in figures)
        print(f"{mode:8} {statistics.median(figures):6.0f} us a call, {ratio:.2f} times off ({rounded})")
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
