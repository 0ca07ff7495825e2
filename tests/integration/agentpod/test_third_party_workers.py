"""What a pod reports of a third party's worker that refuses, answers wrongly, or stops in the middle."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import torch
from scripted import only_completion, run

from agentpod.compute_thread import ComputeThread
from agentpod.roles.evaluator import EvaluatorServicer
from agentpod.roles.worker import WorkerServicer
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.errors import NOT_OPEN, FailedPrecondition, PermissionDenied
from podrace.limits.config import EVERYTHING
from podrace.orchestrator.v1 import orchestrator_pb2
from podrace.rpc import Server, ServerConfig, Service
from podrace.tensor_transport.boxes import Box
from podrace.tensor_transport.plane import Planes
from podrace.tensor_transport.remote import GrpcPlane

GOOD_ROLLOUTS = 2
stopping: list[asyncio.Task[None]] = []


class FaultyWorker(WorkerServicer):
    """Collects some rollouts, and then has a fault."""

    def __init__(self, planes: Planes, compute: ComputeThread) -> None:
        super().__init__(planes, compute, allowed=EVERYTHING)
        self.fault, self.left, self.asked = "", GOOD_ROLLOUTS, 0
        self.server: Server | None = None
        self._slot_planes = planes

    async def CollectRollout(self, request: pb.CollectRolloutRequest, context: Any) -> pb.CollectRolloutResponse:
        self.asked += 1
        self.left -= 1
        if self.left >= 0:
            return await super().CollectRollout(request, context)
        answer: pb.CollectRolloutResponse = await getattr(self, self.fault)(request, context)
        return answer

    async def OpenWorker(self, request: pb.OpenWorkerRequest, context: Any) -> pb.OpenWorkerResponse:
        if self.fault == "changes" and self.left < 0:
            request.environment.id = "Acrobot-v1"
        return await super().OpenWorker(request, context)

    async def changes(self, request: Any, context: Any) -> Any:
        await self.forgets(request, context)

    async def refuses(self, request: Any, context: Any) -> Any:
        raise FailedPrecondition("the disk is full")

    async def denies(self, request: Any, context: Any) -> Any:
        raise PermissionDenied("not with this key")

    async def forgets(self, request: Any, context: Any) -> Any:
        raise FailedPrecondition("which session?", reason=NOT_OPEN)

    async def crashes(self, request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNKNOWN, "Exception calling application: list index\nout of range")

    async def counts_wrongly(self, request: Any, context: Any) -> Any:
        answer = await super().CollectRollout(request, context)
        answer.environment_steps -= 1
        return answer

    async def acts_wrongly(self, request: Any, context: Any) -> Any:
        answer = await super().CollectRollout(request, context)
        await self._overwrite(request, "action", 7)
        return answer

    async def observes_wrongly(self, request: Any, context: Any) -> Any:
        answer = await super().CollectRollout(request, context)
        await self._overwrite(request, "observation", float("nan"))
        return answer

    async def _overwrite(self, request: Any, name: str, value: float) -> None:
        """Writes one value into the first element of a tensor."""
        refs = [ref for ref in request.slot.tensors if ref.spec.name == name]
        view = self._slot_planes.open(refs)[name]
        view.view(-1)[:1] = torch.tensor([value]).to(view.dtype)
        await self._slot_planes.push(refs, {name: [Box.whole(tuple(refs[0].spec.shape))]})

    async def sends_other_shapes(self, request: Any, context: Any) -> Any:
        refs = [ref for ref in request.slot.tensors if ref.spec.name == "reward"]
        refs[0].spec.shape[1] += 1
        await self._slot_planes.push(refs, {"reward": [Box.whole(tuple(refs[0].spec.shape))]})

    async def dies(self, request: Any, context: Any) -> Any:
        assert self.server
        stopping.append(asyncio.create_task(self.server.drain()))
        await asyncio.Event().wait()


@pytest.fixture
async def worker(mesh) -> AsyncIterator[FaultyWorker]:
    """A worker, and the evaluator of the pod, which is in the process of the test as well."""
    planes, others, compute = Planes(GrpcPlane()), Planes(GrpcPlane()), ComputeThread()
    worker = FaultyWorker(planes, compute)
    config, services = mesh.pod_config("separate"), pb.DESCRIPTOR.services_by_name
    config.folder.mkdir(mode=0o700)
    evaluator = EvaluatorServicer(others, compute, allowed=EVERYTHING)
    add_evaluator = pb_grpc.add_EvaluatorServiceServicer_to_server
    add_worker = pb_grpc.add_WorkerServiceServicer_to_server
    servers = [
        await Server.start(ServerConfig(listen=address, grace_seconds=0), [service])
        for address, service in (
            (config.address("evaluator"), Service(services["EvaluatorService"], add_evaluator, evaluator)),
            (f"unix:{mesh.folder}/w.sock", Service(services["WorkerService"], add_worker, worker)),
        )
    ]
    worker.server = servers[1]
    yield worker
    for server in servers:
        await server.drain()
    planes.close()
    others.close()
    compute.close()


async def work(mesh, make_spec, make_assignment) -> orchestrator_pb2.CompleteAssignmentRequest:
    """Runs the pod with the worker; returns how its assignment ended."""
    address = f"unix:{mesh.folder}/w.sock"
    spec = make_spec(pod={"worker": f"grpc://{address}"})
    changes = {"plane": "grpc", "worker_address": address, "role_wait_seconds": 0.5}
    async with asyncio.timeout(60):
        await run(mesh, make_assignment(spec), layout="separate", **changes)
    return only_completion(mesh)


async def test_without_a_fault_the_agent_finishes(mesh, make_spec, make_assignment, worker):
    worker.left = 10**6
    completed = await work(mesh, make_spec, make_assignment)
    assert completed.outcome == orchestrator_pb2.OUTCOME_FINISHED, completed.message


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("refuses", ": the disk is full (FAILED_PRECONDITION)"),
        ("denies", ": not with this key (PERMISSION_DENIED)"),
        ("forgets", ": which session? (lost 13 times without an update in between)"),
    ],
)
async def test_a_worker_that_refuses_makes_the_pod_give_the_agent_up_and_publish_it(
    mesh, make_spec, make_assignment, worker, fault, said
):
    worker.fault = fault
    completed = await work(mesh, make_spec, make_assignment)
    assert (completed.outcome, completed.gave_up) == (orchestrator_pb2.OUTCOME_DRAINED, True), completed.message
    assert completed.message == f"pod.worker = 'grpc://unix:{mesh.folder}/w.sock'{said}"
    assert completed.progress.environment_steps == GOOD_ROLLOUTS * 512
    assert worker.asked <= GOOD_ROLLOUTS + 14


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("crashes", "Exception calling application: list index out of range"),
        ("counts_wrongly", "CollectRollout answered with environment_steps = 511: expected 512"),
        ("acts_wrongly", "actions are not among the choices of the environment"),
        ("observes_wrongly", "the rollout has numbers in observation that are not finite"),
        ("sends_other_shapes", "tensor 'reward' of "),
        ("changes", "its spaces are "),
        ("dies", "nothing answers there (waited 0.5 s); start the worker on the machine of the pod"),
    ],
)
async def test_a_wrong_answer_of_a_worker_fails_the_agent_in_one_line(
    mesh, make_spec, make_assignment, worker, fault, said
):
    worker.fault = fault
    completed = await work(mesh, make_spec, make_assignment)
    assert completed.outcome == orchestrator_pb2.OUTCOME_AGENT_FAILED, completed.message
    assert completed.message.startswith(f"pod.worker = 'grpc://unix:{mesh.folder}/w.sock': {said}")
    assert "\n" not in completed.message
