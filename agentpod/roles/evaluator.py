"""Runs an evaluator: scores policies on its own environments and seeds, and returns each score with a policy digest.

`EvaluationSession` computes, on the compute thread. `EvaluatorServicer` only translates. agentpod.roles.episodes
defines which episodes are played.
"""

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import grpc.aio
import prometheus_client
import structlog
import torch

from agentpod.compute_thread import ComputeThread
from agentpod.liveness.activity import Activity, CountedCancellation
from agentpod.memory_errors import needs_memory_for
from agentpod.models.actors import Actor, EnsembleActor, PolicyActor
from agentpod.models.messages import network_spec, policy_message
from agentpod.models.policy import Policy
from agentpod.roles.episodes import (
    Episodes,
    Play,
    Slices,
    add_report,
    next_slice,
    play,
    play_in_slices,
    score,
)
from agentpod.roles.evaluation_check import MOST_RETURNS
from agentpod.roles.objectives import FOLD, MOST_FOLDS, MOST_MEASURES, episode_values
from agentpod.roles.opponents import OpponentSeats, is_game, match_results, references
from agentpod.roles.placement import Place, at_the_plane
from agentpod.roles.repeatability import find_difference
from agentpod.roles.slot_checks import open_policy
from agentpod.seeding import derive_generator
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.errors import NOT_OPEN, Cancelled, DataLoss, FailedPrecondition, InvalidArgument
from podrace.limits.config import NOTHING, Allowed
from podrace.orchestrator.v1.orchestrator_pb2 import ROLE_PHASE_EVALUATING, ROLE_PHASE_OPENING, ROLE_PHASE_WAITING
from podrace.tensor.v1.tensor_pb2 import TensorRef
from podrace.tensor_transport.codec import digest, encode
from podrace.tensor_transport.plane import Planes
from podrace.tensor_transport.probe import answer_probe
from simulators import Simulator
from simulators.messages import make_simulator, space_message

EVALUATIONS = prometheus_client.Counter("podrace_evaluator_evaluations", "Policies scored")
BUSY = prometheus_client.Counter("podrace_evaluator_busy_seconds", "Seconds spent playing episodes")
EPISODES = prometheus_client.Counter("podrace_evaluator_episodes", "Episodes played")
SLICE_SECONDS = 0.2
"""Duration of a slice on a GPU. An update takes a fraction of it, so it waits for a short time only."""
_log = structlog.get_logger(__name__)


__all__ = ["Episodes", "EvaluationSession", "EvaluatorServicer", "Play", "play", "score"]


class Stopwatch:
    """Measures wall-clock time without pauses; runs from the start."""

    def __init__(self) -> None:
        self._before, self._started = 0.0, time.monotonic()

    def pause(self) -> None:
        """Stops measuring."""
        self._before = self.seconds()

    def resume(self) -> None:
        """Continues after `pause`."""
        self._started = time.monotonic()

    def seconds(self) -> float:
        """Returns the measured time while it runs."""
        return self._before + time.monotonic() - self._started


class EvaluationSession:
    """The environments and the policies of one session.

    Attributes:
        request: The request that opened the session.
        simulator: The environments.
        policies: The evaluator's copies of the policy, or of the members of an ensemble.
    """

    def __init__(
        self,
        request: pb.OpenEvaluatorRequest,
        device: torch.device,
        play: Play,
        allowed: Allowed,
        activity: Activity,
        slice_seconds: float | None = None,
    ) -> None:
        """Makes the simulator.

        Args:
            request: What to open.
            device: Device to compute on.
            play: Plays episodes.
            allowed: Environments that a session may name.
            activity: What the role does.
            slice_seconds: Duration of a slice; None: SLICE_SECONDS on a GPU, and everything in one slice elsewhere.

        Raises:
            InvalidArgument: The environment is not allowed or cannot be made, or a policy cannot act in it.
        """
        self.request, self._device, self._play, self._activity = request, device, play, activity
        default = SLICE_SECONDS if device.type == "cuda" else math.inf
        self._slice_seconds = default if slice_seconds is None else slice_seconds
        self._difference: str | None = None
        """How two runs of the simulator with one seed differ; None before that was checked."""
        self.simulator: Simulator = make_simulator(request.environment, device, allowed)
        self._seats = OpponentSeats(self.simulator, request.environment.id, device)
        spaces = self.simulator.observation_space, self.simulator.action_space
        try:
            self.policies = [
                Policy(*spaces, network_spec(policy), device=device) for policy in (request.policy, *request.members)
            ]
        except BaseException:
            # No other object would close it.
            self.simulator.close()
            raise

    @needs_memory_for("evaluation.episodes")
    def next_slice(self, slices: Slices[Evaluation]) -> Evaluation | None:
        """Runs a slice of `evaluate`; returns the score after the last one. Raises as `evaluate`."""
        # Modes of the thread, which other work between two slices must not have.
        with torch.no_grad(), self._activity.doing(ROLE_PHASE_EVALUATING):
            return next_slice(slices)

    def evaluate(
        self, request: pb.EvaluatePolicyRequest, planes: Planes, cancelled: threading.Event
    ) -> Slices[Evaluation]:
        """Scores a policy, or an ensemble: on a GPU in slices, between which the compute thread does other work.

        Raises:
            InvalidArgument: The number of policies is not that of the session, or the simulator does not report the
                objective.
            DataLoss: As `play` and `add_measures`; also if a policy was changed during the evaluation.
            Cancelled: `cancelled` was set.
        """
        if cancelled.is_set():
            # Cancelled while it waited for the compute thread: the memory may no longer exist and must not be mapped.
            raise Cancelled("the evaluation was cancelled")
        stopwatch = Stopwatch()
        self._copy((request.policy, *request.members), planes)
        digests = self._digests()
        actor = self._actor(request.seed, greedy=request.greedy)
        self._seats.seat(request.opponents, planes, request.seed, greedy=request.greedy)
        unpaired_reason = self._why_unpaired(request)
        playing = self._playing(request, actor, cancelled)
        while (episodes := next_slice(playing)) is None:
            stopwatch.pause()
            yield
            stopwatch.resume()
        if self._digests() != digests:
            raise DataLoss("the policy was changed while it was scored: an evaluation function must not modify it")
        worth = valued(episodes, request.objective)
        evaluation = score(worth)
        add_report(evaluation, episodes.report or self.simulator.report())
        add_returns(evaluation, worth, unpaired_reason)
        add_measures(evaluation, episodes, request.objective)
        if is_game(self.simulator):
            names = [one.candidate_id for one in request.opponents]
            evaluation.matches.extend(
                match_results(episodes.returns, request.first_episode, self.simulator.count, names)
            )
        evaluation.seed = request.seed
        evaluation.policy_digest, *others = digests
        evaluation.member_policy_digests.extend(others)
        evaluation.wall_seconds = stopwatch.seconds()
        return evaluation

    def _playing(self, request: pb.EvaluatePolicyRequest, actor: Actor, cancelled: threading.Event) -> Slices[Episodes]:
        """Plays the episodes of a request; a function of the user plays them in one slice."""
        called, first = (self.simulator, actor, request.episodes, request.seed), request.first_episode
        if self._play is not play:
            return self._play(*called, first_episode=first, cancelled=cancelled)
        return (
            yield from play_in_slices(
                *called, first_episode=first, cancelled=cancelled, slice_seconds=self._slice_seconds
            )
        )

    def _why_unpaired(self, request: pb.EvaluatePolicyRequest) -> str:
        """Returns why the episodes cannot be compared with those of other policies; empty if they can."""
        if self._difference is None:
            self._difference = find_difference(self.simulator, request.seed)
            if self._difference:
                _log.warning("scores are compared without pairing episodes", reason=self._difference)
        return self._difference

    def _copy(self, refs: Sequence[pb.PolicyRef], planes: Planes) -> None:
        """Copies each policy from shared memory."""
        if len(refs) != len(self.policies):
            raise InvalidArgument(f"{len(refs)} policies to score, but the session has {len(self.policies)}")
        for policy, ref in zip(self.policies, refs, strict=True):
            policy.load(open_policy(planes, ref))

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
        return EnsembleActor(members, self.simulator.action_space.most_choices)


def add_returns(evaluation: Evaluation, episodes: Episodes, unpaired_reason: str) -> None:
    """Adds the returns of the episodes, or the reason why other policies cannot be compared with them."""
    count = len(episodes.returns)
    if count > MOST_RETURNS:
        unpaired_reason = f"{count} episodes are more than the {MOST_RETURNS} whose returns are listed"
    evaluation.unpaired_reason = unpaired_reason
    if not unpaired_reason:
        evaluation.episode_returns.extend(episodes.returns.tolist())


def valued(episodes: Episodes, objective: str) -> Episodes:
    """Returns the episodes with what they are worth by an objective in place of their returns; raises as
    `episode_values`.
    """
    if not objective:
        return episodes
    values = episode_values(objective, episodes.returns.tolist(), episodes.measures)
    return replace(episodes, returns=torch.tensor(values, dtype=torch.float64))


def add_measures(evaluation: Evaluation, episodes: Episodes, objective: str) -> None:
    """Adds the objective, the means of the measures of single episodes, and the folds if single returns are listed.

    Raises:
        DataLoss: The simulator reports too many measures, or a fold that is not a whole number from 1.
    """
    if objective:
        evaluation.objective = objective
        evaluation.undiscounted_return = float(episodes.returns.mean())
    if len(episodes.measures) > MOST_MEASURES:
        raise DataLoss(
            f"the simulator reports {len(episodes.measures)} measures of an episode, at most {MOST_MEASURES}"
        )
    for name, values in episodes.measures.items():
        if name != FOLD and all(map(math.isfinite, values)):
            evaluation.episode_metrics[name] = math.fsum(values) / len(values)
    folds = episodes.measures.get(FOLD, ())
    for fold in folds:
        if not 1 <= fold <= MOST_FOLDS or fold != int(fold):
            raise DataLoss(f"the simulator reports an episode in fold {fold:g}, expected a whole number from 1")
    if evaluation.episode_returns:
        evaluation.episode_folds.extend(map(int, folds))


class EvaluatorServicer(pb_grpc.EvaluatorServiceServicer):
    """Serves the evaluator of a pod."""

    def __init__(
        self,
        planes: Planes,
        compute: ComputeThread,
        play: Play = play,
        *,
        place: Place = at_the_plane,
        allowed: Allowed = NOTHING,
    ) -> None:
        """Starts without a session; computes on the device that `place` chooses, in environments that are `allowed`."""
        self._planes, self._compute, self._play, self._place = planes, compute, play, place
        self._allowed = allowed
        self._activity = Activity()
        self._session: EvaluationSession | None = None
        self._turn = asyncio.Lock()
        """Held during an evaluation: the environments of a session play one at a time."""
        self._made: EvaluationSession | None = None
        """The last session that was made, even if its caller did not wait for it."""
        self._opened_uris: set[str] = set()

    async def OpenEvaluator(
        self, request: pb.OpenEvaluatorRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.OpenEvaluatorResponse:
        """Opens a session; see the contract."""
        await self._close_session()
        answer = await answer_probe(self._planes, request.probe)
        device = self._place(request.environment.id, answer.device)
        session = self._session = await self._compute.run(self._make, request, device)
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
        with self._opening(request) as tensors:
            for tensor in tensors:
                # One at a time, because all have the same name. A plane that copies has deadlines of its own.
                with self._activity.doing(ROLE_PHASE_WAITING):
                    await self._planes.pull([tensor])
            cancelled, started = CountedCancellation(self._activity), time.monotonic()
            try:
                async with self._turn:
                    evaluation = await self._evaluate(session, request, cancelled)
            finally:
                BUSY.inc(time.monotonic() - started)
                # A caller that no longer waits must not occupy the compute thread.
                cancelled.set()
        EVALUATIONS.inc()
        EPISODES.inc(evaluation.episodes)
        return pb.EvaluatePolicyResponse(evaluation=evaluation)

    @contextlib.contextmanager
    def _opening(self, request: pb.EvaluatePolicyRequest) -> Iterator[Sequence[TensorRef]]:
        """Returns the tensors to open for an evaluation, and closes those of opponents after it.

        Each evaluation has opponents in new memory, which its owner cannot free while it is mapped here.
        """
        policies = [ref.tensor for ref in (request.policy, *request.members)]
        opponents = [ref.tensor for ref in references(request.opponents)]
        self._opened_uris |= {tensor.plane_uri for tensor in (*policies, *opponents)}
        try:
            yield [*policies, *opponents]
        finally:
            for tensor in opponents:
                self._planes.forget(tensor.plane_uri)
        # Not after an error: a cancelled call may still open them, so they are closed with the session as well.
        self._opened_uris.difference_update(tensor.plane_uri for tensor in opponents)

    async def _evaluate(
        self, session: EvaluationSession, request: pb.EvaluatePolicyRequest, cancelled: threading.Event
    ) -> Evaluation:
        """Evaluates slice by slice. Other work of a fused pod, such as an update, may run between two slices."""
        slices = session.evaluate(request, self._planes, cancelled)
        while self._session is session:
            if (evaluation := await self._compute.run(session.next_slice, slices)) is not None:
                return evaluation
        raise FailedPrecondition("the session was closed during the evaluation; open it again", reason=NOT_OPEN)

    async def GetEvaluator(
        self, request: pb.GetEvaluatorRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetEvaluatorResponse:
        """Returns what the evaluator is doing; see the contract."""
        return pb.GetEvaluatorResponse(progress=self._activity.progress())

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

    @needs_memory_for("evaluation.episodes")
    def _make(self, request: pb.OpenEvaluatorRequest, device: torch.device) -> EvaluationSession:
        """Closes the previous session and makes one, on the compute thread: at most one simulator exists."""
        self._close()
        with self._activity.doing(ROLE_PHASE_OPENING):
            self._made = EvaluationSession(request, device, self._play, self._allowed, self._activity)
        self._activity.open()
        return self._made

    def _close(self) -> None:
        made, self._made = self._made, None
        if made:
            made.simulator.close()
