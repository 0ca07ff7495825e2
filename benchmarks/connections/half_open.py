"""Measures the time from a half-open connection to the next renewal of a lease, with the settings of production.

    python -m benchmarks.connections.half_open --repeats 30 [--plain]

Leases of pods renew themselves over TLS, through proxies in front of one server. The connections are broken each at
another time after the last renewal, and the time ends with the next renewal that the lease has accepted. `--plain`
measures without TLS.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from google.protobuf.duration_pb2 import Duration

from agentpod.learner.lease import Lease
from agentpod.liveness.deadlines import percentile_99
from benchmarks.connections.fault_proxy import FaultProxy
from podrace import rpc, tls
from podrace.access.guard import Guard
from podrace.certificates.folder import AUTHORITY, CertificateFolder
from podrace.certificates.names import SpiffeName
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.telemetry import TelemetryConfig, configure_logging

LEASE_SECONDS = 10.0
"""Duration of the leases of an orchestrator; a third of it is the time between two renewals."""
ORPHAN_SECONDS = 600.0
CERTIFICATE_LIFETIME = timedelta(days=1)
LONGEST_SECONDS = 120.0


class _Orchestrator(pb_grpc.OrchestratorServiceServicer):
    """Grants every renewal."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease = Duration()
        self._lease.FromNanoseconds(round(lease_seconds * 1e9))

    async def RenewAssignment(self, request: Any, context: Any) -> pb.RenewAssignmentResponse:
        """Continues the assignment."""
        return pb.RenewAssignmentResponse(directive=pb.DIRECTIVE_CONTINUE, lease_duration=self._lease)


async def _measure_one(target: str, wait_seconds: float) -> float:
    """Breaks the connection of a lease some time after a renewal; returns the seconds to the next one."""
    renewed = asyncio.Event()
    async with FaultProxy(target) as proxy, rpc.connect(proxy.address, pb.DESCRIPTOR) as channel:
        stub: Any = pb_grpc.OrchestratorServiceStub(channel)
        assignment = pb.Assignment(assignment_id="t-a0.1", lease_epoch=1)
        lease = Lease(stub, assignment, orphan_seconds=ORPHAN_SECONDS, on_token=lambda _: renewed.set())
        async with asyncio.timeout(LONGEST_SECONDS), lease:
            await renewed.wait()
            await asyncio.sleep(wait_seconds)
            renewed.clear()
            proxy.half_open()
            broken = time.monotonic()
            await renewed.wait()
            return time.monotonic() - broken


async def measure(repeats: int, lease_seconds: float = LEASE_SECONDS) -> list[float]:
    """Measures all repeats at once.

    Args:
        repeats: Number of leases.
        lease_seconds: Duration of each.

    Returns:
        Seconds from the fault to the next renewal, one for each repeat.

    Raises:
        TimeoutError: A lease was not renewed within LONGEST_SECONDS.
    """
    service = rpc.Service(
        pb.DESCRIPTOR.services_by_name["OrchestratorService"],
        pb_grpc.add_OrchestratorServiceServicer_to_server,
        _Orchestrator(lease_seconds),
    )
    config = rpc.ServerConfig(listen="127.0.0.1:0", grace_seconds=0.0)
    server = await rpc.Server.start(config, [service], guard=Guard.of_anyone())
    waits = [lease_seconds / 3 * index / repeats for index in range(repeats)]
    try:
        return await asyncio.gather(*(_measure_one(server.address, wait) for wait in waits))
    finally:
        await server.drain()


def make_certificates(folder: Path) -> Mapping[str, str]:
    """Makes an authority and a certificate for this machine; returns the variables with which podrace.tls uses them."""
    holder, now = SpiffeName("orchestrator"), datetime.now(UTC)
    CertificateFolder.create(folder, now).add(holder, ["127.0.0.1"], now, CERTIFICATE_LIFETIME)
    return {
        tls.CERTIFICATE: str(folder / holder.path / "tls.crt"),
        tls.KEY: str(folder / holder.path / "tls.key"),
        tls.AUTHORITY: str(folder / AUTHORITY / "ca.crt"),
    }


def main() -> None:
    """Prints median, 99th percentile and the longest time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--plain", action="store_true", help="without TLS")
    options = parser.parse_args()
    configure_logging(TelemetryConfig(log_level="error"))
    with tempfile.TemporaryDirectory(prefix="half-open-") as name:
        if not options.plain:
            os.environ.update(make_certificates(Path(name) / "certs"))
        found = asyncio.run(measure(options.repeats))
    figures = {"median": statistics.median(found), "p99": percentile_99(found), "most": max(found)}
    print(f"repeats {len(found)}", *(f"{name} {seconds:.1f} s" for name, seconds in figures.items()), sep="  ")


if __name__ == "__main__":
    main()
