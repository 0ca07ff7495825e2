"""The worker: steps a batched environment with the policy it is given and writes rollouts where it is told.

`Collector` computes, on the compute thread; `WorkerServicer` only translates.
"""

import threading
import time
from typing import Any

import grpc.aio
import prometheus_client
import torch

from agentpod.compute_thread import ComputeThread
from agentpod.experience.rollout import CollectResult, Lanes, collect
from agentpod.experience.slots import POLICY
from agentpod.models.messages import network_spec, policy_message
from agentpod.models.policy import Policy
from agentpod.seeding import derive_generator, derive_seed
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.errors import NOT_OPEN, Cancelled, FailedPrecondition
from podrace.tensor_transport.boxes import Box
from podrace.tensor_transport.plane import Planes
from podrace.tensor_transport.probe import answer_probe
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec
from simulators import Simulator
from simulators.messages import make_simulator, space_message

STEPS = prometheus_client.Counter("podrace_worker_environment_steps", "Environment steps over all environments")
BUSY = prometheus_client.Counter("podrace_worker_busy_seconds", "Seconds spent collecting rollouts")


class Collector:
    """The environments and the policy of one session."""

    def __init__(self, request: pb.OpenWorkerRequest, previous: "Collector | None", device: torch.device) -> None:
        """Makes the simulator (or keeps the previous one, if it is the same) and begins new episodes.

        Raises:
            InvalidArgument: The environment cannot be made, or a policy cannot act in it.
        """
        self.request, self.device = request, device
        self.simulator: Simulator
        self.sound = True
        """False once a rollout has failed: nobody knows what state its environments are in."""
        if previous and previous.sound and previous.makes(request.environment, device):
            self.simulator = previous.simulator
        else:
            if previous:
                previous.simulator.close()
            self.simulator = make_simulator(request.environment, device)
        try:
            self._begin()
        except BaseException:
            # Nobody else knows of it.
            self.simulator.close()
            raise

    def _begin(self) -> None:
        request, simulator = self.request, self.simulator
        self.network = network_spec(request.policy)
        self.policy = Policy(simulator.observation_space, simulator.action_space, self.network, device=self.device)
        # Nobody can restore what a simulator has inside; new episodes after a pause get seeds of their own.
        seed = derive_seed(request.seed, "reset", request.worker_index, request.rollouts)
        self.lanes = Lanes.start(simulator.reset(seed), self.policy.state_size)

    def makes(self, environment: EnvironmentSpec, device: torch.device) -> bool:
        """Whether its simulator is the one that would be made for these."""
        return (self.request.environment, self.device) == (environment, device)

    def collect(self, request: pb.CollectRolloutRequest, planes: Planes, cancelled: threading.Event) -> CollectResult:
        """Fills the slot's columns of this worker with one rollout; raises as agentpod.experience.rollout.collect
        does.
        """
        if cancelled.is_set():
            # Called off while it waited for its turn: the memory may be gone, and is not to be mapped again.
            raise Cancelled("the rollout was called off")
        slot = planes.open(request.slot.tensors)
        self.policy.load(planes.open([request.policy.tensor])[POLICY])
        generator = derive_generator(
            self.policy.flat.device, self.request.seed, "act", self.request.worker_index, request.rollout
        )
        own = {name: slot[name][box.index] for name, box in self.own_boxes(request.slot).items()}
        self.sound = False
        with torch.no_grad():
            result = collect(self.simulator, self.policy, own, self.lanes, generator, cancelled)
        self.lanes, self.sound = result.lanes, True
        return result

    def own_boxes(self, slot: pb.RolloutSlot) -> dict[str, Box]:
        """The rows and columns of each tensor of a slot that this worker writes."""
        shapes = {ref.spec.name: tuple(ref.spec.shape) for ref in slot.tensors}
        horizon, count = self.request.horizon, self.simulator.count
        # A rollout that is trained on as a whole keeps what its last step left behind in a row of its own.
        rows = {name: horizon + (name == "observation" and "log_prob" in shapes) for name in shapes}
        return {
            name: Box(
                (slot.first_row, slot.first_environment, *(0 for _ in shape[2:])), (rows[name], count, *shape[2:])
            )
            for name, shape in shapes.items()
        }


class WorkerServicer(pb_grpc.WorkerServiceServicer):
    """Serves one worker of a pod."""

    def __init__(self, planes: Planes, compute: ComputeThread) -> None:
        """Opens nothing yet."""
        self._planes = planes
        self._compute = compute
        self._collector: Collector | None = None
        self._made: Collector | None = None
        """The last one that was made, also for a caller that did not wait for it."""
        self._opened_uris: set[str] = set()

    async def OpenWorker(
        self, request: pb.OpenWorkerRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.OpenWorkerResponse:
        """Opens; see the contract."""
        # Whatever happens, the earlier session is over: its slots may be gone.
        self._collector = None
        self._forget()
        answer = await answer_probe(self._planes, request.probe)
        self._collector = await self._compute.run(self._make, request, answer.device)
        simulator, policy = self._collector.simulator, self._collector.policy
        return pb.OpenWorkerResponse(
            observation_space=space_message(simulator.observation_space),
            action_space=space_message(simulator.action_space),
            policy=policy_message(self._collector.network, policy.tensors()),
            probe_sum=answer.sum,
        )

    async def CollectRollout(
        self, request: pb.CollectRolloutRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CollectRolloutResponse:
        """Fills a slot; see the contract."""
        collector = self._collector
        if collector is None or collector.request.session != request.session:
            raise FailedPrecondition(
                f"the worker is not open for session {request.session!r}; open it", reason=NOT_OPEN
            )
        self._opened_uris |= {ref.plane_uri for ref in (*request.slot.tensors, request.policy.tensor)}
        await self._planes.pull([request.policy.tensor])
        started = time.monotonic()
        cancelled = threading.Event()
        try:
            result = await self._compute.run(collector.collect, request, self._planes, cancelled)
        finally:
            # A learner that went away must not keep the compute thread.
            cancelled.set()
        busy_seconds = time.monotonic() - started
        await self._planes.push(request.slot.tensors, collector.own_boxes(request.slot))
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

    async def CloseWorker(
        self, request: pb.CloseWorkerRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CloseWorkerResponse:
        """Closes; see the contract."""
        if self._collector and self._collector.request.session == request.session:
            self._collector = None
            await self._compute.run(self._close)
            self._forget()
        return pb.CloseWorkerResponse()

    def _make(self, request: pb.OpenWorkerRequest, device: torch.device) -> Collector:
        """On the compute thread, after what was asked of it before: one is made from the other."""
        previous, self._made = self._made, None
        self._made = Collector(request, previous, device)
        return self._made

    def _close(self) -> None:
        made, self._made = self._made, None
        if made:
            made.simulator.close()

    def _forget(self) -> None:
        for plane_uri in self._opened_uris:
            self._planes.forget(plane_uri)
        self._opened_uris.clear()
