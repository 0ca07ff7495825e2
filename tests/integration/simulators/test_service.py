"""Tests the simulator service: concurrent streams, streams that end, and an event loop that stays responsive."""

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
import torch

from podrace import rpc
from podrace.errors import DeadlineExceeded, Internal, InvalidArgument, ResourceExhausted
from podrace.rpc.channel import ENDED_WHILE_SENDING
from podrace.simulator.v1 import simulator_pb2 as pb
from podrace.simulator.v1 import simulator_pb2_grpc as pb_grpc
from podrace.simulator.v1.simulator_pb2 import StreamStepsRequest as Request
from simulators import Simulator, Step, make, stepping
from simulators.config import Limits
from simulators.messages import bytes_of
from simulators.service import SimulatorServicer, services

OPEN = Request(open=Request.Open(id="cartpole", count=2))
RESET = Request(reset=Request.Reset(seed=1))
ACT = Request(act=Request.Act(step=1, action=bytes_of(torch.zeros(2, dtype=torch.int64))))
WAIT_SECONDS = 10.0

Stub = Any
Serve = Callable[..., Any]


@pytest.fixture
def serve() -> Serve:
    @contextlib.asynccontextmanager
    async def serving(limits: Limits, device: str = "cpu") -> AsyncIterator[Stub]:
        with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as folder:
            config = rpc.ServerConfig(listen=f"unix:{folder}/s.sock", grace_seconds=0.2)
            server = await rpc.Server.start(config, services(SimulatorServicer(limits, device)))
            async with rpc.connect(server.address, pb.DESCRIPTOR) as channel:
                yield pb_grpc.SimulatorServiceStub(channel)
            await server.drain()

    return serving


class Stream:
    """One stream, with one request and its response at a time."""

    def __init__(self, stub: Stub) -> None:
        self.call = stub.StreamSteps()

    async def ask(self, request: Request) -> Any:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # The error of a failed stream is raised by the read below.
            await self.call.write(request)
        return await self.read()

    async def read(self) -> Any:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                return await self.call.read()
        except grpc.aio.AioRpcError as error:
            raise rpc.from_rpc_error(error) from None


async def ask_first(stub: Stub, request: Request) -> Any:
    """Sends a request on a new stream; on another one if gRPC lost the status of a stream that was refused at once."""
    while True:
        try:
            return await Stream(stub).ask(request)
        except Internal as error:
            if error.message != ENDED_WHILE_SENDING:
                raise


class Watched:
    """A simulator that blocks, fails and signals when it is closed, for tests."""

    def __init__(self, inner: Simulator) -> None:
        self.observation_space, self.action_space, self.count = inner.observation_space, inner.action_space, inner.count
        self.reset, self.report = inner.reset, inner.report
        self.inner = inner
        self.closed, self.stepping, self.may_continue = threading.Event(), threading.Event(), threading.Event()
        self.may_continue.set()
        self.broken = False

    def step(self, action: torch.Tensor) -> Step:
        self.stepping.set()
        assert self.may_continue.wait(WAIT_SECONDS)
        if self.broken:
            raise RuntimeError("lost its balance")
        assert not self.closed.is_set()
        return self.inner.step(action)

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[Watched]:
    made: list[Watched] = []

    def making(*arguments: Any, **limits: Any) -> Watched:
        made.append(Watched(make(*arguments, **limits)))
        return made[-1]

    monkeypatch.setattr(stepping, "make", making)
    return made


async def happens(event: threading.Event) -> bool:
    return await asyncio.to_thread(event.wait, WAIT_SECONDS)


async def test_streams_have_separate_environments(serve: Serve) -> None:
    async with serve(Limits()) as stub:
        one, other = Stream(stub), Stream(stub)
        for stream in (one, other):
            await stream.ask(OPEN)
        first = await one.ask(RESET)
        await one.ask(ACT)
        assert await other.ask(RESET) == first


async def test_the_number_of_streams_is_limited_and_an_ended_one_makes_room(
    serve: Serve, watched: list[Watched]
) -> None:
    async with serve(Limits(maximum_streams=1)) as stub:
        first = Stream(stub)
        await first.ask(OPEN)
        with pytest.raises(ResourceExhausted, match=r"1 streams are open.*limits.maximum_streams"):
            await ask_first(stub, OPEN)
        await first.call.done_writing()
        assert await first.call.read() is grpc.aio.EOF
        assert await first.call.code() is grpc.StatusCode.OK
        assert await happens(watched[0].closed)
        await Stream(stub).ask(OPEN)


async def test_a_stream_without_requests_is_ended_and_its_environments_closed(
    serve: Serve, watched: list[Watched]
) -> None:
    async with serve(Limits(idle_seconds=0.3)) as stub:
        stream = Stream(stub)
        await stream.ask(OPEN)
        with pytest.raises(DeadlineExceeded, match=r"no request arrived for 0.3 s"):
            await stream.read()
        assert await happens(watched[0].closed)


async def test_a_caller_that_disconnects_during_a_step_leaves_nothing_open(
    serve: Serve, watched: list[Watched]
) -> None:
    async with serve(Limits()) as stub:
        stream = Stream(stub)
        await stream.ask(OPEN)
        await stream.ask(RESET)
        watched[0].may_continue.clear()
        await stream.call.write(ACT)
        assert await happens(watched[0].stepping)
        stream.call.cancel()
        watched[0].may_continue.set()
        assert await happens(watched[0].closed)


async def test_the_service_answers_others_while_a_simulator_steps(serve: Serve, watched: list[Watched]) -> None:
    async with serve(Limits()) as stub:
        slow, other = Stream(stub), Stream(stub)
        await slow.ask(OPEN)
        await slow.ask(RESET)
        watched[0].may_continue.clear()
        await slow.call.write(ACT)
        assert await happens(watched[0].stepping)
        await other.ask(OPEN)
        assert (await other.ask(RESET)).stepped.observation
        request = pb.GetSimulatorRequest(id="pendulum")
        described = await rpc.call(stub.GetSimulator, request, deadline_seconds=WAIT_SECONDS)
        assert described.action_space.shape == [1]
        watched[0].may_continue.set()
        assert (await slow.call.read()).stepped.step == 1


@pytest.mark.parametrize(("device", "shared"), [("cuda:0", True), ("cpu", False)])
async def test_on_a_gpu_all_simulators_compute_on_one_thread(
    device: str, shared: bool, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one stream would call CUDA while another one records a graph. The simulators stand in on the CPU."""
    makers: list[int] = []

    def making(id: str, count: int, options: Any, device: str, **limits: Any) -> Watched:
        makers.append(threading.get_ident())
        return Watched(make(id, count, options, "cpu", **limits))

    monkeypatch.setattr(stepping, "make", making)
    async with serve(Limits(), device) as stub:
        streams = [Stream(stub) for _ in range(3)]
        for stream in streams:
            await stream.ask(OPEN)
            assert (await stream.ask(RESET)).stepped.observation
        request = pb.GetSimulatorRequest(id="pendulum")
        await rpc.call(stub.GetSimulator, request, deadline_seconds=WAIT_SECONDS)
        # The thread outlives the streams.
        await streams[0].call.done_writing()
        assert await streams[0].call.read() is grpc.aio.EOF
        await Stream(stub).ask(OPEN)
    assert len(makers) == 5
    assert (len(set(makers)) == 1) == shared


async def test_errors_keep_their_codes(serve: Serve, watched: list[Watched]) -> None:
    async with serve(Limits()) as stub:
        with pytest.raises(InvalidArgument, match="starts with open"):
            await Stream(stub).ask(RESET)
        with pytest.raises(InvalidArgument, match="nothing-like-it"):
            await rpc.call(
                stub.GetSimulator, pb.GetSimulatorRequest(id="nothing-like-it"), deadline_seconds=WAIT_SECONDS
            )
        stream = Stream(stub)
        await stream.ask(OPEN)
        await stream.ask(RESET)
        watched[0].broken = True
        with pytest.raises(Internal, match="RuntimeError: lost its balance"):
            await stream.ask(ACT)
        assert await happens(watched[0].closed)
