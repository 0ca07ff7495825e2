"""Runs a worker: steps a batched environment with the policy of its learner and writes rollouts into shared memory.

`Collector` computes, on the compute thread. `WorkerServicer` only translates.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc.aio
import prometheus_client
import structlog
import torch

from agentpod.compute_thread import ComputeThread
from agentpod.experience.captured_steps import CapturedSteps, captured_steps
from agentpod.experience.final_boxes import written_boxes
from agentpod.experience.rollout import CollectResult, Lanes, collect
from agentpod.experience.staging import Staging
from agentpod.liveness.activity import Activity, CountedCancellation
from agentpod.memory_errors import needs_memory_for
from agentpod.models.messages import network_spec, policy_message
from agentpod.models.policy import Policy
from agentpod.roles.opponents import OpponentSeats, references
from agentpod.roles.placement import Place, at_the_plane
from agentpod.roles.slot_checks import check_slot, open_policy
from agentpod.seeding import derive_generator, derive_seed
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.errors import NOT_OPEN, Cancelled, FailedPrecondition
from podrace.limits.config import NOTHING, Allowed
from podrace.orchestrator.v1.orchestrator_pb2 import ROLE_PHASE_COLLECTING, ROLE_PHASE_OPENING, ROLE_PHASE_WAITING
from podrace.tensor_transport.boxes import Box
from podrace.tensor_transport.plane import Planes
from podrace.tensor_transport.probe import answer_probe
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec
from simulators import Simulator
from simulators.messages import make_simulator, space_message

STEPS = prometheus_client.Counter("podrace_worker_environment_steps", "Environment steps over all environments")
BUSY = prometheus_client.Counter("podrace_worker_busy_seconds", "Seconds spent collecting rollouts")
_log = structlog.get_logger(__name__)


class Collector:
    """The environments and the policy of one session.

    Attributes:
        request: The request that opened the session.
        device: Device that the policy and the simulator compute on.
        simulator: The environments.
        network: Description of the policy's network.
        policy: The policy that acts.
        lanes: State of the episodes under way.
        finish_copies: Waits until the last rollout is in its slot; None if it was written there.
        reusable: False once a rollout has failed, because the state of the environments is then unknown.
    """

    def __init__(
        self,
        request: pb.OpenWorkerRequest,
        previous: "Collector | None",
        device: torch.device,
        allowed: Allowed,
        activity: Activity,
        *,
        captured: bool = False,
    ) -> None:
        """Makes the simulator, or takes over that of the previous session if it is the same, and starts new episodes.

        Raises:
            InvalidArgument: The environment is not allowed or cannot be made, or a policy cannot act in it.
        """
        self.request, self.device, self._activity = request, device, activity
        self.simulator: Simulator
        self.reusable = True
        self._staging = Staging(device)
        self._captured = captured and device.type == "cuda"
        self.finish_copies: Callable[[], None] | None = None
        if previous and previous.reusable and previous.makes(request.environment, device):
            self.simulator = previous.simulator
        else:
            if previous:
                previous.simulator.close()
            self.simulator = make_simulator(request.environment, device, allowed)
        try:
            self._begin()
        except BaseException:
            # No other object would close it.
            self.simulator.close()
            raise

    def _begin(self) -> None:
        request, simulator = self.request, self.simulator
        self.network = network_spec(request.policy)
        self.policy = Policy(simulator.observation_space, simulator.action_space, self.network, device=self.device)
        self._steps: CapturedSteps | None = captured_steps(simulator, self.policy) if self._captured else None
        self._seats = OpponentSeats(simulator, request.environment.id, self.device)
        self._seats.clear()
        # The state of a simulator cannot be restored: after an interruption new episodes start, with other seeds.
        seed = derive_seed(request.seed, "reset", request.worker_index, request.rollouts)
        agents = simulator.observation_space.lanes
        self.lanes = Lanes.start(simulator.reset(seed), self.policy.state_size, agents)

    def makes(self, environment: EnvironmentSpec, device: torch.device) -> bool:
        """Returns whether its simulator is the one that these arguments would make."""
        return (self.request.environment, self.device) == (environment, device)

    @needs_memory_for("environment.count or the hyperparameter horizon")
    def collect(self, request: pb.CollectRolloutRequest, planes: Planes, cancelled: threading.Event) -> CollectResult:
        """Fills this worker's columns of a slot with one rollout.

        Raises:
            Cancelled: `cancelled` was set.
            DataLoss: As agentpod.experience.rollout.collect.
            InvalidArgument: The slot or the policy has other tensors than the session.
        """
        if cancelled.is_set():
            # Cancelled while it waited for the compute thread: the memory may no longer exist and must not be mapped.
            raise Cancelled("the rollout was cancelled")
        check_slot(request.slot, self.simulator, self.request.horizon, self.policy.state_size)
        slot = planes.open(request.slot.tensors)
        self.policy.load(open_policy(planes, request.policy))
        generator = derive_generator(
            self.policy.flat.device, self.request.seed, "act", self.request.worker_index, request.rollout
        )
        own = {name: slot[name][box.index] for name, box in self.own_boxes(request.slot).items()}
        seed = derive_seed(self.request.seed, "opponents", self.request.worker_index, request.rollout)
        self._seats.seat(request.opponents, planes, seed, greedy=False)
        self.reusable = False
        with torch.no_grad(), self._activity.doing(ROLE_PHASE_COLLECTING):
            rollout = self._staging.of(own)
            result = collect(self.simulator, self.policy, rollout, self.lanes, generator, cancelled, self._steps)
            self.finish_copies = self._staging.copy_to(own)
        self.lanes, self.reusable = result.lanes, True
        return result

    def own_boxes(self, slot: pb.RolloutSlot) -> dict[str, Box]:
        """Returns the rows and columns of each tensor of a slot that this worker writes."""
        shapes = {ref.spec.name: tuple(ref.spec.shape) for ref in slot.tensors}
        horizon, count = self.request.horizon, self.simulator.count
        # On-policy rollouts store the observation after the last step in an additional row.
        rows = {name: horizon + (name == "observation" and "log_prob" in shapes) for name in shapes}
        # The recurrent state is that before the first step.
        rows |= {"state": 1}
        return {
            name: Box(
                (slot.first_row, slot.first_environment, *(0 for _ in shape[2:])), (rows[name], count, *shape[2:])
            )
            for name, shape in shapes.items()
        }


class WorkerServicer(pb_grpc.WorkerServiceServicer):
    """Serves one worker of a pod."""

    def __init__(
        self,
        planes: Planes,
        compute: ComputeThread,
        place: Place = at_the_plane,
        allowed: Allowed = NOTHING,
        *,
        captured: bool = False,
    ) -> None:
        """Starts without a session.

        Args:
            planes: Connect it to its learner.
            compute: Runs tensor work.
            place: Chooses the device.
            allowed: Environments that a session may name.
            captured: Whether steps on a GPU are replayed from CUDA graphs where that is possible.
        """
        self._planes, self._place, self._allowed, self._captured = planes, place, allowed, captured
        self._compute = compute
        self._activity = Activity()
        self._collector: Collector | None = None
        self._made: Collector | None = None
        """The last collector that was made, even if its caller did not wait for it."""
        self._opened_uris: set[str] = set()
        self._opponent_uris, self._opened_opponents = set[str](), set[str]()

    async def OpenWorker(
        self, request: pb.OpenWorkerRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.OpenWorkerResponse:
        """Opens a session; see the contract."""
        # Even if opening fails, the previous session has ended: its slots may no longer exist.
        self._collector = None
        self._forget()
        answer = await answer_probe(self._planes, request.probe)
        device = self._place(request.environment.id, answer.device)
        self._collector = await self._compute.run(self._make, request, device)
        simulator, policy = self._collector.simulator, self._collector.policy
        _log.info("environments open", environment=request.environment.id, lanes=simulator.count, device=str(device))
        return pb.OpenWorkerResponse(
            observation_space=space_message(simulator.observation_space),
            action_space=space_message(simulator.action_space),
            policy=policy_message(self._collector.network, policy.tensors()),
            probe_sum=answer.sum,
        )

    async def CollectRollout(
        self, request: pb.CollectRolloutRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CollectRolloutResponse:
        """Fills a slot with one rollout; see the contract."""
        collector = self._collector
        if collector is None or collector.request.session != request.session:
            raise FailedPrecondition(
                f"the worker is not open for session {request.session!r}; open it", reason=NOT_OPEN
            )
        opponents = [one.tensor for one in references(request.opponents)]
        self._opened_uris |= {ref.plane_uri for ref in (*request.slot.tensors, request.policy.tensor)}
        self._opponent_uris = {ref.plane_uri for ref in opponents}
        self._opened_opponents |= self._opponent_uris
        for ref in (request.policy.tensor, *opponents):
            # One at a time, because all have the same name. A plane that copies has deadlines of its own.
            with self._activity.doing(ROLE_PHASE_WAITING):
                await self._planes.pull([ref])
        started = time.monotonic()
        cancelled = CountedCancellation(self._activity)
        try:
            result = await self._compute.run(collector.collect, request, self._planes, cancelled)
        finally:
            # A learner that no longer waits must not occupy the compute thread.
            cancelled.set()
            self._forget_opponents()
        if collector.finish_copies:
            # Not on the compute thread, which can evaluate meanwhile.
            await self._activity.run(ROLE_PHASE_COLLECTING, collector.finish_copies)
        busy_seconds = time.monotonic() - started
        await self._push(collector, request.slot)
        STEPS.inc(result.steps)
        BUSY.inc(busy_seconds)
        response = pb.CollectRolloutResponse(
            policy_version=request.policy.policy_version,
            environment_steps=result.steps,
            episode_returns=result.episode_returns.tolist(),
            episode_lengths=result.episode_lengths.tolist(),
        )
        response.busy_duration.FromNanoseconds(round(busy_seconds * 1e9))
        return response

    async def _push(self, collector: Collector, slot: pb.RolloutSlot) -> None:
        """Returns what was written to the learner: planes that share memory wait for the GPU, others copy it."""
        boxes = collector.own_boxes(slot)
        written: Mapping[str, Sequence[Box]] = {name: [box] for name, box in boxes.items()}
        copies = self._planes.copies(slot.tensors)
        if copies:
            views = self._planes.open(slot.tensors)
            own = {name: views[name][box.index] for name, box in boxes.items()}
            # In a thread, because it waits if the rollout is on a GPU.
            written = await self._activity.run(ROLE_PHASE_COLLECTING, written_boxes, own, boxes)
        with self._activity.doing(ROLE_PHASE_WAITING if copies else ROLE_PHASE_COLLECTING):
            await self._planes.push(slot.tensors, written)

    async def GetWorker(
        self, request: pb.GetWorkerRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetWorkerResponse:
        """Returns what the worker is doing; see the contract."""
        return pb.GetWorkerResponse(progress=self._activity.progress())

    async def CloseWorker(
        self, request: pb.CloseWorkerRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CloseWorkerResponse:
        """Closes a session; see the contract."""
        if self._collector and self._collector.request.session == request.session:
            self._collector = None
            await self._compute.run(self._close)
            self._forget()
        return pb.CloseWorkerResponse()

    @needs_memory_for("environment.count")
    def _make(self, request: pb.OpenWorkerRequest, device: torch.device) -> Collector:
        """Makes a collector, from the previous one if possible. Runs on the compute thread, after earlier requests."""
        previous, self._made = self._made, None
        with self._activity.doing(ROLE_PHASE_OPENING):
            self._made = Collector(request, previous, device, self._allowed, self._activity, captured=self._captured)
        self._activity.open()
        return self._made

    def _close(self) -> None:
        made, self._made = self._made, None
        if made:
            made.simulator.close()

    def _forget_opponents(self) -> None:
        """Closes the memory of opponents that the newest request does not name any more."""
        for plane_uri in self._opened_opponents - self._opponent_uris:
            self._planes.forget(plane_uri)
        self._opened_opponents &= self._opponent_uris

    def _forget(self) -> None:
        self._opponent_uris = set()
        self._forget_opponents()
        for plane_uri in self._opened_uris:
            self._planes.forget(plane_uri)
        self._opened_uris.clear()
