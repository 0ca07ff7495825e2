"""Plugin services behind a fault proxy: each failed call ends in a bounded time, and a network that is back is used.

If calls are executed twice and overtake each other, each caller gets the answer to its own request, once.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from lossy_mesh import Losses, LossyCalls

from benchmarks.connections.fault_proxy import FaultProxy
from leaderboard.config import PluginConfig
from leaderboard.plugins.plugin_pool import JUDGEMENT, PROPOSAL, PluginMethod, PluginPool, PreparedRequest
from podrace import rpc
from podrace.access.guard import Guard
from podrace.evolution.v1 import evolution_pb2 as pb
from podrace.evolution.v1 import evolution_pb2_grpc as pb_grpc
from podrace.limits.config import EVERYTHING
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec

ANSWER_SECONDS = 1.0
BOUND_SECONDS = 5.0
METHODS = [PROPOSAL, JUDGEMENT]


class Plugin(pb_grpc.EvolutionServiceServicer):
    """A generator and an updater."""

    async def ProposeAgent(self, request: Any, context: Any) -> pb.ProposeAgentResponse:
        return pb.ProposeAgentResponse(fresh={}, reason=request.tournament_id)

    async def JudgeCandidate(self, request: Any, context: Any) -> pb.JudgeCandidateResponse:
        return pb.JudgeCandidateResponse(reason=request.tournament_id)


@pytest.fixture
async def proxy() -> AsyncIterator[FaultProxy]:
    service = rpc.Service(
        pb.DESCRIPTOR.services_by_name["EvolutionService"],
        pb_grpc.add_EvolutionServiceServicer_to_server,
        Plugin(),
    )
    config = rpc.ServerConfig(listen="127.0.0.1:0", grace_seconds=0.0)
    server = await rpc.Server.start(config, [service], guard=Guard.of_anyone())
    async with FaultProxy(server.address) as proxy:
        yield proxy
    await server.drain()


class Clock:
    """The clock of the circuit breakers: a pause has ended by the next call."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1000.0
        return self.now


Call = Callable[[PluginMethod[Any]], Awaitable[str]]
"""Calls a plugin and returns what went wrong; empty: nothing."""


@pytest.fixture
async def call(proxy: FaultProxy, tmp_path: Path) -> AsyncIterator[Call]:
    pool = PluginPool(PluginConfig(), tmp_path, EVERYTHING, Clock())
    name = f"grpc://{proxy.address}"
    evolution = EvolutionSpec(generator=name, updater=name)
    evolution.answer_duration.FromNanoseconds(round(ANSWER_SECONDS * 1e9))

    async def called(method: PluginMethod[Any]) -> str:
        async def prepare() -> PreparedRequest[Any]:
            return PreparedRequest(method.request(), lambda answer: None)

        begin = time.monotonic()
        reply = await pool.call(method, evolution, prepare)
        assert time.monotonic() - begin < BOUND_SECONDS, "a plugin never delays the tournament for long"
        return reply.problem

    yield called
    await pool.close()


async def recovered(call: Call, method: PluginMethod[Any]) -> int:
    """Calls until the plugin answers; returns how many calls failed."""
    for failures in range(10):
        if not await call(method):
            return failures
        await asyncio.sleep(0.2)
    raise AssertionError("the plugin is not called again")


@pytest.mark.parametrize("method", METHODS, ids=lambda one: one.kind)
@pytest.mark.parametrize("fault", ["drop", "one_way", "refuse"])
async def test_a_plugin_that_cannot_be_reached_is_left_out_until_the_network_is_back(
    proxy: FaultProxy, call: Call, method: PluginMethod[Any], fault: str
) -> None:
    assert await call(method) == ""
    getattr(proxy, fault)()
    for _ in range(4):
        assert (await call(method)).startswith(f"{method.kind} grpc://{proxy.address}: ")
    proxy.heal()
    await recovered(call, method)


@pytest.mark.parametrize("method", METHODS, ids=lambda one: one.kind)
@pytest.mark.parametrize("fault", ["half_open", "reset"])
async def test_a_broken_connection_is_replaced_after_a_few_calls(
    proxy: FaultProxy, call: Call, method: PluginMethod[Any], fault: str
) -> None:
    assert await call(method) == ""
    getattr(proxy, fault)()
    assert await recovered(call, method) <= 4
    assert proxy.accepted >= 2


@pytest.mark.parametrize("method", METHODS, ids=lambda one: one.kind)
async def test_a_slow_network_only_delays(proxy: FaultProxy, call: Call, method: PluginMethod[Any]) -> None:
    proxy.delay(0.05)
    assert await call(method) == ""
    begin = time.monotonic()
    assert await call(method) == ""
    assert time.monotonic() - begin >= 0.1


@pytest.mark.parametrize("method", METHODS, ids=lambda one: one.kind)
async def test_each_call_has_its_own_answer_once_if_calls_are_repeated_and_late(
    proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: PluginMethod[Any]
) -> None:
    calls = LossyCalls(tmp_path, Losses(twice=0.4, late=0.4), monkeypatch)
    await calls.cover(proxy.address)
    pool = PluginPool(PluginConfig(), tmp_path, EVERYTHING)
    evolution = EvolutionSpec(generator=f"grpc://{proxy.address}", updater=f"grpc://{proxy.address}")
    evolution.answer_duration.FromNanoseconds(round(ANSWER_SECONDS * 1e9))
    checked: list[str] = []

    async def reason_for(name: str) -> str:
        async def prepare() -> PreparedRequest[Any]:
            return PreparedRequest(method.request(tournament_id=name), lambda answer: checked.append(answer.reason))

        reply = await pool.call(method, evolution, prepare)
        assert reply.answer is not None, reply.problem
        return str(reply.answer.reason)

    names = [f"race-{number}" for number in range(20)]
    assert await asyncio.gather(*map(reason_for, names)) == names
    assert sorted(checked) == sorted(names)
    assert calls.counts["twice"] >= 3
    assert calls.counts["late"] >= 3
    await pool.close()
    await calls.close()
