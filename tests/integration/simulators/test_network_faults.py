"""A stream of steps to a simulator service ends in a bounded time when the network fails, and can be opened again."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from benchmarks.connections.fault_proxy import FaultProxy
from podrace.access.guard import Guard
from podrace.errors import DeadlineExceeded, PodraceError, Unavailable
from podrace.rpc import Server, ServerConfig
from simulators import remote
from simulators.config import Limits
from simulators.service import SimulatorServicer, services

QUICK = remote.Deadlines(connect_seconds=1.0, open_seconds=2.0, step_seconds=2.0)
BOUND_SECONDS = 10.0
ACTION = torch.zeros(2, dtype=torch.int64)


@pytest.fixture
async def proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[FaultProxy]:
    """A proxy in front of a simulator service that accepts callers without tokens only."""
    monkeypatch.setenv("PODRACE_TOKEN_FILE", str(tmp_path / "token"))
    config = ServerConfig(listen="127.0.0.1:0", grace_seconds=0.0)
    server = await Server.start(config, services(SimulatorServicer(Limits())), guard=Guard.of_anyone())
    async with FaultProxy(server.address) as proxy:
        yield proxy
    await server.drain()


def opened(proxy: FaultProxy) -> remote.RemoteSimulator:
    return remote.make(f"grpc://{proxy.address}", 2, {"id": "cartpole", "plane": "grpc"}, "cpu", deadlines=QUICK)


async def opened_again(proxy: FaultProxy) -> remote.RemoteSimulator:
    """Opens a batch as a worker does that is opened again: until it succeeds."""
    async with asyncio.timeout(BOUND_SECONDS):
        while True:
            try:
                return await asyncio.to_thread(opened, proxy)
            except PodraceError:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("fault", ["drop", "half_open", "one_way", "reset", "refuse"])
async def test_a_step_fails_in_a_bounded_time_and_the_next_stream_works(proxy: FaultProxy, fault: str) -> None:
    simulator = await asyncio.to_thread(opened, proxy)
    await asyncio.to_thread(simulator.reset, 1)
    getattr(proxy, fault)()
    begin = time.monotonic()
    with pytest.raises(Unavailable if fault in ("reset", "refuse") else DeadlineExceeded):
        await asyncio.to_thread(simulator.step, ACTION)
    await asyncio.to_thread(simulator.close)
    assert time.monotonic() - begin < BOUND_SECONDS
    proxy.heal()
    again = await opened_again(proxy)
    await asyncio.to_thread(again.reset, 1)
    assert (await asyncio.to_thread(again.step, ACTION)).reward.tolist() == [1.0, 1.0]
    await asyncio.to_thread(again.close)


@pytest.mark.parametrize("fault", ["drop", "one_way", "refuse"])
async def test_a_service_behind_a_broken_network_is_reported_in_a_bounded_time(proxy: FaultProxy, fault: str) -> None:
    getattr(proxy, fault)()
    begin = time.monotonic()
    with pytest.raises(Unavailable, match="no simulator service at"):
        await asyncio.to_thread(opened, proxy)
    assert time.monotonic() - begin < BOUND_SECONDS


async def test_a_slow_network_only_delays(proxy: FaultProxy) -> None:
    proxy.delay(0.05)
    simulator = await asyncio.to_thread(opened, proxy)
    await asyncio.to_thread(simulator.reset, 1)
    begin = time.monotonic()
    await asyncio.to_thread(simulator.step, ACTION)
    assert time.monotonic() - begin >= 0.1
    await asyncio.to_thread(simulator.close)
