"""What it means that a role does not collect or evaluate in time: its own simulator, or the deadline of the call."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentpod.config import PodConfig
from agentpod.experience.memory_spec import MemorySpec
from agentpod.models.policy import NetworkSpec
from agentpod.session import role_client
from agentpod.session.role_client import RoleClient, SessionSpec
from agentpod.session.role_faults import RoleRefused
from podrace import rpc
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.errors import DeadlineExceeded
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec

SILENT_SIMULATOR = "the simulator service at host:1 did not answer within 60 s"
SESSION = SessionSpec(
    "1", EnvironmentSpec(id="a"), EnvironmentSpec(id="a"), NetworkSpec(), MemorySpec(8), seed=0, rollouts=0
)


@dataclass
class LateRole(pb_grpc.WorkerServiceServicer, pb_grpc.EvaluatorServiceServicer):
    """A worker and an evaluator whose simulator does not answer."""

    silent: asyncio.Event | None = None
    """Event that the role waits for; None: it reports its simulator."""

    left_seconds: list[float | None] = field(default_factory=list)
    """Time until the deadline of each call; None: it has none."""

    async def _simulate(self, context: Any) -> Any:
        self.left_seconds.append(context.time_remaining())
        if self.silent:
            await self.silent.wait()
        raise DeadlineExceeded(SILENT_SIMULATOR)

    async def CollectRollout(self, request: Any, context: Any) -> Any:
        return await self._simulate(context)

    async def EvaluatePolicy(self, request: Any, context: Any) -> Any:
        return await self._simulate(context)


@dataclass
class Pod:
    """A client, and the role that it calls as worker and as evaluator."""

    config: PodConfig
    client: RoleClient
    role: LateRole

    async def collect(self) -> Any:
        grant = SimpleNamespace(region=SimpleNamespace(refs=list), first_row=0)
        return await self.client.collect(SESSION, grant, SimpleNamespace(ref=pb.PolicyRef, version=1), 0)  # type: ignore[arg-type]

    async def evaluate(self) -> Any:
        return await self.client.evaluate(SESSION, [SimpleNamespace(ref=pb.PolicyRef)], 1, 0, greedy=True)  # type: ignore[list-item]


@pytest.fixture
async def pod() -> AsyncIterator[Pod]:
    services = {
        "worker-0": ("WorkerService", pb_grpc.add_WorkerServiceServicer_to_server),
        "evaluator": ("EvaluatorService", pb_grpc.add_EvaluatorServiceServicer_to_server),
    }
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as folder:
        config = PodConfig("p", "unix:o", "unix:l", "folder:///s", Path(folder), layout="separate")
        role, servers = LateRole(), []
        for name, (service, register) in services.items():
            listening = rpc.ServerConfig(listen=config.address(name), grace_seconds=0.0)
            registered = rpc.Service(pb.DESCRIPTOR.services_by_name[service], register, role)
            servers.append(await rpc.Server.start(listening, [registered]))
        client = RoleClient(config)
        yield Pod(config, client, role)
        await client.close()
        for server in servers:
            await server.drain()


@pytest.mark.parametrize("work", [Pod.collect, Pod.evaluate])
async def test_a_role_whose_simulator_does_not_answer_refuses_and_names_it(
    pod: Pod, work: Callable[[Pod], Awaitable[Any]]
) -> None:
    with pytest.raises(RoleRefused) as refused:
        await work(pod)
    assert refused.value.message == f"{SILENT_SIMULATOR} (DEADLINE_EXCEEDED)"


@pytest.mark.parametrize("work", [Pod.collect, Pod.evaluate])
async def test_work_of_a_role_that_reports_its_progress_has_no_deadline(
    pod: Pod, work: Callable[[Pod], Awaitable[Any]]
) -> None:
    with pytest.raises(RoleRefused):
        await work(pod)
    assert pod.role.left_seconds == [None]


async def test_a_rollout_of_a_worker_of_the_user_that_takes_longer_than_its_deadline_is_to_be_made_shorter(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role_client, "COLLECT_DEADLINE_SECONDS", 0.1)
    pod.role.silent = asyncio.Event()
    pod.client = RoleClient(replace(pod.config, worker_class="python:own:Worker"))
    with pytest.raises(RoleRefused, match="lower the hyperparameter horizon"):
        await pod.collect()
    await pod.client.close()
