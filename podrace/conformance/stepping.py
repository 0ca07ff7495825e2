"""Drives one stream of a SimulatorService, one request at a time."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from podrace.agentpod.v1.agentpod_pb2 import Space
from podrace.conformance import spaces
from podrace.conformance.calls import OK, Answer, failure, status
from podrace.conformance.findings import Judge, Violated
from podrace.simulator.v1.simulator_pb2 import StreamStepsRequest, StreamStepsResponse

LARGEST_BYTES = 1 << 20
OPEN_SECONDS = 110.0
REQUEST_SECONDS = 60.0


@dataclass
class Step:
    """A step whose messages were put together."""

    step: int = 0
    observation: bytes = b""
    reward: bytes = b""
    terminated: bytes = b""
    truncated: bytes = b""
    final_lanes: list[int] = field(default_factory=list)
    final_observation: bytes = b""
    largest_bytes: int = 0
    """Bytes of the byte fields of the longest message."""

    def add(self, piece: StreamStepsResponse.Stepped) -> None:
        """Continues the fields with those of another message."""
        self.step, total = piece.step, 0
        for name in ("observation", "reward", "terminated", "truncated", "final_observation"):
            setattr(self, name, getattr(self, name) + getattr(piece, name))
            total += len(getattr(piece, name))
        self.final_lanes.extend(piece.final_lanes)
        self.largest_bytes = max(self.largest_bytes, total)

    def ended(self) -> list[int]:
        """Returns the lanes whose episode ended, by the flags."""
        return [lane for lane, flags in enumerate(zip(self.terminated, self.truncated, strict=False)) if any(flags)]


@dataclass
class Stream:
    """An open call of StreamSteps.

    async with opened(stub, judge, most_seconds) as stream:
        await stream.open(id, options, 8)
        step = await stream.reset(seed)
        step = await stream.act(1, action)
    """

    call: Any
    judge: Judge
    most_seconds: float
    observations: Space = field(default_factory=Space)
    actions: Space = field(default_factory=Space)
    planes: tuple[str, ...] = ()
    lanes: int = 0
    """Environments times agents."""

    async def send(self, *requests: StreamStepsRequest) -> Answer[Any]:
        """Sends the messages of one request and returns the first message of the response, or the end of the stream."""
        opening = requests[0].HasField("open")
        seconds = min(OPEN_SECONDS if opening else REQUEST_SECONDS, self.most_seconds)
        name = requests[0].WhichOneof("request") or "an empty request"
        try:
            async with asyncio.timeout(seconds):
                for request in requests:
                    await self.call.write(request)
                return await self._read()
        except TimeoutError:
            self.judge.require("deadline", False, f"no response to `{name}` within {seconds:g} s")
            raise
        except asyncio.InvalidStateError:
            # The stream has ended already: its status says why.
            return await self._status()
        except grpc.aio.AioRpcError as error:
            return failure(error)

    async def _read(self) -> Answer[Any]:
        message = await self.call.read()
        return await self._status() if message is grpc.aio.EOF else Answer(OK, response=message)

    async def _status(self) -> Answer[Any]:
        code = await self.call.code()
        if code.name == OK:
            return Answer("END")
        found = status(code, await self.call.details(), await self.call.trailing_metadata())
        return found.judged(self.judge, "StreamSteps")

    async def open(self, request: StreamStepsRequest.Open) -> StreamStepsResponse.Opened:
        """Makes the environments; ends the part of the examination if that is refused, or their spaces are wrong."""
        answer = await self.send(StreamStepsRequest(open=request))
        opened: StreamStepsResponse.Opened = self._response(answer, "opened", "describes", "open")
        check_spaces(self.judge, opened)
        self.observations, self.actions = opened.observation_space, opened.action_space
        self.planes = tuple(opened.planes)
        self.lanes = request.count * spaces.agents(opened.observation_space)
        return opened

    async def reset(self, seed: int) -> Step:
        """Begins new episodes."""
        answer = await self.send(StreamStepsRequest(reset=StreamStepsRequest.Reset(seed=seed)))
        return await self._step(answer, "reset")

    async def act(self, number: int, action: bytes) -> Step:
        """Steps every lane; a long action travels in several messages."""
        answer = await self.send(*act_messages(number, action))
        return await self._step(answer, f"act with step {number}")

    async def report(self) -> StreamStepsResponse.Reported:
        """Asks for the measures."""
        answer = await self.send(StreamStepsRequest(report=StreamStepsRequest.Report()))
        reported: StreamStepsResponse.Reported = self._response(answer, "reported", "report", "report")
        return reported

    def _response(self, answer: Answer[Any], field: str, requirement: str, request: str) -> Any:
        got = answer.response.WhichOneof("response") if answer.response else str(answer)
        self.judge.require(requirement, got == field, f"the response to `{request}` is {got} instead of `{field}`")
        return getattr(answer.response, field)

    async def _step(self, answer: Answer[Any], request: str) -> Step:
        step = Step()
        while True:
            piece = self._response(answer, "stepped", "steps", request)
            step.add(piece)
            if not piece.more:
                return step
            answer = await self.receive(request)

    async def receive(self, request: str) -> Answer[Any]:
        """Returns the next message of a response."""
        try:
            async with asyncio.timeout(min(REQUEST_SECONDS, self.most_seconds)):
                return await self._read()
        except TimeoutError:
            raise self._late(f"the rest of the response to `{request}` did not arrive in time") from None
        except grpc.aio.AioRpcError as error:
            return failure(error)

    async def close(self) -> Answer[Any]:
        """Closes this side, and returns how the stream ended."""
        try:
            async with asyncio.timeout(min(REQUEST_SECONDS, self.most_seconds)):
                await self.call.done_writing()
                return await self._read()
        except TimeoutError:
            raise self._late("the stream did not end after the caller had closed its side") from None
        except grpc.aio.AioRpcError as error:
            return failure(error)

    def _late(self, problem: str) -> Violated:
        self.judge.expect("deadline", False, problem)
        return Violated("deadline", problem)


def check_spaces(judge: Judge, stated: Any) -> None:
    """Ends the part of the examination if a space of a description is wrong."""
    for space, action in ((stated.observation_space, False), (stated.action_space, True)):
        problems = list(spaces.problems(space, action=action))
        judge.require("spaces", not problems, "; ".join(problems))


def act_messages(number: int, action: bytes) -> Iterator[StreamStepsRequest]:
    """Yields the messages of one action."""
    for start in range(0, max(len(action), 1), LARGEST_BYTES):
        piece = action[start : start + LARGEST_BYTES]
        more = start + LARGEST_BYTES < len(action)
        yield StreamStepsRequest(act=StreamStepsRequest.Act(step=number, action=piece, more=more))


@asynccontextmanager
async def opened(stub: Any, judge: Judge, most_seconds: float) -> AsyncIterator[Stream]:
    """Opens a stream for the block."""
    call = stub.StreamSteps()
    try:
        yield Stream(call, judge, most_seconds)
    finally:
        call.cancel()
