"""Requests that never become complete occupy little memory at the port for health checks."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from incomplete_requests import IncompleteRequests

HEALTH = "/grpc.health.v1.Health/Check"
SERVICE = """
import asyncio, sys
from podrace import rpc
from podrace.access.authenticators.token_file import StaticTokenAuthenticator
from podrace.access.guard import Guard
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc

async def main():
    config = rpc.ServerConfig(listen="127.0.0.1:0", health_listen="127.0.0.1:0")
    add = pb_grpc.add_OrchestratorServiceServicer_to_server
    service = rpc.Service(
        pb.DESCRIPTOR.services_by_name["OrchestratorService"], add, pb_grpc.OrchestratorServiceServicer()
    )
    server = await rpc.Server.start(config, [service], guard=Guard([StaticTokenAuthenticator("secret")]))
    print(server.address, server.health_address, flush=True)
    await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""


@pytest.fixture
def server() -> Iterator[tuple[str, str, int]]:
    """Address, address of health checks, and process of a server."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process: subprocess.Popen[str] = subprocess.Popen([sys.executable, "-c", SERVICE], **pipes)
    assert process.stdout is not None
    address, health = process.stdout.readline().split()
    yield address, health, process.pid
    process.kill()
    process.communicate()


def memory_mib(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


async def check(address: str) -> str:
    async with grpc.aio.insecure_channel(address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20.0)
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


async def test_incomplete_requests_occupy_little_memory(server: tuple[str, str, int]) -> None:
    address, health, process = server
    await check(health)
    before, grown = memory_mib(process), []
    calls = [IncompleteRequests(health, HEALTH, 100) for _ in range(3)]
    for _ in range(2):
        for each in calls:
            await asyncio.to_thread(each.send, seconds=1.0)
            grown.append(memory_mib(process) - before)
    assert max(grown) < 60
    assert await check(health) == "SERVING"
    for each in calls:
        each.close()
    assert await check(address) == "SERVING"
