"""Tests which calls survive that their channel is replaced, and how a call ends whose channel is closed."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from podrace import errors, rpc
from podrace.access.guard import Guard
from podrace.leaderboard.v1 import leaderboard_pb2 as pb
from podrace.leaderboard.v1 import leaderboard_pb2_grpc as pb_grpc
from podrace.rpc.renewing_channel import MOST_DEADLINES, RenewingChannel

CALL_SECONDS = 0.05
"""Deadline of calls that are meant to exceed it."""


class Board(pb_grpc.LeaderboardServiceServicer):
    """Answers calls about agents once `answering` is set."""

    def __init__(self) -> None:
        self.answering, self.calls = asyncio.Event(), asyncio.Semaphore(0)

    async def GetAgent(self, request: Any, context: Any) -> pb.GetAgentResponse:
        self.calls.release()
        await self.answering.wait()
        return pb.GetAgentResponse(agent=pb.Agent(agent_id=request.agent_id))

    async def WatchCandidates(self, request: Any, context: Any) -> AsyncIterator[pb.WatchCandidatesResponse]:
        yield pb.WatchCandidatesResponse(resume_token=1)
        await self.answering.wait()


class World:
    """A server, and a channel to it that counts how often it was opened."""

    def __init__(self, server: rpc.Server, board: Board) -> None:
        self.board, self.server = board, server
        self.opened, self.stamp = 0, 0
        self.channel = RenewingChannel(self._open, lambda: self.stamp)
        self.stub: Any = pb_grpc.LeaderboardServiceStub(self.channel)

    def _open(self) -> grpc.aio.Channel:
        self.opened += 1
        return grpc.aio.insecure_channel(self.server.address)

    async def begin(self) -> "asyncio.Task[pb.GetAgentResponse]":
        """Begins a call, and returns when it has reached the server."""
        request = pb.GetAgentRequest(agent_id="t-a0")
        call = asyncio.create_task(rpc.call(self.stub.GetAgent, request, deadline_seconds=60.0))
        await self.board.calls.acquire()
        return call

    async def exceed_deadlines(self, count: int) -> None:
        """Makes concurrent calls that exceed their deadlines."""
        request = pb.GetAgentRequest(agent_id="t-a1")
        calls = [rpc.call(self.stub.GetAgent, request, deadline_seconds=CALL_SECONDS) for _ in range(count)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {errors.DeadlineExceeded}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    board = Board()
    descriptor = pb.DESCRIPTOR.services_by_name["LeaderboardService"]
    service = rpc.Service(descriptor, pb_grpc.add_LeaderboardServiceServicer_to_server, board)
    server = await rpc.Server.start(rpc.ServerConfig(grace_seconds=0.0), [service], guard=Guard.of_anyone())
    world = World(server, board)
    yield world
    await world.channel.close()
    board.answering.set()
    await server.drain()


async def test_concurrent_calls_that_exceed_their_deadline_open_one_new_channel(world: World) -> None:
    await world.exceed_deadlines(2 * MOST_DEADLINES)
    assert world.opened == 2


async def test_deadlines_on_a_new_channel_open_another_one(world: World) -> None:
    await world.exceed_deadlines(MOST_DEADLINES)
    await world.exceed_deadlines(MOST_DEADLINES)
    assert world.opened == 3


async def test_a_call_survives_that_its_channel_is_replaced_several_times(world: World) -> None:
    call = await world.begin()
    for replaced in range(1, 4):
        await world.exceed_deadlines(MOST_DEADLINES)
        assert world.opened == 1 + replaced
    assert not call.done()
    world.board.answering.set()
    assert (await call).agent.agent_id == "t-a0"


async def test_a_call_on_a_replaced_channel_ends_when_all_channels_are_closed(world: World) -> None:
    call = await world.begin()
    for _ in range(3):
        await world.exceed_deadlines(MOST_DEADLINES)
    await world.channel.close()
    with pytest.raises(errors.Unavailable):
        await call


async def test_a_call_whose_channel_is_closed_is_unavailable_and_its_task_is_not_cancelled(world: World) -> None:
    call = await world.begin()
    await world.channel.close()
    with pytest.raises(errors.Unavailable, match="closed"):
        await call


async def test_a_stream_whose_channel_is_closed_is_unavailable(world: World) -> None:
    stream = rpc.stream(world.stub.WatchCandidates, pb.WatchCandidatesRequest(), deadline_seconds=None)
    await anext(stream)
    next_update = asyncio.ensure_future(anext(stream))
    await world.channel.close()
    with pytest.raises(errors.Unavailable, match="closed"):
        await next_update


async def test_a_call_ends_as_cancelled_when_its_task_is(world: World) -> None:
    call = await world.begin()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
