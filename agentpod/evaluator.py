"""The evaluator: scores policies on environments and seeds of its own, and signs the score with the policy's digest.

`Judge` computes, on the compute thread; `EvaluatorServicer` only translates.
"""

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import prometheus_client
import torch
from torch import Tensor

from agentpod.buffer import POLICY
from agentpod.compute import Compute
from agentpod.messages import make_simulator, network_spec, policy_message, space_message
from agentpod.policy import Policy
from agentpod.randomness import derive_generator, derive_seed
from agentpod.worker import NOT_OPEN
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation, Trace
from podrace.errors import Cancelled, DataLoss, FailedPrecondition
from podrace.tensors.codec import digest, encode
from podrace.tensors.plane import Planes
from podrace.tensors.probe import answer_probe
from simulators import Report, Simulator, Step

MAXIMUM_EPISODE_STEPS = 100_000
"""Longer than any episode worth waiting for; an environment without an end would hold the evaluator for ever."""
EVALUATIONS = prometheus_client.Counter("podrace_evaluator_evaluations", "Policies scored")
EPISODES = prometheus_client.Counter("podrace_evaluator_episodes", "Episodes played")


@dataclass(frozen=True)
class Episodes:
    """Finished evaluation episodes.

    Attributes:
        returns: [E] float64, undiscounted.
        lengths: [E] int64, in steps.
    """

    returns: Tensor
    lengths: Tensor


def play(
    simulator: Simulator,
    policy: Policy,
    episodes: int,
    seed: int,
    *,
    greedy: bool,
    cancelled: threading.Event | None = None,
) -> Episodes:
    """Plays whole episodes and returns their scores.

    Every lane plays the same number of episodes, give or take one, decided before the first step: taking the first
    `episodes` to finish, whichever lane they come from, would favour short ones.

    Args:
        simulator: N lanes.
        policy: What acts.
        episodes: E, how many to count.
        seed: Of the environments and of the actions.
        greedy: Take the likeliest action.
        cancelled: Looked at before each step.

    Raises:
        DataLoss: A return is not finite, or an episode does not end.
        Cancelled: `cancelled` was set.
    """
    tally = Tally.of(simulator.count, episodes)
    generator = derive_generator(policy.flat.device, seed, "act")
    observation, state = simulator.reset(derive_seed(seed, "reset")), policy.begin(simulator.count)
    while not tally.complete:
        if cancelled is not None and cancelled.is_set():
            raise Cancelled("the evaluation was called off")
        outputs, state = policy.advance(observation, state)
        if greedy:
            action = policy.head.mode(outputs)
        else:
            action = policy.head.sample(outputs, policy.noise((simulator.count,), generator))
        step = simulator.step(policy.to_environment(action))
        observation = step.observation
        policy.forget(state, step.terminated | step.truncated)
        tally.add(step)
    return tally.episodes()


@dataclass
class Tally:
    """Counts finished episodes, lane by lane, up to each lane's quota. All tensors are [N]."""

    quota: Tensor
    """Episodes each lane is to play."""
    finished: Tensor
    """Episodes each lane has played, up to its quota."""
    episode_return: Tensor
    """float64, of the episodes under way."""
    episode_length: Tensor
    """Steps of the episodes under way."""
    steps: int = 0
    returns: list[Tensor] = field(default_factory=list)
    lengths: list[Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, lanes: int, episodes: int) -> "Tally":
        """Nothing counted yet."""
        none = torch.zeros(lanes, dtype=torch.int64)
        quota = episodes // lanes + (torch.arange(lanes) < episodes % lanes)
        return cls(quota, none, torch.zeros(lanes, dtype=torch.float64), none.clone())

    @property
    def complete(self) -> bool:
        """Whether every lane has played its quota."""
        return bool((self.finished >= self.quota).all())

    def add(self, step: Step) -> None:
        """Counts one step of every lane; raises DataLoss as `play` does."""
        self.steps += 1
        self.episode_return += step.reward.cpu()
        self.episode_length += 1
        if self.steps >= MAXIMUM_EPISODE_STEPS and int(self.episode_length.max()) >= MAXIMUM_EPISODE_STEPS:
            raise DataLoss(
                f"an evaluation episode has not ended after {MAXIMUM_EPISODE_STEPS} steps: give the environment a time"
                " limit, for instance environment.options.max_episode_steps"
            )
        done = (step.terminated | step.truncated).cpu()
        if bool(done.any()):
            counted = done & (self.finished < self.quota)
            self.returns.append(self.episode_return[counted])
            self.lengths.append(self.episode_length[counted])
            self.finished = self.finished + counted
            self.episode_return[done] = 0.0
            self.episode_length[done] = 0

    def episodes(self) -> Episodes:
        """What was counted; raises DataLoss as `play` does."""
        result = Episodes(torch.cat(self.returns), torch.cat(self.lengths))
        if not bool(result.returns.isfinite().all()):
            raise DataLoss(
                "an evaluation return is not finite: look at the rewards of the simulator",
                reason="ERROR_REASON_NON_FINITE",
            )
        return result


def score(episodes: Episodes) -> Evaluation:
    """Mean and unbiased variance of the returns."""
    count = len(episodes.returns)
    return Evaluation(
        mean_return=float(episodes.returns.mean()),
        variance=float(episodes.returns.var()) if count > 1 else 0.0,
        episodes=count,
        mean_length_steps=float(episodes.lengths.double().mean()),
    )


def add_report(evaluation: Evaluation, report: Report) -> None:
    """Adds the domain's own measures; a trace takes the labels of the same name, or the only ones there are."""
    evaluation.metrics.update(report.metrics)
    only = next(iter(report.labels.values())) if len(report.labels) == 1 else []
    for name, values in report.traces.items():
        labels = report.labels.get(name, only)
        evaluation.traces[name].CopyFrom(Trace(values=values, labels=labels if len(labels) == len(values) else ()))


@dataclass
class Judge:
    """The environments and the policy of one session."""

    request: pb.OpenEvaluatorRequest
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    simulator: Simulator = field(init=False)
    policy: Policy = field(init=False)

    def __post_init__(self) -> None:
        self.simulator = make_simulator(self.request.environment, self.device)
        self.policy = Policy(
            self.simulator.observation_space,
            self.simulator.action_space,
            network_spec(self.request.policy),
            device=self.device,
        )

    def copy(self, request: pb.EvaluatePolicyRequest, planes: Planes) -> str:
        """Takes the evaluator's own copy of a policy and returns its digest, computed from that copy."""
        self.policy.load(planes.open([request.policy.tensor])[POLICY])
        return digest(encode(self.policy.tensors(), {}))

    def evaluate(self, request: pb.EvaluatePolicyRequest, planes: Planes, cancelled: threading.Event) -> Evaluation:
        """Scores a policy; raises as `play` does."""
        started = time.monotonic()
        policy_digest = self.copy(request, planes)
        with torch.no_grad():
            episodes = play(
                self.simulator, self.policy, request.episodes, request.seed, greedy=request.greedy, cancelled=cancelled
            )
        evaluation = score(episodes)
        add_report(evaluation, self.simulator.report())
        evaluation.seed = request.seed
        evaluation.policy_digest = policy_digest
        evaluation.wall_seconds = time.monotonic() - started
        return evaluation


class EvaluatorServicer(pb_grpc.EvaluatorServiceServicer):
    """Serves the evaluator of a pod."""

    def __init__(self, planes: Planes, compute: Compute) -> None:
        """Opens nothing yet."""
        self._planes = planes
        self._compute = compute
        self._judge: Judge | None = None
        self._opened_uris: set[str] = set()

    async def OpenEvaluator(
        self, request: pb.OpenEvaluatorRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.OpenEvaluatorResponse:
        """Opens; see the contract."""
        await self._shut()
        answer = await answer_probe(self._planes, request.probe)
        self._judge = await self._compute.run(Judge, request, answer.device)
        simulator, policy = self._judge.simulator, self._judge.policy
        return pb.OpenEvaluatorResponse(
            observation_space=space_message(simulator.observation_space),
            action_space=space_message(simulator.action_space),
            policy=policy_message(network_spec(request.policy), policy.tensors()),
            probe_sum=answer.sum,
        )

    async def EvaluatePolicy(
        self, request: pb.EvaluatePolicyRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.EvaluatePolicyResponse:
        """Scores; see the contract."""
        judge = self._judge
        if judge is None or judge.request.session != request.session:
            raise FailedPrecondition(
                f"the evaluator is not open for session {request.session!r}; open it", reason=NOT_OPEN
            )
        self._opened_uris.add(request.policy.tensor.plane_uri)
        await self._planes.pull([request.policy.tensor])
        cancelled = threading.Event()
        try:
            evaluation = await self._compute.run(judge.evaluate, request, self._planes, cancelled)
        finally:
            # A caller that went away must not keep the compute thread.
            cancelled.set()
        EVALUATIONS.inc()
        EPISODES.inc(evaluation.episodes)
        return pb.EvaluatePolicyResponse(evaluation=evaluation)

    async def CloseEvaluator(
        self, request: pb.CloseEvaluatorRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CloseEvaluatorResponse:
        """Closes; see the contract."""
        if self._judge and self._judge.request.session == request.session:
            await self._shut()
        return pb.CloseEvaluatorResponse()

    async def _shut(self) -> None:
        judge, self._judge = self._judge, None
        if judge:
            await self._compute.run(judge.simulator.close)
        for plane_uri in self._opened_uris:
            self._planes.forget(plane_uri)
        self._opened_uris.clear()
