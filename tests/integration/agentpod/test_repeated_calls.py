"""A pod trains the same agent if calls between its roles are repeated and late.

Covered are OpenWorker, GetWorker and CloseWorker of a worker, all calls of an evaluator, and those of a follower to its
leader. CollectRollout is late only: its contract excludes repeats. Tensors travel in streams, which are not covered.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from lossy_mesh import Losses, LossyCalls
from scripted import Mesh, only_completion, run

from agentpod.compute_thread import ComputeThread
from agentpod.fusion.averaging import PendingAverage, StateAverager
from agentpod.liveness import supervisor
from agentpod.process.wiring import run_follower
from agentpod.roles.evaluator import EvaluatorServicer
from agentpod.roles.worker import WorkerServicer
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.limits.config import EVERYTHING
from podrace.orchestrator.v1 import orchestrator_pb2
from podrace.rpc import Server, ServerConfig, Service
from podrace.tensor_transport.plane import Planes
from podrace.tensor_transport.remote import GrpcPlane

LOSSES = Losses(twice=0.5, late=0.3)


@pytest.fixture
async def roles(mesh: Mesh) -> AsyncIterator[list[str]]:
    """A worker and an evaluator in the process of the test; returns their addresses."""
    planes, compute = [Planes(GrpcPlane()), Planes(GrpcPlane())], ComputeThread()
    config, services = mesh.pod_config("separate"), pb.DESCRIPTOR.services_by_name
    config.folder.mkdir(mode=0o700)
    addresses = [config.address("worker-0"), config.address("evaluator")]
    served = [
        Service(
            services["WorkerService"],
            pb_grpc.add_WorkerServiceServicer_to_server,
            WorkerServicer(planes[0], compute, allowed=EVERYTHING),
        ),
        Service(
            services["EvaluatorService"],
            pb_grpc.add_EvaluatorServiceServicer_to_server,
            EvaluatorServicer(planes[1], compute, allowed=EVERYTHING),
        ),
    ]
    servers = [
        await Server.start(ServerConfig(listen=address, grace_seconds=0), [service])
        for address, service in zip(addresses, served, strict=True)
    ]
    yield addresses
    for server in servers:
        await server.drain()
    for plane in planes:
        plane.close()
    compute.close()


async def trained(mesh: Mesh, assignment: orchestrator_pb2.Assignment, store: str, **changes: Any) -> dict[str, Any]:
    """Trains an agent with a new store, and returns what is published of it."""
    mesh.leaderboard.store_uri = f"folder://{mesh.folder}/{store}"
    mesh.orchestrator.completed.clear()
    mesh.leaderboard.manifests.clear()
    assert await run(mesh, assignment, **changes) == 0
    completed = only_completion(mesh)
    assert completed.outcome == orchestrator_pb2.OUTCOME_FINISHED, completed.message
    return {
        "submitted": len(mesh.leaderboard.manifests),
        "steps": completed.progress.environment_steps,
        "scores": [one.evaluation.mean_return for one in mesh.leaderboard.manifests],
        "episodes": [one.evaluation.episodes for one in mesh.leaderboard.manifests],
        "policies": [part.digest for one in mesh.leaderboard.manifests for part in one.parts if part.name == "policy"],
    }


async def test_a_pod_publishes_the_same_policies_and_scores_if_calls_of_its_roles_are_repeated_and_late(
    mesh: Mesh, make_spec: Any, make_assignment: Any, roles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "POLL_SECONDS", 0.05)
    evaluation = {"episodes": 4, "every_environment_steps": 2048, "share": 1.0}
    assignment = make_assignment(make_spec(evaluation=evaluation))
    settings = {"layout": "separate", "plane": "grpc", "role_wait_seconds": 5.0}
    wanted = await trained(mesh, assignment, "without", **settings)
    assert wanted["submitted"] >= 2
    calls = LossyCalls(mesh.folder, LOSSES, monkeypatch)
    await calls.cover(*roles)
    assert await trained(mesh, assignment, "with", **settings) == wanted
    assert calls.counts["twice"] >= 3
    assert calls.counts["late"] >= 3
    await calls.close()


async def test_learners_agree_in_every_round_if_calls_of_the_follower_are_repeated_and_late(
    mesh: Mesh, make_spec: Any, make_assignment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round is applied once by each learner, and each environment step counts once."""
    rounds: dict[int, list[str]] = {}
    apply = StateAverager.apply

    def record(averager: StateAverager, pending: PendingAverage) -> None:
        apply(averager, pending)
        rounds.setdefault(id(averager), []).append(pending.digest())

    monkeypatch.setattr(StateAverager, "apply", record)
    assignment = make_assignment(make_spec(steps=8192, fusion={"mode": "average", "every_updates": 2}))
    config = mesh.pod_config("fused", learners=2)
    calls = LossyCalls(mesh.folder, LOSSES, monkeypatch)
    await calls.cover(config.address("learner"), config.address("learner-1"))
    follower = asyncio.create_task(run_follower(config, "learner-1"))
    found = await trained(mesh, assignment, "with", learners=2)
    assert await asyncio.wait_for(follower, 30) == 0
    of_leader, of_follower = rounds.values()
    # The leader's last round may end before the follower has applied it.
    assert 0 <= len(of_leader) - len(of_follower) <= 1
    assert of_leader[: len(of_follower)] == of_follower
    assert len(set(of_follower)) == len(of_follower) >= 3
    # A round has two updates of both learners; an update takes 8 environments x 64 steps, each counted once.
    assert found["steps"] == 2 * 2 * 512 * (len(of_leader) - 1)
    assert calls.counts["twice"] >= 5
    await calls.close()
