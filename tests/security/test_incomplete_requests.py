"""Requests that never become complete occupy little memory of a server, and callers at other ports are served."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from incomplete_requests import IncompleteRequests

from podrace import rpc
from podrace.access.rules import rule_of
from podrace.errors import DeadlineExceeded, ResourceExhausted
from podrace.rpc import receiving
from podrace.rpc.receiving import PublicRequests
from podrace.rpc.server import ServerConfig

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


@pytest.mark.parametrize(
    ("port", "method", "most_mib"),
    [
        ("health", HEALTH, 60),
        ("service", HEALTH, 150),
        ("service", "/podrace.orchestrator.v1.OrchestratorService/ListTournaments", 60),
        ("service", "/podrace.Unknown/Method", 60),
    ],
)
async def test_incomplete_requests_of_a_caller_without_credentials_occupy_little_memory(server, port, method, most_mib):
    address, health, process = server
    target = health if port == "health" else address
    await check(target)
    before, grown = memory_mib(process), []
    calls = [IncompleteRequests(target, method, 100) for _ in range(3)]
    for _ in range(2):
        for each in calls:
            await asyncio.to_thread(each.send, seconds=1.0)
            grown.append(memory_mib(process) - before)
    assert max(grown) < most_mib
    assert await check(health) == "SERVING"
    for each in calls:
        each.close()
    assert await check(address) == "SERVING"


async def test_a_call_without_a_request_is_refused():
    async def nothing():
        for request in ():
            yield request

    server = await rpc.Server.start(ServerConfig(grace_seconds=0.0), [])
    async with grpc.aio.insecure_channel(server.address) as channel:
        for method, code in (
            (HEALTH, grpc.StatusCode.INVALID_ARGUMENT),
            ("/podrace.Unknown/Method", grpc.StatusCode.UNIMPLEMENTED),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.stream_unary(method)(nothing(), timeout=10.0)
            assert refused.value.code() is code
    await server.drain()


async def test_names_of_unknown_methods_are_not_kept():
    server = await rpc.Server.start(ServerConfig(grace_seconds=0.0), [])
    async with grpc.aio.insecure_channel(server.address) as channel:
        before = rule_of.cache_info().currsize
        for number in range(10):
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary(f"/podrace.Unknown/Method{number}")(b"", timeout=10.0)
        assert rule_of.cache_info().currsize == before
    await server.drain()


async def test_each_address_has_few_requests_received_at_a_time_and_others_are_served_meanwhile():
    requests, arrived, begun = PublicRequests(seconds=20.0), asyncio.Event(), []

    async def read() -> str:
        begun.append(1)
        await arrived.wait()
        return "request"

    async def complete() -> str:
        return "other"

    calls = [
        asyncio.create_task(requests.receive(f"ipv4:10.0.0.7:{number}", read))
        for number in range(receiving.MOST_CALLS_OF_ADDRESS)
    ]
    while len(begun) < receiving.MOST_PUBLIC_OF_ADDRESS:
        await asyncio.sleep(0)
    assert await requests.receive("ipv4:10.0.0.8:1", complete) == "other"
    with pytest.raises(ResourceExhausted, match=r"10\.0\.0\.7"):
        await requests.receive("ipv4:10.0.0.7:9", complete)
    assert len(begun) == receiving.MOST_PUBLIC_OF_ADDRESS
    arrived.set()
    assert set(await asyncio.gather(*calls)) == {"request"}
    assert await requests.receive("ipv4:10.0.0.7:9", complete) == "other"


async def test_a_public_request_that_does_not_arrive_in_time_is_refused():
    with pytest.raises(DeadlineExceeded, match="did not arrive within"):
        await PublicRequests(seconds=0.01).receive("ipv4:10.0.0.7:1", asyncio.Event().wait)
