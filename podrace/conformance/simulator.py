"""Examines a SimulatorService: its spaces, episodes, seeds, streams and refusals."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import grpc
from google.protobuf.struct_pb2 import Struct

from podrace.agentpod.v1.agentpod_pb2 import Space
from podrace.conformance import rejections, spaces
from podrace.conformance.calls import Answer, Caller
from podrace.conformance.findings import Judge
from podrace.conformance.stepping import LARGEST_BYTES, Step, Stream, check_spaces, opened
from podrace.conformance.tensors import ALIGNMENT
from podrace.simulator.v1 import simulator_pb2 as pb
from podrace.simulator.v1 import simulator_pb2_grpc as pb_grpc
from podrace.tensor.v1.tensor_pb2 import (
    DATA_TYPE_BOOL,
    DATA_TYPE_FLOAT32,
    DATA_TYPE_FLOAT64,
    TensorRef,
    TensorSpec,
)

ENVIRONMENTS = 8
STEPS = 300
"""Steps in which episodes are expected to end; one that lasts longer is not seen to end."""
COMPARED_STEPS = 40
GET_SECONDS = 120.0


@dataclass(frozen=True)
class SimulatorSubject:
    """What is examined."""

    judge: Judge
    stub: Any
    id: str
    options: Struct
    most_seconds: float
    environments: int
    """Environments of the largest batch."""
    seed: int = 0

    def open_request(self, count: int) -> pb.StreamStepsRequest.Open:
        """Returns a request that is valid."""
        return pb.StreamStepsRequest.Open(id=self.id, options=self.options, count=count)


def parts(channel: grpc.aio.Channel, judge: Judge, **arguments: Any) -> list[Callable[[], Awaitable[None]]]:
    """Returns the parts of the examination, in order."""
    stub: Any = pb_grpc.SimulatorServiceStub(channel)
    subject = SimulatorSubject(judge, stub, **arguments)
    examined = (examine_facts, examine_episodes, examine_repeats, examine_size, examine_offers, examine_rejections)
    return [lambda part=part: part(subject) for part in examined]  # type: ignore[misc]


async def examine_facts(subject: SimulatorSubject) -> None:
    """Compares GetSimulator with an open stream."""
    judge, facts = subject.judge, await _facts(subject)
    async with opened(subject.stub, judge, subject.most_seconds) as stream:
        stated = await stream.open(subject.open_request(_environments(facts)))
        for name in ("observation_space", "action_space", "planes"):
            agree = getattr(facts, name) == getattr(stated, name)
            judge.expect("same-facts", agree, f"{name} differs between GetSimulatorResponse and Opened")
        ended = await stream.close()
        judge.expect("closing", ended.code == "END", f"the stream ended with {ended}")


async def _facts(subject: SimulatorSubject) -> pb.GetSimulatorResponse:
    caller = Caller(subject.judge, subject.most_seconds)
    request = pb.GetSimulatorRequest(id=subject.id, options=subject.options)
    answer: Answer[pb.GetSimulatorResponse] = await caller.call(
        subject.stub.GetSimulator, request, "deadline", contract_seconds=GET_SECONDS
    )
    subject.judge.require("describes", answer.code == "OK", f"GetSimulator of '{subject.id}' answers {answer}")
    facts = answer.get()
    check_spaces(subject.judge, facts)
    several = facts.maximum_environments >= 1
    subject.judge.expect("describes", several, "maximum_environments is 0: no stream can be opened")
    return facts


def _environments(facts: pb.GetSimulatorResponse) -> int:
    return min(ENVIRONMENTS, max(1, facts.maximum_environments))


async def examine_episodes(subject: SimulatorSubject) -> None:
    """Steps a batch with random actions through the ends of episodes."""
    judge, random, count = subject.judge, Random(subject.seed), _environments(await _facts(subject))
    async with opened(subject.stub, judge, subject.most_seconds) as stream:
        await stream.open(subject.open_request(count))
        first = await stream.reset(subject.seed)
        _check_reset(judge, stream, first)
        late, ends = 0, 0
        for number in range(1, STEPS + 1):
            step = await stream.act(number, spaces.random_actions(stream.actions, stream.lanes, random))
            check_step(judge, stream, step, number)
            ended = _ended_with_environment(stream, step)
            ends += len(ended)
            late += sum(_same_as_final(stream, step, lane) for lane in ended)
            if ends >= 5 * stream.lanes:
                break
        _judge_resets(judge, late, ends)
        _check_report(judge, await stream.report(), stream.lanes)


def _judge_resets(judge: Judge, late: int, ends: int) -> None:
    if not ends:
        for name in ("final-lanes", "final-observation", "reset-within-step"):
            judge.skip(name, f"no episode ended within {STEPS} steps of random actions; --option may shorten episodes")
        return
    problem = f"after each of {ends} ends of episodes, the observation to act on is the last one of the old episode"
    judge.expect("reset-within-step", late < ends, problem)


def _ended_with_environment(stream: Stream, step: Step) -> list[int]:
    """Returns the lanes whose environment has ended. The lane of an agent that left before ends in each step."""
    agents = spaces.agents(stream.observations)
    ended = set(step.ended())
    whole = [first for first in range(0, stream.lanes, agents) if ended.issuperset(range(first, first + agents))]
    return [lane for first in whole for lane in range(first, first + agents)]


def _same_as_final(stream: Stream, step: Step, lane: int) -> bool:
    size = spaces.value_bytes(stream.observations)
    place = step.final_lanes.index(lane) if lane in step.final_lanes else -1
    final = step.final_observation[place * size : (place + 1) * size]
    return place >= 0 and step.observation[lane * size : (lane + 1) * size] == final


def _check_reset(judge: Judge, stream: Stream, step: Step) -> None:
    judge.expect("steps", step.step == 0, f"the response to a reset has step {step.step}")
    only = not (step.reward or step.terminated or step.truncated or step.final_lanes or step.final_observation)
    judge.expect("reset-only-observation", only, "the response to a reset has more than an observation")
    _check_observation(judge, stream, step.observation)


def _check_observation(judge: Judge, stream: Stream, data: bytes) -> None:
    wanted = stream.lanes * spaces.value_bytes(stream.observations)
    problem = f"{stream.lanes} observations have {len(data)} bytes instead of {wanted}"
    judge.require("observation", len(data) == wanted, problem)
    judge.expect("observation-values", _finite(data, stream.observations), "an observation is not finite")


def _finite(data: bytes, space: Space) -> bool:
    return all(math.isfinite(value) for value in spaces.decoded(data, space))


def check_step(judge: Judge, stream: Stream, step: Step, number: int) -> None:
    """Judges one step by itself."""
    judge.expect("steps", step.step == number, f"the response to act with step {number} has step {step.step}")
    judge.expect(
        "message-size",
        step.largest_bytes <= LARGEST_BYTES,
        f"a message of {stream.lanes} lanes has {step.largest_bytes} bytes",
    )
    _check_observation(judge, stream, step.observation)
    count = stream.lanes
    judge.require("reward", len(step.reward) == 4 * count, f"{count} rewards have {len(step.reward)} bytes")
    rewards = Space(data_type=DATA_TYPE_FLOAT32)
    judge.expect("observation-values", _finite(step.reward, rewards), "a reward is not finite")
    for name in ("terminated", "truncated"):
        flags = getattr(step, name)
        good = len(flags) == count and set(flags) <= {0, 1}
        judge.require(name, good, f"step {number}: {len(flags)} bytes {sorted(set(flags))} for {count} lanes")
    both = [lane for lane in range(count) if step.terminated[lane] and step.truncated[lane]]
    judge.expect("truncated", not both, f"step {number}: lanes {both} are terminated and truncated")
    ended = step.ended()
    problem = f"step {number}: the lanes {ended} have ended, final_lanes are {step.final_lanes}"
    if judge.expect("final-lanes", step.final_lanes == ended, problem) and ended:
        wanted = len(ended) * spaces.value_bytes(stream.observations)
        problem = f"step {number}: {len(ended)} last observations have {len(step.final_observation)} bytes of {wanted}"
        judge.expect("final-observation", len(step.final_observation) == wanted, problem)


def _check_report(judge: Judge, reported: pb.StreamStepsResponse.Reported, count: int) -> None:
    for name, trace in reported.episode_metrics.items():
        problem = f"the measure '{name}' of single episodes has {len(trace.values)} numbers for {count} lanes"
        judge.expect("report-lengths", len(trace.values) == count, problem)
    for kind in ("traces", "labels"):
        lengths = {len(series.values) for series in getattr(reported, kind).values()}
        judge.expect("report-lengths", len(lengths) <= 1, f"the {kind} have the lengths {sorted(lengths)}")


async def _trajectory(stream: Stream, seed: int, actions: list[bytes]) -> list[Step]:
    return [await stream.reset(seed), *[await stream.act(n, action) for n, action in enumerate(actions, 1)]]


async def examine_repeats(subject: SimulatorSubject) -> None:
    """Repeats steps on one stream, then on two at a time; all lanes get the same actions."""
    judge, random, facts = subject.judge, Random(subject.seed + 1), await _facts(subject)
    count = _environments(facts)
    async with opened(subject.stub, judge, subject.most_seconds) as stream:
        await stream.open(subject.open_request(count))
        drawn = [spaces.random_actions(stream.actions, 1, random) * stream.lanes for _ in range(COMPARED_STEPS)]
        first = await _trajectory(stream, 7, drawn)
        again = await _trajectory(stream, 7, drawn)
        other = await _trajectory(stream, 8, drawn)
    size = spaces.agents(stream.observations) * spaces.value_bytes(stream.observations)
    _check_environments(judge, size, count, first, other)
    if not facts.reproducible:
        judge.skip("reproducible", "the simulator states that it is not reproducible")
        judge.skip("own-environments", "the simulator is not reproducible, so its streams cannot be compared")
        return
    at = next((number for number, pair in enumerate(zip(first, again, strict=True)) if pair[0] != pair[1]), None)
    problem = f"the same seed and actions gave another {'reset' if at == 0 else f'step {at}'} the second time"
    if judge.expect("reproducible", at is None, problem):
        await _examine_two_streams(subject, count, drawn, first)


def _check_environments(judge: Judge, size: int, count: int, first: list[Step], other: list[Step]) -> None:
    """Compares the observations of `count` environments of `size` bytes each."""
    if count < 2 or first == other:
        judge.skip("lanes-differ", "episodes do not depend on the seed")
        return

    def seen_by(steps: list[Step], number: int) -> list[bytes]:
        return [step.observation[number * size : (number + 1) * size] for step in steps]

    alike = all(seen_by(first, number) == seen_by(first, 0) for number in range(1, count))
    judge.expect("lanes-differ", not alike, f"all {count} environments have the same {len(first)} observations")


async def _examine_two_streams(
    subject: SimulatorSubject, count: int, actions: list[bytes], expected: list[Step]
) -> None:
    judge = subject.judge
    async with (
        opened(subject.stub, judge, subject.most_seconds) as one,
        opened(subject.stub, judge, subject.most_seconds) as two,
    ):
        for stream in (one, two):
            await stream.open(subject.open_request(count))
            await stream.reset(7)
        for number, action in enumerate(actions, 1):
            for stream, name in ((one, "first"), (two, "second")):
                step = await stream.act(number, action)
                problem = f"with two streams at a time, step {number} of the {name} differs from that of a single one"
                judge.require("own-environments", step == expected[number], problem)


async def examine_size(subject: SimulatorSubject) -> None:
    """Steps a batch whose observations or actions do not fit into one message, if the service allows it."""
    judge, facts = subject.judge, await _facts(subject)
    count = min(subject.environments, facts.maximum_environments)
    agents = spaces.agents(facts.observation_space)
    for name, space in (("message-size", facts.observation_space), ("split-actions", facts.action_space)):
        wanted = LARGEST_BYTES // max(1, agents * spaces.value_bytes(space)) + 1
        if wanted > count:
            allowed = f"the service allows {facts.maximum_environments}, --environments {subject.environments}"
            judge.skip(name, f"only {wanted} environments need more than 1 MiB; {allowed}")
            continue
        async with opened(subject.stub, judge, subject.most_seconds) as stream:
            await stream.open(subject.open_request(wanted))
            first = await stream.reset(subject.seed)
            problem = f"the observations of {wanted} environments came in a message with {first.largest_bytes} bytes"
            judge.expect("message-size", first.largest_bytes <= LARGEST_BYTES, problem)
            action = spaces.random_actions(stream.actions, 1, Random(subject.seed)) * stream.lanes
            check_step(judge, stream, await stream.act(1, action), 1)
            if len(action) > LARGEST_BYTES:
                judge.expect("split-actions", True, "")


async def examine_offers(subject: SimulatorSubject) -> None:
    """Offers memory that does not exist, and steps on."""
    judge = subject.judge
    async with opened(subject.stub, judge, subject.most_seconds) as stream:
        await stream.open(subject.open_request(1))
        if "shared" not in stream.planes:
            judge.skip("unseen-memory", "the service does not offer the plane `shared`")
            return
        offer = pb.StreamStepsRequest.Share(tensors=_missing_tensors(stream))
        answer = await stream.send(pb.StreamStepsRequest(share=offer))
        got = answer.response.WhichOneof("response") if answer.response else str(answer)
        judge.require("unseen-memory", got == "shared", f"the response to an offer of missing memory is {got}")
        seen = answer.get().shared.HasField("probe_sum")
        judge.require("unseen-memory", not seen, "the service states the sum of memory that does not exist")
        _check_observation(judge, stream, (await stream.reset(subject.seed)).observation)


def _missing_tensors(stream: Stream) -> list[TensorRef]:
    """Returns references to all tensors that an offer must have, in a file that does not exist."""
    batch = [stream.lanes]
    specs = [
        ("action", stream.actions.data_type, [*batch, *stream.actions.shape]),
        ("observation", stream.observations.data_type, [*batch, *stream.observations.shape]),
        ("reward", DATA_TYPE_FLOAT32, batch),
        ("terminated", DATA_TYPE_BOOL, batch),
        ("truncated", DATA_TYPE_BOOL, batch),
        ("final_observation", stream.observations.data_type, [*batch, *stream.observations.shape]),
        ("probe", DATA_TYPE_FLOAT64, [4, 2]),
    ]
    uri, found, offset = "shared:podrace-steps-conformance", [], ALIGNMENT
    for name, data_type, shape in specs:
        spec = TensorSpec(name=name, data_type=data_type, shape=shape, layout_version=1)
        found.append(TensorRef(plane_uri=uri, offset_bytes=offset, spec=spec, generation=1))
        offset += -(-8 * math.prod(shape) // ALIGNMENT) * ALIGNMENT
    return found


async def examine_rejections(subject: SimulatorSubject) -> None:
    """Makes requests that the service must refuse."""
    valid = subject.open_request(_environments(await _facts(subject)))
    await rejections.examine(subject.stub, subject.judge, valid, subject.most_seconds)
