"""A client that opens or sends too much is limited, and the service continues to serve others."""

import contextlib
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from podrace import rpc
from podrace.access.open_streams import MOST_OF_ADDRESS
from podrace.rpc.server import LARGEST_HEADERS_BYTES, LARGEST_MESSAGE_BYTES, ServerConfig, server_options

CHECK = health_pb2.HealthCheckRequest()
SERVICE = """
import asyncio, os, resource, sys
count = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))
from podrace import rpc
from podrace.rpc import descriptors

async def main():
    descriptors.report_exhaustion.__defaults__ = (0.05,)
    server = await rpc.Server.start(rpc.ServerConfig(listen="127.0.0.1:0"), [])
    print(server.address, flush=True)
    held = []
    while command := (await asyncio.to_thread(sys.stdin.readline)).strip():
        while command == "fill" and not descriptors.is_exhausted():
            held.append(os.dup(0))
        while command == "free" and held:
            os.close(held.pop())
    await server.drain()

asyncio.run(main())
"""


@contextlib.contextmanager
def service_with_descriptors(count: int) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A service in a process that may open `count` files; yields its address and the process."""
    process = subprocess.Popen(
        # It limits itself: this process has threads, and code of it between fork and exec could hang or crash.
        [sys.executable, "-c", SERVICE, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield address_in(process.stdout), process
    finally:
        process.kill()
        process.communicate()


def address_in(output: Iterable[str]) -> str:
    """The address that a service prints when it serves; fails with its output if it ends before."""
    before = []
    for line in output:
        if line.startswith("127.0.0.1:"):
            return line.strip()
        before.append(line)
    raise AssertionError(f"the service did not start: {''.join(before)}")


def connections(address: str, count: int) -> list[socket.socket]:
    host, _, port = address.rpartition(":")
    return [socket.create_connection((host, int(port)), timeout=10.0) for _ in range(count)]


def closed_by_peer(one: socket.socket, deadline: float) -> bool:
    """Whether the service closes a connection before a time; an accepted one gets the settings of HTTP/2 first."""
    one.settimeout(max(0.05, deadline - time.monotonic()))
    try:
        while one.recv(1024):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def say(process: "subprocess.Popen[str]", command: str) -> None:
    assert process.stdin is not None
    process.stdin.write(command + "\n")
    process.stdin.flush()


def log_until(process: "subprocess.Popen[str]", text: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"the service ended without logging {text!r}")


async def test_connections_beyond_the_limit_are_closed_and_others_are_served():
    with service_with_descriptors(80) as (address, _):
        opened = connections(address, 100)
        deadline = time.monotonic() + 1.0
        refused = [one for one in opened if closed_by_peer(one, deadline)]
        assert 40 <= len(refused) < 100
        for one in opened:
            one.close()
        await rpc.wait_until_serving(address, deadline_seconds=20)


async def test_a_service_without_file_descriptors_logs_it_and_serves_when_some_are_free():
    with service_with_descriptors(80) as (address, process):
        say(process, "fill")
        waiting = connections(address, 5)
        log_until(process, "out of file descriptors")
        for one in waiting:
            one.close()
        say(process, "free")
        log_until(process, "file descriptors are free again")
        await rpc.wait_until_serving(address, deadline_seconds=20)


async def check(address: str, metadata: tuple[tuple[str, str], ...] = (), text: str = "") -> str:
    """Calls the health service; returns the name of the status."""
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=text)
            await health_pb2_grpc.HealthStub(channel).Check(request, metadata=metadata, timeout=10.0)
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return "OK"


async def test_large_headers_and_large_messages_are_refused():
    server = await rpc.Server.start(ServerConfig(grace_seconds=0.0), [])
    assert await check(server.address, (("x", "y" * (LARGEST_HEADERS_BYTES // 2)),)) == "OK"
    assert await check(server.address, (("x", "y" * (2 * LARGEST_HEADERS_BYTES)),)) == "RESOURCE_EXHAUSTED"
    assert await check(server.address, text="y" * (LARGEST_MESSAGE_BYTES + 1)) == "RESOURCE_EXHAUSTED"
    assert await check(server.address) == "OK"
    await server.drain()


async def test_an_idle_connection_is_closed_and_the_next_call_opens_another():
    server = await rpc.Server.start(ServerConfig(grace_seconds=0.0, idle_seconds=0.2), [])
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        await stub.Check(CHECK, timeout=10.0)
        while channel.get_state() is grpc.ChannelConnectivity.READY:
            await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        await stub.Check(CHECK, timeout=10.0, wait_for_ready=True)
    await server.drain()


async def test_an_old_connection_is_replaced_without_a_failed_call():
    server = await rpc.Server.start(ServerConfig(grace_seconds=0.0, age_seconds=0.1), [])
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(CHECK)
        await watch.read()
        begin = time.monotonic()
        while time.monotonic() - begin < 1.0:
            await stub.Check(CHECK, timeout=10.0)
        assert not watch.done(), "a running stream survives the age of its connection"
        watch.cancel()
    await server.drain()


@pytest.mark.parametrize("port", ["service", "health"])
async def test_health_watches_of_an_address_are_limited_and_checks_are_not(port):
    server = await rpc.Server.start(ServerConfig(grace_seconds=0.0, health_listen="127.0.0.1:0"), [])
    address = server.address if port == "service" else server.health_address
    async with contextlib.AsyncExitStack() as stack:
        options = [("grpc.use_local_subchannel_pool", 1)]
        one, other = [
            await stack.enter_async_context(grpc.aio.insecure_channel(address, options=options)) for _ in range(2)
        ]
        watches = [health_pb2_grpc.HealthStub(one).Watch(CHECK) for _ in range(MOST_OF_ADDRESS)]
        for watch in watches:
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            # Over another connection of the same address.
            await health_pb2_grpc.HealthStub(other).Watch(CHECK).read()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert refused.value.details() == (
            "127.0.0.1 has 64 health watches open, and a server allows one address no more; end one of them, or call"
            " Check"
        )
        assert await check(address) == "OK"
        # One that ends makes room. The server may learn of it after the next call has arrived.
        watches.pop().cancel()
        while True:
            watch = health_pb2_grpc.HealthStub(other).Watch(CHECK)
            with contextlib.suppress(grpc.aio.AioRpcError):
                assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
                break
        for each in (*watches, watch):
            each.cancel()
    await server.drain()


async def test_a_health_watch_keeps_no_large_name_in_memory():
    server = await rpc.Server.start(ServerConfig(grace_seconds=0.0), [])
    async with grpc.aio.insecure_channel(server.address) as channel:
        for length, answer in ((1000, "OK"), (100_000, "INVALID_ARGUMENT")):
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="y" * length))
            try:
                assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
                found = "OK"
            except grpc.aio.AioRpcError as error:
                found = error.code().name
            assert found == answer
            watch.cancel()
    await server.drain()


@pytest.mark.parametrize(("descriptors", "most"), [(100, 75), (10**6, 20_000)])
def test_connections_leave_file_descriptors_to_the_service(monkeypatch, descriptors, most):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (descriptors, descriptors))
    assert ("grpc.max_allowed_incoming_connections", most) in server_options(ServerConfig())
