"""The roles of a pod are connected by the first plane that passes its self-test; failures are reported."""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from fake_cuda import FakeDriver, Gpu
from torch import Tensor

from agentpod.config import PodConfig
from agentpod.experience.memory_spec import MemorySpec
from agentpod.learner.ending import EXIT_ROLE_LOST, ending_of_error
from agentpod.models.policy import NetworkSpec
from agentpod.session.role_client import RoleClient, SessionSpec
from agentpod.session.role_faults import RoleLost
from agentpod.session.session import Roles
from podrace import rpc
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.errors import FailedPrecondition, PodraceError, Unimplemented
from podrace.orchestrator.v1 import orchestrator_pb2 as orchestrator_pb
from podrace.tensor.v1.tensor_pb2 import TensorRef
from podrace.tensor_transport.cuda import CudaPlane
from podrace.tensor_transport.memory import MemoryPlane
from podrace.tensor_transport.plane import Plane, Planes
from podrace.tensor_transport.probe import PROBE_SPEC, answer_probe
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec
from simulators.base import Space


class Named(MemoryPlane):
    """A memory plane with another scheme."""

    def __init__(self, scheme: str) -> None:
        super().__init__(f"{scheme}:")


class Blind(Named):
    """A plane whose other end reads zeros."""

    def open(self, refs: Sequence[TensorRef]) -> dict[str, Tensor]:
        return {ref.spec.name: torch.zeros(1) for ref in refs}


class AnsweringClient(RoleClient):
    """A client that answers itself, as roles that can read only some of the planes."""

    def __init__(self, config: PodConfig, planes: Sequence[Plane], sees: set[str]) -> None:
        super().__init__(config)
        self.sees, self.asked = sees, list[str]()
        self.missing: PodraceError | None = None
        self._planes = planes

    async def open(self, session: SessionSpec, probe: TensorRef) -> list[Any]:
        self.asked.append(probe.plane_uri.partition(":")[0])
        if self.missing:
            raise self.missing
        # The peer always has a plane of this scheme, but it may read other memory.
        offered = [plane if plane.scheme in self.sees else Blind(plane.scheme) for plane in self._planes]
        planes = Planes(*(plane for plane in offered if plane.scheme != "unknown"))
        return [pb.OpenWorkerResponse(probe_sum=(await answer_probe(planes, probe)).sum) for _ in range(2)]


class ConnectedRoles(Roles):
    """Roles that can read only some of the planes."""

    def __init__(self, planes: Sequence[Plane], sees: set[str]) -> None:
        config = PodConfig("p", "unix:o", "unix:l", "folder:///s", Path("/tmp"), layout="separate")
        super().__init__(config, planes)
        self._client: AnsweringClient = AnsweringClient(config, planes, sees)


async def opened(roles: ConnectedRoles, environment: str = "CartPole-v1") -> None:
    environments = EnvironmentSpec(id=environment), EnvironmentSpec(id=environment)
    session = SessionSpec("1.1", *environments, NetworkSpec(), MemorySpec(8), seed=3, rollouts=0)
    await roles._open_on_a_plane(session)


async def test_the_first_plane_that_both_ends_can_read_is_chosen_and_kept() -> None:
    planes = [Named("unknown"), Named("blind"), Named("shared"), Named("grpc")]
    roles = ConnectedRoles(planes, sees={"shared", "grpc"})
    assert roles.plane == ""
    await opened(roles)
    await opened(roles)
    assert roles.plane == "shared"
    assert roles._client.asked == ["unknown", "blind", "shared", "shared"]
    assert not any(plane._blocks for plane in planes), "a probe was not closed"
    await roles.close()


async def test_a_plane_whose_references_cannot_be_handed_out_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = FakeDriver(Gpu())

    def refuse(event: Any) -> None:
        raise RuntimeError("cudaErrorInvalidResourceHandle")

    monkeypatch.setattr(driver, "record", refuse)
    with tempfile.TemporaryDirectory() as folder:
        planes = [CudaPlane("podrace-t-", lambda: driver, Path(folder)), Named("shared")]
        roles = ConnectedRoles(planes, sees={"cuda", "shared"})
        roles._config = replace(roles._config, plane="cuda")
        await opened(roles)
        assert roles.plane == "shared"
        assert not [*Path(folder).iterdir()], "the probe was not closed"
        await roles.close()


async def test_a_required_plane_has_no_fallback() -> None:
    roles = ConnectedRoles([Named("shared")], sees=set())
    with pytest.raises(Unimplemented, match="no plane connects the roles of this pod: plane 'shared' failed its self-"):
        await opened(roles)
    await roles.close()


async def test_a_plane_that_worked_once_is_not_replaced() -> None:
    roles = ConnectedRoles([Named("shared"), Named("grpc")], sees={"shared", "grpc"})
    await opened(roles)
    roles._client.sees = {"grpc"}
    with pytest.raises(RoleLost, match=r"plane 'shared' no longer connects the roles: .* failed its self-test"):
        await opened(roles)
    await roles.close()


async def test_a_plane_that_worked_once_and_cannot_allocate_any_more_ends_the_pod_and_not_the_tournament(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    roles = ConnectedRoles([plane := Named("shared"), Named("grpc")], sees={"shared", "grpc"})
    await opened(roles)

    def refuse(name: str, specs: Any) -> Any:
        raise FailedPrecondition("memory cannot be exported")

    monkeypatch.setattr(plane, "create", refuse)
    with pytest.raises(RoleLost, match=r"plane 'shared' no longer .*: memory cannot be exported") as lost:
        await opened(roles)
    ending = ending_of_error(lost.value, opened=False)
    assert (ending.outcome, ending.exit_code) == (orchestrator_pb.OUTCOME_DRAINED, EXIT_ROLE_LOST)
    await roles.close()


@pytest.mark.parametrize(
    "refusal",
    [Unimplemented("Ant-v5: package 'mujoco' is not installed"), FailedPrecondition("the licence is missing")],
)
async def test_an_error_of_the_environment_is_not_attributed_to_the_plane(refusal: PodraceError) -> None:
    roles = ConnectedRoles([Named("shared"), Named("grpc")], sees={"shared", "grpc"})
    roles._client.missing = refusal
    with pytest.raises(type(refusal), match=refusal.message):
        await opened(roles)
    assert roles._client.asked == ["shared"], "another plane would not have helped"
    await roles.close()


@pytest.mark.parametrize(
    ("environment", "taken"),
    [("warp:ant", "cuda"), ("isaacgym:Ant", "cuda"), ("CartPole-v1", "shared"), ("python:a:b", "shared")],
)
async def test_gpu_memory_is_used_only_for_simulators_on_the_gpu(environment: str, taken: str) -> None:
    roles = ConnectedRoles([Named("cuda"), Named("shared")], sees={"cuda", "shared"})
    await opened(roles, environment)
    assert roles.plane == taken
    await roles.close()


@pytest.mark.parametrize(("environment", "taken"), [("warp:ant", "group"), ("CartPole-v1", "shared")])
async def test_a_group_of_gpus_is_used_only_for_simulators_on_the_gpu(environment: str, taken: str) -> None:
    roles = ConnectedRoles([Named("cuda"), Named("group"), Named("shared")], sees={"group", "shared"})
    await opened(roles, environment)
    assert roles.plane == taken
    await roles.close()


async def test_a_restarted_role_can_be_called_although_a_connection_failed_while_it_was_down() -> None:
    with tempfile.TemporaryDirectory(prefix="pr") as folder:
        config = PodConfig("p", "unix:o", "unix:l", "folder:///s", Path(folder), layout="separate")
        client = RoleClient(config)
        evaluator = client._channels[-1]
        while evaluator.get_state(try_to_connect=True) != grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            await asyncio.sleep(0)
        servers = [await rpc.Server.start(rpc.ServerConfig(listen=address), []) for address in client._addresses]
        await client.ready()
        assert evaluator.get_state() == grpc.ChannelConnectivity.READY
        await client.close()
        for server in servers:
            await server.drain()


GPU = "cuda:0"


@pytest.mark.parametrize(
    ("scheme", "device", "reserved", "where"),
    [
        ("shared", "cpu", 1000, ["the pod's memory"]),
        ("shared", GPU, 1000, ["the pod's memory", f"the free memory of GPU {GPU}"]),
        ("cuda", GPU, 1000, [f"the free memory of GPU {GPU}"]),
        ("gpu-memory", GPU, 0, [f"the free memory of GPU {GPU}"]),
        ("memory", "cpu", 0, []),
    ],
)
async def test_a_replay_memory_must_fit_into_the_memory_of_its_plane(
    monkeypatch: pytest.MonkeyPatch, scheme: str, device: str, reserved: int, where: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (500, 1000))
    roles = ConnectedRoles([Named(scheme)], sees={scheme})
    roles._config, roles._device = replace(roles._config, memory_bytes=reserved), device
    roles._chosen = Named(scheme)
    found = dict(roles._replay_memories())
    assert list(found) == where
    assert found.get(f"the free memory of GPU {GPU}", 450) == 450


async def test_memory_that_the_plane_keeps_for_its_next_regions_is_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The replay memory of the next assignment takes the place of the last one's."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (500, 1000))
    plane = CudaPlane("podrace-p-", lambda: FakeDriver(Gpu()), tmp_path)
    plane.create("replay", [PROBE_SPEC]).close()
    roles = ConnectedRoles([plane], sees={"cuda"})
    roles._chosen, roles._device = plane, GPU
    ((_where, free),) = roles._replay_memories()
    assert free == int(0.9 * (500 + plane.spare_bytes)) > 450


async def test_memory_of_the_last_assignment_that_the_next_one_does_not_use_is_freed(tmp_path: Path) -> None:
    """Else torch, or another role on the GPU, runs out of memory that nothing uses."""
    gpu = Gpu()
    plane = CudaPlane("podrace-p-", lambda: FakeDriver(gpu), tmp_path)
    spaces = [
        Space("continuous", (3,), torch.float32, (-1.0,) * 3, (1.0,) * 3),
        Space("discrete", (), torch.int64, n=4),
    ]
    roles = ConnectedRoles([plane], sees={"cuda"})
    roles._chosen = plane
    client, held = roles._client, []
    client.lanes = 2
    for horizon in (64, 8, 64):
        roles._drop_memory()
        environment = EnvironmentSpec(id="cartpole")
        roles._session = SessionSpec(
            f"1.{len(held)}", environment, environment, NetworkSpec(), MemorySpec(horizon), seed=3, rollouts=0
        )
        roles.allocate_experience(spaces[0], spaces[1])
        held.append(sum(slab.memory.numel() for slab in gpu.slabs.values()))
        assert plane.spare_bytes == 0
    assert held[0] == held[2] > 6 * held[1]
    await roles.close()
