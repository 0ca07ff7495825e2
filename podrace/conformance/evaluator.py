"""Examines an EvaluatorService: sessions, policies, episodes and digests."""

import asyncio
import math
import statistics
from array import array
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc

from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.conformance import policies
from podrace.conformance.calls import OK, Answer, Caller
from podrace.conformance.findings import Judge
from podrace.conformance.tensors import Blocks
from podrace.tensor.v1.tensor_pb2 import DATA_TYPE_FLOAT32, DATA_TYPE_FLOAT64, TensorRef, TensorSpec
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec

PROBE = (1.5, -2.25, 1024.0, 0.125)
EPISODES = 5
OPEN_SECONDS = 120.0
CLOSE_SECONDS = 10.0
GET_SECONDS = 2.0
EVALUATE_SECONDS = 1800.0
UNKNOWN = "podrace-conformance-unknown"


@dataclass
class Evaluator:
    """What is examined, and the tensors that it reads."""

    judge: Judge
    caller: Caller
    stub: Any
    blocks: Blocks
    environment: EnvironmentSpec
    policy: pb.PolicySpec
    """The network with its tensors."""

    def open_request(self, session: str) -> pb.OpenEvaluatorRequest:
        """Returns a request that is valid."""
        return pb.OpenEvaluatorRequest(
            session=session, environment=self.environment, policy=self.policy, probe=probe(self.blocks)
        )

    async def open(self, session: str) -> None:
        """Opens a session."""
        request = self.open_request(session)
        answer = await self.caller.call(self.stub.OpenEvaluator, request, "deadline", contract_seconds=OPEN_SECONDS)
        self.judge.require("opens", answer.code == OK, f"OpenEvaluator is answered with {answer}")
        total = answer.get().probe_sum
        self.judge.require("probe", total == sum(PROBE), f"probe_sum is {total} instead of {sum(PROBE)}")

    def set_policy(self, seed: int, name: str = "policy") -> tuple[TensorRef, str]:
        """Writes a policy and returns the reference and its digest."""
        parameters = policies.draw(self.policy.tensors, seed)
        data = policies.block_bytes(parameters)
        spec = TensorSpec(name="policy", data_type=DATA_TYPE_FLOAT32, shape=[len(data) // 4], layout_version=1)
        (ref,) = self.blocks.create(name, [spec])
        self.blocks.fill(name, "policy", data)
        return ref, policies.digest(self.policy.tensors, parameters)

    async def evaluate(
        self, session: str, ref: TensorRef, *, episodes: int = EPISODES, seed: int = 11
    ) -> Answer[pb.EvaluatePolicyResponse]:
        """Asks for a score."""
        policy = pb.PolicyRef(policy_version=1, tensor=ref)
        request = pb.EvaluatePolicyRequest(session=session, policy=policy, episodes=episodes, seed=seed, greedy=True)
        method = self.stub.EvaluatePolicy
        return await self.caller.call(method, request, "deadline", contract_seconds=EVALUATE_SECONDS)

    async def score(self, session: str, ref: TensorRef, **asked: int) -> Evaluation:
        """Returns a score; ends the part of the examination if there is none."""
        answer = await self.evaluate(session, ref, **asked)
        name = "finite" if answer.code == "DATA_LOSS" else "scores"
        self.judge.require(name, answer.code == OK, f"EvaluatePolicy is answered with {answer}")
        return answer.get().evaluation

    async def close(self, session: str) -> Answer[Any]:
        """Closes a session."""
        request = pb.CloseEvaluatorRequest(session=session)
        return await self.caller.call(self.stub.CloseEvaluator, request, "deadline", contract_seconds=CLOSE_SECONDS)


def probe(blocks: Blocks) -> TensorRef:
    """Writes the probe and returns the reference."""
    spec = TensorSpec(name="probe", data_type=DATA_TYPE_FLOAT64, shape=[len(PROBE)], layout_version=1)
    (ref,) = blocks.create("probe", [spec])
    blocks.fill("probe", "probe", array("d", PROBE).tobytes())
    return ref


def parts(
    channel: grpc.aio.Channel,
    judge: Judge,
    blocks: Blocks,
    *,
    environment: EnvironmentSpec,
    policy: pb.PolicySpec,
    most_seconds: float,
) -> list[Callable[[], Awaitable[None]]]:
    """Returns the parts of the examination, in order."""
    stub: Any = pb_grpc.EvaluatorServiceStub(channel)
    subject = Evaluator(judge, Caller(judge, most_seconds), stub, blocks, environment, policy)
    examined = (examine_scores, examine_episodes, examine_sessions, examine_refusals, examine_progress)
    return [lambda part=part: part(subject) for part in examined]  # type: ignore[misc]


async def examine_scores(subject: Evaluator) -> None:
    """Scores two policies, one after the other in the same memory, and a single episode."""
    await subject.open("conformance-1")
    for seed, episodes in ((1, EPISODES), (2, EPISODES), (2, 1)):
        ref, digest = subject.set_policy(seed)
        _check_score(subject.judge, await subject.score("conformance-1", ref, episodes=episodes), episodes, digest)
    stale, _ = subject.set_policy(3)
    subject.set_policy(4)
    answer = await subject.evaluate("conformance-1", stale)
    problem = "a policy whose memory has been used again was scored"
    subject.judge.expect("generation", answer.code != OK, problem)
    await subject.close("conformance-1")


def _check_score(judge: Judge, score: Evaluation, episodes: int, digest: str) -> None:
    judge.expect("digest", score.policy_digest == digest, f"policy_digest is '{score.policy_digest}', not '{digest}'")
    finished = f"{score.episodes} episodes were finished, {episodes} were asked for"
    judge.expect("episodes", score.episodes >= episodes, finished)
    numbers = [score.mean_return, score.variance, *score.episode_returns]
    if not judge.expect(
        "finite", all(map(math.isfinite, numbers)), f"mean_return is {score.mean_return}, variance {score.variance}"
    ):
        return
    returns = list(score.episode_returns)
    if returns:
        mean = statistics.fmean(returns)
        alike = len(returns) == score.episodes and _close(mean, score.mean_return, returns)
        given = f"mean_return is {score.mean_return:g}, the mean of {len(returns)} returns is {mean:g}"
        judge.expect("mean", alike, given)
    else:
        judge.skip("mean", "the service reports no returns of episodes")
    if score.episodes == 1:
        judge.expect("variance", score.variance == 0.0, f"the variance of a single episode is {score.variance}")
    elif len(returns) > 1:
        wanted = statistics.variance(returns)
        problem = f"variance is {score.variance:g}, that of the returns is {wanted:g}"
        judge.expect("variance", _close(wanted, score.variance, [wanted]), problem)


def _close(one: float, other: float, scale: list[float]) -> bool:
    return abs(one - other) <= 1e-4 * (1.0 + max(abs(value) for value in scale))


async def examine_episodes(subject: Evaluator) -> None:
    """Plays episodes of one seed twice, the second time fewer of them."""
    await subject.open("conformance-2")
    ref, _ = subject.set_policy(5)
    whole = await subject.score("conformance-2", ref, episodes=EPISODES)
    fewer = await subject.score("conformance-2", ref, episodes=EPISODES - 2)
    await subject.close("conformance-2")
    if not (whole.episode_returns and fewer.episode_returns):
        reason = whole.unpaired_reason or "the service reports no returns of episodes"
        subject.judge.skip("same-episodes", reason)
        return
    pairs = zip(whole.episode_returns, fewer.episode_returns, strict=False)
    other = [number for number, pair in enumerate(pairs) if not math.isclose(*pair, rel_tol=1e-4, abs_tol=1e-6)]
    problem = f"episodes {other} of a seed had other returns when the same policy played them again"
    subject.judge.expect("same-episodes", not other, problem)


async def examine_sessions(subject: Evaluator) -> None:
    """Uses two sessions at the same time."""
    judge = subject.judge
    await subject.open("conformance-3")
    await subject.open("conformance-4")
    one, two = subject.set_policy(6, "policy-one"), subject.set_policy(7, "policy-two")
    answers = await asyncio.gather(subject.evaluate("conformance-3", one[0]), subject.evaluate("conformance-4", two[0]))
    for answer, (_, digest), name in zip(answers, (one, two), ("first", "second"), strict=True):
        problem = f"with two sessions open, EvaluatePolicy of the {name} is answered with {answer}"
        judge.require("sessions", answer.code == OK, problem)
        right = answer.get().evaluation.policy_digest == digest
        judge.expect("sessions", right, f"with two sessions open, the {name} scored another policy than its own")
    closed = await subject.close("conformance-4")
    judge.expect("closing", closed.code == OK, f"CloseEvaluator is answered with {closed}")
    still = await subject.evaluate("conformance-3", one[0])
    judge.expect(
        "closing", still.code == OK, f"after another session was closed, EvaluatePolicy is answered with {still}"
    )
    gone = await subject.evaluate("conformance-4", two[0])
    _check_not_open(judge, gone, "a session that was closed")
    await subject.close("conformance-3")


def _check_not_open(judge: Judge, answer: Answer[Any], what: str) -> None:
    given = answer if answer.code != OK else "a score"
    judge.expect("not-open", answer.code == "FAILED_PRECONDITION", f"EvaluatePolicy of {what} is answered with {given}")


async def examine_refusals(subject: Evaluator) -> None:
    """Makes calls that the service must refuse."""
    ref, _ = subject.set_policy(8)
    _check_not_open(subject.judge, await subject.evaluate("conformance-never-opened", ref), "a session never opened")
    request = subject.open_request("conformance-5")
    request.environment.id = UNKNOWN
    answer = await subject.caller.call(subject.stub.OpenEvaluator, request, "deadline", contract_seconds=OPEN_SECONDS)
    problem = f"an environment that does not exist is answered with {answer}"
    subject.judge.expect("unknown-environment", answer.code == "INVALID_ARGUMENT", problem)


async def examine_progress(subject: Evaluator) -> None:
    """Asks for the progress during an evaluation."""
    await subject.open("conformance-6")
    ref, _ = subject.set_policy(9)
    running = asyncio.ensure_future(subject.evaluate("conformance-6", ref))
    try:
        await asyncio.sleep(0)
        call = subject.stub.GetEvaluator
        answer = await subject.caller.call(call, pb.GetEvaluatorRequest(), "progress", contract_seconds=GET_SECONDS)
        problem = f"GetEvaluator is answered with {answer}"
        subject.judge.expect("progress", answer.code in (OK, "UNIMPLEMENTED"), problem)
    finally:
        await asyncio.gather(running, return_exceptions=True)
    await subject.close("conformance-6")
