"""Runs an evaluator: scores policies on its own environments and seeds, and returns each score with a policy digest.

`EvaluationSession` computes, on the compute thread. `EvaluatorServicer` only translates.
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
"""Limit on the length of an episode, without which an endless environment would occupy the evaluator forever."""
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
    """Plays whole episodes and returns their scores. `play` is the built-in function; a user may supply another."""

    def __call__(
        self, simulator: Simulator, actor: Actor, episodes: int, seed: int, *, cancelled: threading.Event | None = None
    ) -> Episodes:
        """Plays as `play` does."""
        ...


def play(
    simulator: Simulator, actor: Actor, episodes: int, seed: int, *, cancelled: threading.Event | None = None
) -> Episodes:
    """Plays whole episodes and returns their scores.

    The number of episodes of each lane is decided before the first step and differs by at most one between lanes.
    Taking the first `episodes` that end on any lane would favor short ones.

    Args:
        simulator: N environments, one in each lane.
        actor: Acts in all lanes, at the start of its episodes.
        episodes: E, number of episodes to play.
        seed: Seed of the environments.
        cancelled: Checked before each step.

    Raises:
        DataLoss: A return is not finite, or an episode does not end.
        Cancelled: `cancelled` was set.
    """
    tally = EpisodeTally.of(simulator.count, episodes)
    observation = simulator.reset(derive_seed(seed, "reset"))
    while not tally.complete:
        if cancelled is not None and cancelled.is_set():
            raise Cancelled("the evaluation was cancelled")
        step = simulator.step(actor.act(observation))
        observation = step.observation
        actor.reset(step.terminated | step.truncated)
        tally.add(step)
    return tally.episodes()


@dataclass
class EpisodeTally:
    """Counts finished episodes of each lane, up to the lane's quota. All tensors have shape [N]."""

    quota: Tensor
    """int64, number of episodes that each lane plays."""
    finished: Tensor
    """int64, number of episodes that each lane has finished, up to its quota."""
    episode_return: Tensor
    """float64, returns so far of the episodes under way."""
    episode_length: Tensor
    """int64, steps so far of the episodes under way."""
    steps: int = 0
    returns: list[Tensor] = field(default_factory=list)
    lengths: list[Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, lanes: int, episodes: int) -> "EpisodeTally":
        """Returns a tally without any steps."""
        none = torch.zeros(lanes, dtype=torch.int64)
        quota = episodes // lanes + (torch.arange(lanes) < episodes % lanes)
        return cls(quota, none, torch.zeros(lanes, dtype=torch.float64), none.clone())

    @property
    def complete(self) -> bool:
        """Whether every lane has finished its quota."""
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
        """Returns the finished episodes; raises DataLoss as `play` does."""
        result = Episodes(torch.cat(self.returns), torch.cat(self.lengths))
        if not bool(result.returns.isfinite().all()):
            raise DataLoss(
                "an evaluation return is not finite: check the rewards of the simulator",
                reason="ERROR_REASON_NON_FINITE",
            )
        return result


def score(episodes: Episodes) -> Evaluation:
    """Returns the mean and the unbiased variance of the returns, and the mean length; the variance of one is 0."""
    count = len(episodes.returns)
    return Evaluation(
        mean_return=float(episodes.returns.mean()),
        variance=float(episodes.returns.var()) if count > 1 else 0.0,
        episodes=count,
        mean_length_steps=float(episodes.lengths.double().mean()),
    )


def add_report(evaluation: Evaluation, report: Report) -> None:
    """Adds the metrics and traces that the simulator reports.

    A trace takes the labels of the same name, or those of the only set of labels, if their numbers agree.
    """
    evaluation.metrics.update(report.metrics)
    only = next(iter(report.labels.values())) if len(report.labels) == 1 else []
    for name, values in report.traces.items():
        labels = report.labels.get(name, only)
        evaluation.traces[name].CopyFrom(Trace(values=values, labels=labels if len(labels) == len(values) else ()))


class EvaluationSession:
    """The environments and the policies of one session.

    Attributes:
        request: The request that opened the session.
        simulator: The environments.
        policies: The evaluator's copies of the policy, or of the members of an ensemble.
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
            # No other object would close it.
            self.simulator.close()
            raise

    def evaluate(self, request: pb.EvaluatePolicyRequest, planes: Planes, cancelled: threading.Event) -> Evaluation:
        """Scores a policy, or an ensemble.

        Raises:
            InvalidArgument: The number of policies is not that of the session.
            DataLoss: As `play`; also if a policy was changed during the evaluation.
            Cancelled: `cancelled` was set.
        """
        if cancelled.is_set():
            # Cancelled while it waited for the compute thread: the memory may no longer exist and must not be mapped.
            raise Cancelled("the evaluation was cancelled")
        started = time.monotonic()
        self._copy((request.policy, *request.members), planes)
        digests = self._digests()
        with torch.no_grad():
            actor = self._actor(request.seed, greedy=request.greedy)
            episodes = self._play(self.simulator, actor, request.episodes, request.seed, cancelled=cancelled)
        if self._digests() != digests:
            raise DataLoss("the policy was changed while it was scored: an evaluation function must not modify it")
        evaluation = score(episodes)
        add_report(evaluation, self.simulator.report())
        evaluation.seed = request.seed
        evaluation.policy_digest, *others = digests
        evaluation.member_policy_digests.extend(others)
        evaluation.wall_seconds = time.monotonic() - started
        return evaluation

    def _copy(self, refs: Sequence[pb.PolicyRef], planes: Planes) -> None:
        """Copies each policy from shared memory."""
        if len(refs) != len(self.policies):
            raise InvalidArgument(f"{len(refs)} policies to score, but the session has {len(self.policies)}")
        for policy, ref in zip(self.policies, refs, strict=True):
            policy.load(planes.open([ref.tensor])[POLICY])

    def _digests(self) -> list[str]:
        """Returns the digests of the copies."""
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
        """Starts without a session; computes on `device`, or where the plane has its memory."""
        self._planes, self._compute, self._play, self._device = planes, compute, play, device
        self._session: EvaluationSession | None = None
        self._made: EvaluationSession | None = None
        """The last session that was made, even if its caller did not wait for it."""
        self._opened_uris: set[str] = set()

    async def OpenEvaluator(
        self, request: pb.OpenEvaluatorRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.OpenEvaluatorResponse:
        """Opens a session; see the contract."""
        await self._close_session()
        answer = await answer_probe(self._planes, request.probe)
        session = self._session = await self._compute.run(self._make, request, self._device or answer.device)
        simulator = session.simulator
        return pb.OpenEvaluatorResponse(
            observation_space=space_message(simulator.observation_space),
            action_space=space_message(simulator.action_space),
            policy=policy_message(network_spec(request.policy), session.policies[0].tensors()),
            members=[
                policy_message(network_spec(member), policy.tensors())
                for member, policy in zip(request.members, session.policies[1:], strict=True)
            ],
            probe_sum=answer.sum,
        )

    async def EvaluatePolicy(
        self, request: pb.EvaluatePolicyRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.EvaluatePolicyResponse:
        """Scores a policy or an ensemble; see the contract."""
        session = self._session
        if session is None or session.request.session != request.session:
            raise FailedPrecondition(
                f"the evaluator is not open for session {request.session!r}; open it", reason=NOT_OPEN
            )
        tensors = [ref.tensor for ref in (request.policy, *request.members)]
        self._opened_uris |= {tensor.plane_uri for tensor in tensors}
        for tensor in tensors:
            # One at a time, because all have the same name.
            await self._planes.pull([tensor])
        cancelled, started = threading.Event(), time.monotonic()
        try:
            evaluation = await self._compute.run(session.evaluate, request, self._planes, cancelled)
        finally:
            BUSY.inc(time.monotonic() - started)
            # A caller that no longer waits must not occupy the compute thread.
            cancelled.set()
        EVALUATIONS.inc()
        EPISODES.inc(evaluation.episodes)
        return pb.EvaluatePolicyResponse(evaluation=evaluation)

    async def CloseEvaluator(
        self, request: pb.CloseEvaluatorRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CloseEvaluatorResponse:
        """Closes a session; see the contract."""
        if self._session and self._session.request.session == request.session:
            await self._close_session()
        return pb.CloseEvaluatorResponse()

    async def _close_session(self) -> None:
        self._session = None
        await self._compute.run(self._close)
        for plane_uri in self._opened_uris:
            self._planes.forget(plane_uri)
        self._opened_uris.clear()

    def _make(self, request: pb.OpenEvaluatorRequest, device: torch.device) -> EvaluationSession:
        """Closes the previous session and makes one, on the compute thread: at most one simulator exists."""
        self._close()
        self._made = EvaluationSession(request, device, self._play)
        return self._made

    def _close(self) -> None:
        made, self._made = self._made, None
        if made:
            made.simulator.close()
