"""Measures the time from a half-open connection to the next answered call, with the settings of production.

    python -m benchmarks.connections.half_open --repeats 20

All channels are broken at once, each at another time after its last call.
"""

import argparse
import asyncio
import statistics
import time
from typing import Any

from agentpod.liveness.deadlines import percentile_99
from benchmarks.connections.fault_proxy import FaultProxy
from podrace import rpc
from podrace.access.guard import Guard
from podrace.errors import PodraceError
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc

RENEW_SECONDS = 3.3
"""Time between two renewals of a lease of 10 s."""
DEADLINE_SECONDS = 5.0


class _Orchestrator(pb_grpc.OrchestratorServiceServicer):
    """Answers every renewal."""

    async def RenewAssignment(self, request: Any, context: Any) -> pb.RenewAssignmentResponse:
        """Continues the assignment."""
        return pb.RenewAssignmentResponse(directive=pb.DIRECTIVE_CONTINUE)


async def _measure_one(target: str, wait_seconds: float) -> float:
    """Renews once, breaks the connection after a while, and returns the seconds to the next answer."""
    async with FaultProxy(target) as proxy, rpc.connect(proxy.address, pb.DESCRIPTOR) as channel:
        stub: Any = pb_grpc.OrchestratorServiceStub(channel)
        request = pb.RenewAssignmentRequest(assignment_id="t-a0.1", lease_epoch=1)
        await rpc.call(stub.RenewAssignment, request, deadline_seconds=30.0)
        proxy.half_open()
        broken = time.monotonic()
        await asyncio.sleep(wait_seconds)
        while True:
            try:
                await rpc.call(stub.RenewAssignment, request, deadline_seconds=DEADLINE_SECONDS)
                return time.monotonic() - broken
            except PodraceError:
                await asyncio.sleep(RENEW_SECONDS)


async def _measure(repeats: int) -> list[float]:
    service = rpc.Service(
        pb.DESCRIPTOR.services_by_name["OrchestratorService"],
        pb_grpc.add_OrchestratorServiceServicer_to_server,
        _Orchestrator(),
    )
    config = rpc.ServerConfig(listen="127.0.0.1:0", grace_seconds=0.0)
    server = await rpc.Server.start(config, [service], guard=Guard.of_anyone())
    waits = [RENEW_SECONDS * index / repeats for index in range(repeats)]
    found = await asyncio.gather(*(_measure_one(server.address, wait) for wait in waits))
    await server.drain()
    return found


def main() -> None:
    """Prints median and 99th percentile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    found = asyncio.run(_measure(parser.parse_args().repeats))
    print(f"repeats {len(found)}  median {statistics.median(found):.1f} s  p99 {percentile_99(found):.1f} s")


if __name__ == "__main__":
    main()
