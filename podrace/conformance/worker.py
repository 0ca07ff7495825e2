"""Examines a WorkerService: sessions, rollouts on the plane `grpc`, and refusals."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc

from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.conformance import policies, slots, spaces, worker_policies
from podrace.conformance.calls import OK, Answer, Caller
from podrace.conformance.evaluator import PROBE, UNKNOWN, probe
from podrace.conformance.findings import Judge
from podrace.conformance.tensors import Blocks
from podrace.errors import NOT_OPEN
from podrace.tensor.v1.tensor_pb2 import DATA_TYPE_FLOAT32, TensorSpec
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec

OPEN_SECONDS = 120.0
COLLECT_SECONDS = 600.0
CLOSE_SECONDS = 10.0
GET_SECONDS = 2.0
POLL_SECONDS = 0.05
FIRST_VERSION = 40


@dataclass
class Worker:
    """What is examined, and the tensors that it reads and writes."""

    judge: Judge
    caller: Caller
    stub: Any
    blocks: Blocks
    environment: EnvironmentSpec

    def open_request(self, session: str) -> pb.OpenWorkerRequest:
        """Returns a request that is valid."""
        return pb.OpenWorkerRequest(
            session=session,
            environment=self.environment,
            horizon=slots.HORIZON,
            policy=policies.network(),
            seed=5,
            probe=probe(self.blocks),
        )

    async def open(self, session: str) -> pb.OpenWorkerResponse:
        """Opens a session."""
        request = self.open_request(session)
        answer = await self.caller.call(self.stub.OpenWorker, request, "deadline", contract_seconds=OPEN_SECONDS)
        self.judge.require("opens", answer.code == OK, f"OpenWorker is answered with {answer}")
        opened: pb.OpenWorkerResponse = answer.get()
        problem = f"probe_sum is {opened.probe_sum} instead of {sum(PROBE)}"
        self.judge.require("probe", opened.probe_sum == sum(PROBE), problem)
        for space, action in ((opened.observation_space, False), (opened.action_space, True)):
            problems = list(spaces.problems(space, action=action))
            self.judge.require("spaces", not problems, "; ".join(problems))
        wrong = slots.listed_problem(opened)
        self.judge.require("listed-tensors", not wrong, wrong)
        return opened

    def set_policy(self, opened: pb.OpenWorkerResponse, version: int) -> tuple[pb.PolicyRef, policies.Parameters]:
        """Writes a policy and returns the reference and the parameters."""
        parameters = policies.draw(opened.policy.tensors, version)
        data = policies.block_bytes(parameters)
        spec = TensorSpec(name="policy", data_type=DATA_TYPE_FLOAT32, shape=[len(data) // 4], layout_version=1)
        (ref,) = self.blocks.create("policy", [spec])
        self.blocks.fill("policy", "policy", data)
        return pb.PolicyRef(policy_version=version, tensor=ref), parameters

    async def collect(
        self, session: str, slot: pb.RolloutSlot, policy: pb.PolicyRef, rollout: int
    ) -> Answer[pb.CollectRolloutResponse]:
        """Asks for a rollout."""
        request = pb.CollectRolloutRequest(session=session, slot=slot, policy=policy, rollout=rollout)
        method = self.stub.CollectRollout
        return await self.caller.call(method, request, "deadline", contract_seconds=COLLECT_SECONDS)

    async def close(self, session: str) -> Answer[Any]:
        """Closes a session."""
        request = pb.CloseWorkerRequest(session=session)
        return await self.caller.call(self.stub.CloseWorker, request, "deadline", contract_seconds=CLOSE_SECONDS)


def parts(
    channel: grpc.aio.Channel, judge: Judge, blocks: Blocks, *, environment: EnvironmentSpec, most_seconds: float
) -> list[Callable[[], Awaitable[None]]]:
    """Returns the parts of the examination, in order."""
    stub: Any = pb_grpc.WorkerServiceStub(channel)
    subject = Worker(judge, Caller(judge, most_seconds), stub, blocks, environment)
    examined = (
        *(examine_rollouts, examine_two_calls, examine_progress, examine_sessions, examine_refusals),
        *(worker_policies.examine_recurrence, worker_policies.examine_replay),
    )
    return [lambda part=part: part(subject) for part in examined]  # type: ignore[misc]


async def examine_rollouts(subject: Worker) -> None:
    """Collects rollouts one after another, with a new policy for each, and then with a stale reference."""
    opened = await subject.open("conformance-1")
    slot, history = slots.Slot("slot", subject.blocks, opened), slots.History()
    for rollout in range(3):
        version = FIRST_VERSION + rollout
        ref, parameters = subject.set_policy(opened, version)
        subject.blocks.problems.clear()
        answer = await subject.collect("conformance-1", slot.create(), ref, rollout)
        if answer.code != OK:
            _judge_failed(subject, answer)
        subject.judge.expect("collects", True, "")
        slots.judge_rollout(subject.judge, slots.Rollout(slot, answer.get(), parameters, version, history))
    stale, _ = subject.set_policy(opened, 1)
    subject.set_policy(opened, 2)
    answer = await subject.collect("conformance-1", slot.create(), stale, 3)
    problem = "a rollout was collected with a policy whose memory has been used again"
    subject.judge.expect("generation", answer.code != OK, problem)


def _judge_failed(subject: Worker, answer: Answer[Any]) -> None:
    """Names the requirement that made a rollout fail."""
    for problem in subject.blocks.problems:
        kind, _, text = problem.partition(": ")
        subject.judge.require("chunk-digest" if kind == "digest" else "boxes", False, text)
    name = "finite" if answer.code == "DATA_LOSS" else "collects"
    subject.judge.require(name, False, f"CollectRollout is answered with {answer}")


async def examine_two_calls(subject: Worker) -> None:
    """Has two calls in flight."""
    opened = await subject.open("conformance-2")
    ref, _ = subject.set_policy(opened, FIRST_VERSION)
    names = ("slot-one", "slot-two")
    made = [slots.Slot(name, subject.blocks, opened).create() for name in names]
    first = asyncio.ensure_future(subject.collect("conformance-2", made[0], ref, 0))
    second = asyncio.ensure_future(subject.collect("conformance-2", made[1], ref, 1))
    for answer in await asyncio.gather(first, second):
        problem = f"with two calls in flight, one is answered with {answer}"
        subject.judge.expect("two-calls", answer.code == OK, problem)


async def examine_progress(subject: Worker) -> None:
    """Asks for the progress during a rollout."""
    opened = await subject.open("conformance-3")
    ref, _ = subject.set_policy(opened, FIRST_VERSION)
    slot = slots.Slot("slot", subject.blocks, opened).create()
    running = asyncio.ensure_future(subject.collect("conformance-3", slot, ref, 0))
    try:
        while True:
            call = subject.stub.GetWorker
            answer = await subject.caller.call(call, pb.GetWorkerRequest(), "progress", contract_seconds=GET_SECONDS)
            problem = f"GetWorker is answered with {answer}"
            subject.judge.expect("progress", answer.code in (OK, "UNIMPLEMENTED"), problem)
            if running.done():
                return
            await asyncio.wait([running], timeout=POLL_SECONDS)
    finally:
        await asyncio.gather(running, return_exceptions=True)


async def examine_sessions(subject: Worker) -> None:
    """Closes another session, then the open one, and collects after each."""
    judge, opened = subject.judge, await subject.open("conformance-4")
    ref, _ = subject.set_policy(opened, FIRST_VERSION)
    slot = slots.Slot("slot", subject.blocks, opened)
    closed = await subject.close("conformance-another")
    still = await subject.collect("conformance-4", slot.create(), ref, 0)
    problem = f"after CloseWorker of another session ({closed.code}), CollectRollout is answered with {still}"
    judge.expect("closing", still.code == OK, problem)
    await subject.close("conformance-4")
    for session, what in (("conformance-4", "that was closed"), ("conformance-never-opened", "never opened")):
        answer = await subject.collect(session, slot.create(), ref, 1)
        given = answer if answer.code != OK else "a rollout"
        problem = f"CollectRollout of a session {what} is answered with {given}"
        if judge.expect("not-open", answer.code == "FAILED_PRECONDITION", problem):
            problem = f"the error for a session {what} has {answer.reason or 'no ErrorInfo of the domain podrace'}"
            judge.expect("not-open-reason", answer.reason == NOT_OPEN, problem)


async def examine_refusals(subject: Worker) -> None:
    """Asks for an environment that does not exist."""
    request = subject.open_request("conformance-5")
    request.environment.id = UNKNOWN
    answer = await subject.caller.call(subject.stub.OpenWorker, request, "deadline", contract_seconds=OPEN_SECONDS)
    problem = f"an environment that does not exist is answered with {answer}"
    subject.judge.expect("unknown-environment", answer.code == "INVALID_ARGUMENT", problem)
