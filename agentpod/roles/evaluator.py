"""The evaluator: scores policies on environments and seeds of its own, and returns each score with the digest of
the policy that earned it.

`EvaluationSession` computes, on the compute thread; `EvaluatorServicer` only translates.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc.aio
import prometheus_client
import torch
from torch import Tensor

from agentpod.compute_thread import ComputeThread
from agentpod.experience.slots import POLICY
from agentpod.models.actors import Actor, EnsembleActor, PolicyActor
from agentpod.models.messages import network_spec, policy_message
from agentpod.models.policy import Policy
from agentpod.seeding import derive_generator, derive_seed
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation, Trace
from podrace.errors import NOT_OPEN, Cancelled, DataLoss, FailedPrecondition, InvalidArgument
from podrace.tensor_transport.codec import digest, encode
from podrace.tensor_transport.plane import Planes
from podrace.tensor_transport.probe import answer_probe
from simulators import Report, Simulator, Step
from simulators.messages import make_simulator, space_message

MAXIMUM_EPISODE_STEPS = 100_000
"""Longer than any episode worth waiting for; an environment without an end would hold the evaluator for ever."""
EVALUATIONS = prometheus_client.Counter("podrace_evaluator_evaluations", "Policies scored")
BUSY = prometheus_client.Counter("podrace_evaluator_busy_seconds", "Seconds spent playing episodes")
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


class Play(Protocol):
    """Plays whole episodes and returns their scores; `play` is the house's, a user may have another."""

    def __call__(
        self, simulator: Simulator, actor: Actor, episodes: int, seed: int, *, cancelled: threading.Event | None = None
    ) -> Episodes:
        """See `play`."""
        ...


def play(
    simulator: Simulator, actor: Actor, episodes: int, seed: int, *, cancelled: threading.Event | None = None
) -> Episodes:
    """Plays whole episodes and returns their scores.

    Every lane plays the same number of episodes, give or take one, decided before the first step: taking the first
    `episodes` to finish, whichever lane they come from, would favour short ones.

    Args:
        simulator: N lanes.
        actor: What acts, at the beginning of its episodes.
        episodes: E, how many to count.
        seed: Of the environments.
        cancelled: Looked at before each step.

    Raises:
        DataLoss: A return is not finite, or an episode does not end.
        Cancelled: `cancelled` was set.
    """
    tally = EpisodeTally.of(simulator.count, episodes)
    observation = simulator.reset(derive_seed(seed, "reset"))
    while not tally.complete:
        if cancelled is not None and cancelled.is_set():
            raise Cancelled("the evaluation was called off")
        step = simulator.step(actor.act(observation))
        observation = step.observation
        actor.reset(step.terminated | step.truncated)
        tally.add(step)
    return tally.episodes()


@dataclass
class EpisodeTally:
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
    def of(cls, lanes: int, episodes: int) -> "EpisodeTally":
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


class EvaluationSession:
    """The environments and the policies of one session.

    Attributes:
        request: What it was opened for.
        simulator: Of the episodes that count.
        policies: One, or the members of an ensemble.
    """

    def __init__(self, request: pb.OpenEvaluatorRequest, device: torch.device, play: Play = play) -> None:
        """Makes the simulator.

        Raises:
            InvalidArgument: The environment cannot be made, or a policy cannot act in it.
        """
        self.request, self._device, self._play = request, device, play
        self.simulator: Simulator = make_simulator(request.environment, device)
        spaces = self.simulator.observation_space, self.simulator.action_space
        try:
            self.policies = [
                Policy(*spaces, network_spec(policy), device=device) for policy in (request.policy, *request.members)
            ]
        except BaseException:
            # Nobody else knows of it.
            self.simulator.close()
            raise

    def evaluate(self, request: pb.EvaluatePolicyRequest, planes: Planes, cancelled: threading.Event) -> Evaluation:
        """Scores a policy, or an ensemble.

        Raises:
            InvalidArgument: There are more or fewer policies than it was opened for.
            DataLoss, Cancelled: As `play`; a policy that was changed meanwhile is DataLoss, too.
        """
        if cancelled.is_set():
            # Called off while it waited for its turn: the memory may be gone, and is not to be mapped again.
            raise Cancelled("the evaluation was called off")
        started = time.monotonic()
        self._copy((request.policy, *request.members), planes)
        digests = self._digests()
        with torch.no_grad():
            actor = self._actor(request.seed, greedy=request.greedy)
            episodes = self._play(self.simulator, actor, request.episodes, request.seed, cancelled=cancelled)
        if self._digests() != digests:
            raise DataLoss("the policy was changed while it was scored: it must be left as it is")
        evaluation = score(episodes)
        add_report(evaluation, self.simulator.report())
        evaluation.seed = request.seed
        evaluation.policy_digest, *others = digests
        evaluation.member_policy_digests.extend(others)
        evaluation.wall_seconds = time.monotonic() - started
        return evaluation

    def _copy(self, refs: Sequence[pb.PolicyRef], planes: Planes) -> None:
        """Takes the evaluator's own copy of each policy."""
        if len(refs) != len(self.policies):
            raise InvalidArgument(f"{len(refs)} policies to be scored, opened for {len(self.policies)}")
        for policy, ref in zip(self.policies, refs, strict=True):
            policy.load(planes.open([ref.tensor])[POLICY])

    def _digests(self) -> list[str]:
        """Of its own copies."""
        return [digest(encode(policy.tensors(), {})) for policy in self.policies]

    def _actor(self, seed: int, *, greedy: bool) -> Actor:
        def actor(policy: Policy, *name: int) -> Actor:
            generator = derive_generator(self._device, seed, "act", *name)
            return PolicyActor(policy, self.simulator.count, generator, greedy=greedy)

        first, *others = self.policies
        if not others:
            return actor(first)
        members = [actor(first), *(actor(policy, index) for index, policy in enumerate(others, start=1))]
        return EnsembleActor(members, self.simulator.action_space.n)


class EvaluatorServicer(pb_grpc.EvaluatorServiceServicer):
    """Serves the evaluator of a pod."""

    def __init__(
        self, planes: Planes, compute: ComputeThread, play: Play = play, device: torch.device | None = None
    ) -> None:
        """Opens nothing yet; computes on `device`, or where the plane has its memory."""
        self._planes, self._compute, self._play, self._device = planes, compute, play, device
        self._judge: EvaluationSession | None = None
        self._made: EvaluationSession | None = None
        """The last one that was made, also for a caller that did not wait for it."""
        self._opened_uris: set[str] = set()

    async def OpenEvaluator(
        self, request: pb.OpenEvaluatorRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.OpenEvaluatorResponse:
        """Opens; see the contract."""
        await self._shut()
        answer = await answer_probe(self._planes, request.probe)
        judge = self._judge = await self._compute.run(self._make, request, self._device or answer.device)
        simulator = judge.simulator
        return pb.OpenEvaluatorResponse(
            observation_space=space_message(simulator.observation_space),
            action_space=space_message(simulator.action_space),
            policy=policy_message(network_spec(request.policy), judge.policies[0].tensors()),
            members=[
                policy_message(network_spec(member), policy.tensors())
                for member, policy in zip(request.members, judge.policies[1:], strict=True)
            ],
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
        tensors = [ref.tensor for ref in (request.policy, *request.members)]
        self._opened_uris |= {tensor.plane_uri for tensor in tensors}
        for tensor in tensors:
            # One by one: all have the same name.
            await self._planes.pull([tensor])
        cancelled, started = threading.Event(), time.monotonic()
        try:
            evaluation = await self._compute.run(judge.evaluate, request, self._planes, cancelled)
        finally:
            BUSY.inc(time.monotonic() - started)
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
        self._judge = None
        await self._compute.run(self._close)
        for plane_uri in self._opened_uris:
            self._planes.forget(plane_uri)
        self._opened_uris.clear()

    def _make(self, request: pb.OpenEvaluatorRequest, device: torch.device) -> EvaluationSession:
        """On the compute thread, after what was asked of it before: at most one has a simulator."""
        self._close()
        self._made = EvaluationSession(request, device, self._play)
        return self._made

    def _close(self) -> None:
        made, self._made = self._made, None
        if made:
            made.simulator.close()
