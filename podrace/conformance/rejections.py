"""Makes requests that a SimulatorService must refuse, each on a new stream."""

from collections.abc import Iterator
from typing import Any

from podrace.conformance import spaces
from podrace.conformance.calls import Answer, Caller
from podrace.conformance.findings import Judge
from podrace.conformance.stepping import Stream, opened
from podrace.simulator.v1.simulator_pb2 import GetSimulatorRequest, StreamStepsRequest

UNKNOWN = "podrace-conformance-unknown"
LARGEST_COUNT = 1_000_000
"""Largest count that the bounds of the contract allow."""
Requests = list[StreamStepsRequest]


async def examine(stub: Any, judge: Judge, valid: StreamStepsRequest.Open, most_seconds: float) -> None:
    """Judges the answers to invalid requests."""
    await _examine_names(stub, judge, valid, most_seconds)
    for name, before, wrong in _cases(valid):
        async with opened(stub, judge, most_seconds) as stream:
            await _prepare(stream, valid, before)
            answer = await stream.send(*_filled(wrong, stream))
            problem = f"{name} is answered with {_shown(answer)} instead of INVALID_ARGUMENT"
            judge.expect("refusals", answer.code == "INVALID_ARGUMENT", problem)
    await _examine_limit(stub, judge, valid, most_seconds)


def _shown(answer: Answer[Any]) -> str:
    return f"`{answer.response.WhichOneof('response')}`" if answer.response else str(answer)


async def _examine_names(stub: Any, judge: Judge, valid: StreamStepsRequest.Open, most_seconds: float) -> None:
    caller = Caller(judge, most_seconds)
    unknown = GetSimulatorRequest(id=UNKNOWN)
    option = GetSimulatorRequest(id=valid.id, options=valid.options)
    option.options[UNKNOWN] = 1
    for name, request in (("an unknown id", unknown), ("an unknown option", option)):
        answer = await caller.call(stub.GetSimulator, request, "deadline", contract_seconds=120.0)
        problem = f"GetSimulator with {name} is answered with {answer} instead of INVALID_ARGUMENT"
        judge.expect("unknown-simulator", answer.code == "INVALID_ARGUMENT", problem)


def _cases(valid: StreamStepsRequest.Open) -> Iterator[tuple[str, str, Requests]]:
    """Yields what is wrong, what comes before it (`open`, `reset` or nothing), and the request.

    An act without an action gets a valid one.
    """
    unknown, none = StreamStepsRequest.Open(), StreamStepsRequest.Open()
    unknown.CopyFrom(valid)
    unknown.id = UNKNOWN
    none.CopyFrom(valid)
    none.count = 0
    yield "open with an unknown id", "", [StreamStepsRequest(open=unknown)]
    yield "open with count 0", "", [StreamStepsRequest(open=none)]
    yield "reset before open", "", [StreamStepsRequest(reset=StreamStepsRequest.Reset())]
    yield "report before open", "", [StreamStepsRequest(report=StreamStepsRequest.Report())]
    yield "a second open", "open", [StreamStepsRequest(open=valid)]
    yield "act before the first reset", "open", [_act(1)]
    yield "an empty request", "open", [StreamStepsRequest()]
    yield "step 2 as the first step", "reset", [_act(2)]
    yield "step 0", "reset", [_act(0)]
    yield "an action of 3 bytes", "reset", [_act(1, b"abc")]


def _act(step: int, action: bytes = b"") -> StreamStepsRequest:
    return StreamStepsRequest(act=StreamStepsRequest.Act(step=step, action=action))


def _filled(requests: Requests, stream: Stream) -> Requests:
    """Gives acts without an action a valid one: zeros, or the lower bounds if zero is not in the space."""
    for request in requests:
        if request.HasField("act") and not request.act.action:
            request.act.action = bytes(stream.lanes * spaces.value_bytes(stream.actions))
    return requests


async def _prepare(stream: Stream, valid: StreamStepsRequest.Open, before: str) -> None:
    if before:
        await stream.open(valid)
    if before == "reset":
        await stream.reset(0)


async def _examine_limit(stub: Any, judge: Judge, valid: StreamStepsRequest.Open, most_seconds: float) -> None:
    caller = Caller(judge, most_seconds)
    request = GetSimulatorRequest(id=valid.id, options=valid.options)
    answer = await caller.call(stub.GetSimulator, request, "deadline", contract_seconds=120.0)
    most = answer.get().maximum_environments if answer.response else 0
    if not most or most >= LARGEST_COUNT:
        judge.skip("limit", f"the service allows {most} environments, as many as a request can ask for")
        return
    larger = StreamStepsRequest.Open()
    larger.CopyFrom(valid)
    larger.count = most + 1
    async with opened(stub, judge, most_seconds) as stream:
        refused = await stream.send(StreamStepsRequest(open=larger))
        problem = f"{most + 1} environments, 1 more than GetSimulator allows, are answered with {_shown(refused)}"
        judge.expect("limit", refused.code == "RESOURCE_EXHAUSTED", problem)
