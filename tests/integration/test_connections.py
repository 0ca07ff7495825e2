"""Every edge of the mesh recovers from faults of the network: the calls of its clients pass through a fault proxy."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentpod.config import PodConfig
from agentpod.learner.lease import Lease
from agentpod.session import role_client, role_polls
from agentpod.session.role_client import RoleClient
from agentpod.session.role_polls import RolePolls
from benchmarks.connections.fault_proxy import FaultProxy
from orchestrator.leaderboard_client import LeaderboardClient
from podrace import rpc
from podrace.access.guard import Guard
from podrace.agentpod.v1 import agentpod_pb2, agentpod_pb2_grpc
from podrace.checkpoint.v1 import store_pb2, store_pb2_grpc
from podrace.client import Client
from podrace.client.policy_server import PolicyServerClient
from podrace.errors import DeadlineExceeded, PodraceError, Unauthenticated, Unavailable
from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.policy.v1 import policy_service_pb2, policy_service_pb2_grpc
from podrace.rpc import channel as channel_settings
from podrace.rpc import server as server_settings
from podrace.tournament.v1.tournament_pb2 import Tournament

RECOVERY_SECONDS = 15.0


class Services(
    pb_grpc.OrchestratorServiceServicer,
    leaderboard_pb2_grpc.LeaderboardServiceServicer,
    leaderboard_pb2_grpc.UpdaterServiceServicer,
    store_pb2_grpc.StoreServiceServicer,
    agentpod_pb2_grpc.LearnerServiceServicer,
    policy_service_pb2_grpc.PolicyServiceServicer,
):
    """Answers the calls of all edges."""

    async def GetPointer(self, request: Any, context: Any) -> store_pb2.GetPointerResponse:
        return store_pb2.GetPointerResponse()

    async def GetTraining(self, request: Any, context: Any) -> agentpod_pb2.GetTrainingResponse:
        return agentpod_pb2.GetTrainingResponse()

    async def GetServing(self, request: Any, context: Any) -> policy_service_pb2.GetServingResponse:
        return policy_service_pb2.GetServingResponse()

    async def RenewAssignment(self, request: Any, context: Any) -> pb.RenewAssignmentResponse:
        return pb.RenewAssignmentResponse(directive=pb.DIRECTIVE_CONTINUE)

    async def GetTournament(self, request: Any, context: Any) -> pb.GetTournamentResponse:
        return pb.GetTournamentResponse(tournament=Tournament(tournament_id=request.tournament_id))

    async def ListCandidates(self, request: Any, context: Any) -> leaderboard_pb2.ListCandidatesResponse:
        return leaderboard_pb2.ListCandidatesResponse()

    async def SubmitCandidate(self, request: Any, context: Any) -> leaderboard_pb2.SubmitCandidateResponse:
        return leaderboard_pb2.SubmitCandidateResponse()


Edge = Callable[[str], contextlib.AbstractAsyncContextManager[Callable[[], Awaitable[object]]]]
"""Connects a client of one edge to an address and returns a call that raises PodraceError while it fails."""


@contextlib.asynccontextmanager
async def pod_to_orchestrator(address: str) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    async with rpc.connect(address, pb.DESCRIPTOR) as channel:
        stub: Any = pb_grpc.OrchestratorServiceStub(channel)
        answers = 0

        def on_token(token: str) -> None:
            nonlocal answers
            answers += 1

        lease = Lease(stub, pb.Assignment(assignment_id="t-a0.1"), orphan_seconds=600.0, on_token=on_token)

        async def renew() -> None:
            before = answers
            await lease.renew()
            if answers == before:
                raise Unavailable("the lease was not renewed")

        yield renew


@contextlib.asynccontextmanager
async def pod_to_leaderboard(address: str) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    async with rpc.connect(address, leaderboard_pb2.DESCRIPTOR) as channel:
        stub: Any = leaderboard_pb2_grpc.UpdaterServiceStub(channel)
        request = leaderboard_pb2.SubmitCandidateRequest(request_id="r")
        request.checkpoint.agent_id, request.checkpoint.manifest_digest = "t-a0", "0" * 64
        yield lambda: rpc.call(stub.SubmitCandidate, request, deadline_seconds=5.0)


@contextlib.asynccontextmanager
async def orchestrator_to_leaderboard(address: str) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    client = LeaderboardClient(address, lambda *_: None)
    yield lambda: client.list_board("t")
    await client.close()


@contextlib.asynccontextmanager
async def client_to_orchestrator(address: str) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    async with Client(address) as client:
        yield lambda: client.get_tournament("t")


@contextlib.asynccontextmanager
async def client_to_leaderboard(address: str) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    async with Client(address) as client:
        tournament = Tournament(tournament_id="t", leaderboard_address=address)
        yield lambda: client.list_board(tournament)


@contextlib.asynccontextmanager
async def pod_to_store_service(address: str) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    async with rpc.connect(address, leaderboard_pb2.DESCRIPTOR, store_pb2.DESCRIPTOR) as channel:
        stub: Any = store_pb2_grpc.StoreServiceStub(channel)
        request = store_pb2.GetPointerRequest(tournament_id="t", agent_id="t-a0")
        yield lambda: rpc.call(stub.GetPointer, request, deadline_seconds=5.0)


@contextlib.asynccontextmanager
async def follower_to_leader(address: str) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    async with rpc.connect(address, private_network=True) as channel:
        stub: Any = agentpod_pb2_grpc.LearnerServiceStub(channel)
        yield lambda: rpc.call(stub.GetTraining, agentpod_pb2.GetTrainingRequest(), deadline_seconds=5.0)


@contextlib.asynccontextmanager
async def client_to_policy_server(address: str) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    async with PolicyServerClient(address) as client:
        yield client.serving


EDGES = [
    pod_to_orchestrator,
    pod_to_leaderboard,
    pod_to_store_service,
    follower_to_leader,
    orchestrator_to_leaderboard,
    client_to_orchestrator,
    client_to_leaderboard,
    client_to_policy_server,
]
"""Calls over a network between services of podrace. The roles of a pod on one host are called over Unix sockets."""


@pytest.fixture
async def proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[FaultProxy]:
    """A proxy in front of all services, with probes that are as frequent as a test needs."""
    # A token of another mesh would be refused.
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("PODRACE_TOKEN", "PODRACE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(channel_settings, "KEEPALIVE_SECONDS", 0.5)
    monkeypatch.setattr(server_settings, "SHORTEST_PING_MILLISECONDS", 100)
    orchestrator, board = pb.DESCRIPTOR.services_by_name, leaderboard_pb2.DESCRIPTOR.services_by_name
    services = Services()
    served = [
        rpc.Service(orchestrator["OrchestratorService"], pb_grpc.add_OrchestratorServiceServicer_to_server, services),
        rpc.Service(
            board["LeaderboardService"], leaderboard_pb2_grpc.add_LeaderboardServiceServicer_to_server, services
        ),
        rpc.Service(board["UpdaterService"], leaderboard_pb2_grpc.add_UpdaterServiceServicer_to_server, services),
        *(
            rpc.Service(
                file.DESCRIPTOR.services_by_name[name], getattr(module, f"add_{name}Servicer_to_server"), services
            )
            for name, file, module in (
                ("StoreService", store_pb2, store_pb2_grpc),
                ("LearnerService", agentpod_pb2, agentpod_pb2_grpc),
                ("PolicyService", policy_service_pb2, policy_service_pb2_grpc),
            )
        ),
    ]
    config = rpc.ServerConfig(listen="127.0.0.1:0", grace_seconds=0.0)
    server = await rpc.Server.start(config, served, guard=Guard.of_anyone())
    async with FaultProxy(server.address) as proxy:
        yield proxy
    await server.drain()


async def recovered(call: Callable[[], Awaitable[object]]) -> float:
    """Repeats a call until it succeeds, and returns how long that took."""
    begin = time.monotonic()
    async with asyncio.timeout(RECOVERY_SECONDS):
        while True:
            try:
                await call()
            except PodraceError:
                await asyncio.sleep(0.05)
            else:
                return time.monotonic() - begin


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("fault", ["half_open", "reset"])
async def test_a_broken_connection_is_replaced_before_the_deadline_of_the_call(
    proxy: FaultProxy, edge: Edge, fault: str
) -> None:
    async with edge(proxy.address) as call:
        await recovered(call)
        getattr(proxy, fault)()
        assert await recovered(call) < 5.0
        assert proxy.accepted >= 2


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("fault", ["drop", "one_way", "refuse"])
async def test_calls_succeed_when_the_network_is_back(proxy: FaultProxy, edge: Edge, fault: str) -> None:
    async with edge(proxy.address) as call:
        await recovered(call)
        getattr(proxy, fault)()
        waiting = asyncio.create_task(recovered(call))
        done, _ = await asyncio.wait([waiting], timeout=1.0)
        assert not done
        proxy.heal()
        await waiting


@pytest.mark.parametrize("edge", EDGES)
async def test_a_slow_network_only_delays(proxy: FaultProxy, edge: Edge) -> None:
    proxy.delay(0.1)
    async with edge(proxy.address) as call:
        await recovered(call)
        assert 0.2 <= await recovered(call) < 5.0


async def test_a_third_party_is_reached_over_a_new_connection_after_several_exceeded_deadlines(
    proxy: FaultProxy,
) -> None:
    async with rpc.connect(proxy.address, third_party=True) as channel:
        stub: Any = pb_grpc.OrchestratorServiceStub(channel)
        request = pb.GetTournamentRequest(tournament_id="t")
        await rpc.call(stub.GetTournament, request, deadline_seconds=5.0)
        proxy.half_open()
        for _ in range(3):
            with pytest.raises(DeadlineExceeded):
                await rpc.call(stub.GetTournament, request, deadline_seconds=0.2)
        await rpc.call(stub.GetTournament, request, deadline_seconds=5.0)
        assert proxy.accepted == 2


async def test_a_token_does_not_hide_exceeded_deadlines(proxy: FaultProxy) -> None:
    async with rpc.connect(proxy.address, third_party=True, token=lambda: "unknown") as channel:
        stub: Any = pb_grpc.OrchestratorServiceStub(channel)
        request = pb.GetTournamentRequest(tournament_id="t")
        with pytest.raises(Unauthenticated):
            await rpc.call(stub.GetTournament, request, deadline_seconds=5.0)
        proxy.half_open()
        for _ in range(3):
            with pytest.raises(DeadlineExceeded):
                await rpc.call(stub.GetTournament, request, deadline_seconds=0.2)
        with pytest.raises(Unauthenticated):
            await rpc.call(stub.GetTournament, request, deadline_seconds=5.0)


def test_unix_sockets_and_third_parties_are_not_probed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    fake = SimpleNamespace(
        insecure_channel=lambda address, options: seen.append(dict(options)), Channel=channel_settings.grpc.aio.Channel
    )
    monkeypatch.setattr(channel_settings.grpc, "aio", fake)
    rpc.connect(f"unix:{tmp_path}/s")
    rpc.connect("127.0.0.1:1", third_party=True)
    rpc.connect("127.0.0.1:1")
    assert ["grpc.keepalive_time_ms" in options for options in seen] == [False, False, True]


async def test_a_worker_of_a_third_party_is_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    probed: dict[str, bool] = {}

    def connect(address: str, *files: Any, third_party: bool = False, **_: Any) -> Any:
        probed[address] = not third_party
        return rpc.connect("127.0.0.1:1")

    for module in (role_client, role_polls):
        monkeypatch.setattr(module, "rpc", SimpleNamespace(connect=connect))
    config = PodConfig("p", "unix:o", "unix:l", "folder:///s", Path("/tmp"), worker_address="10.0.0.9:50080")
    for kind in (RoleClient, RolePolls):
        client: Any = kind(config)
        assert probed.pop("10.0.0.9:50080") is False
        assert all(probed.values())
        await client.close()
