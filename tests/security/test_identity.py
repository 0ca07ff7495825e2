"""Who calls a live server, and what a caller without valid credentials gets.

Before there were rules, every process that reached the port of a standing service could call every method: a client
with uid 65534 created a tournament on 127.0.0.1:50051 and had a command run as the user of the orchestrator.
"""

import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from podrace import rpc
from podrace.access.authenticators.signed import SignedTokenAuthenticator
from podrace.access.authenticators.token_file import StaticTokenAuthenticator
from podrace.access.authenticators.unix_socket import UnixSocketAuthenticator
from podrace.access.guard import Guard
from podrace.access.mesh_key import MeshKey, make_pem
from podrace.access.principal import Principal, current_principal
from podrace.access.sending import TokenChannel
from podrace.access.tokens import AUDIENCE, claims_of, pod_token
from podrace.access.v1 import access_pb2
from podrace.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied, Unauthenticated
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

NOW = 1_800_000_000.0
OPERATOR_TOKEN = "the operator's token"
Start = Callable[[str], Any]
VALID = {
    "CreateTournament": {"request_id": "r", "spec": TournamentSpec(name="race")},
    "RenewAssignment": {"assignment_id": "t-a1.1", "lease_epoch": 1},
}
"""Fields without which the methods refuse every request."""


class Recorder(pb_grpc.OrchestratorServiceServicer):
    """Records who called; answers nothing."""

    def __init__(self) -> None:
        self.callers: list[Principal | None] = []

    async def CreateTournament(self, request, context):
        self.callers.append(current_principal())
        return pb.CreateTournamentResponse()

    async def RenewAssignment(self, request, context):
        self.callers.append(current_principal())
        return pb.RenewAssignmentResponse()

    async def WatchTournament(self, request, context):
        self.callers.append(current_principal())
        yield pb.WatchTournamentResponse()


@pytest.fixture(scope="module")
def key() -> MeshKey:
    return MeshKey(make_pem(), lambda: NOW)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
async def start(recorder: Recorder, key: MeshKey) -> AsyncIterator[Start]:
    servers = []

    async def started(listen: str = "127.0.0.1:0", **changed: Any) -> str:
        authenticators = [
            UnixSocketAuthenticator(),
            StaticTokenAuthenticator(OPERATOR_TOKEN),
            SignedTokenAuthenticator(key.public, [AUDIENCE]),
        ]
        guard = Guard(authenticators, now=lambda: NOW, **changed)
        service = rpc.Service(
            pb.DESCRIPTOR.services_by_name["OrchestratorService"],
            pb_grpc.add_OrchestratorServiceServicer_to_server,
            recorder,
        )
        servers.append(await rpc.Server.start(rpc.ServerConfig(listen, grace_seconds=0.0), [service], guard=guard))
        return servers[-1].address

    yield started
    for server in servers:
        await server.drain()


async def call(address: str, method: str, token: str = "", **fields: Any) -> Any:
    async with rpc.connect(address, token=(lambda: token) if token else None) as channel:
        stub = pb_grpc.OrchestratorServiceStub(channel)
        kind = {"CreateTournament": pb.CreateTournamentRequest, "RenewAssignment": pb.RenewAssignmentRequest}[method]
        request = kind(**(VALID[method] | fields))
        return await rpc.call(getattr(stub, method), request, deadline_seconds=10.0)


async def test_a_caller_without_a_token_is_refused_with_what_to_do(start, recorder):
    address = await start()
    with pytest.raises(Unauthenticated, match="the caller presented no token; set PODRACE_TOKEN_FILE or PODRACE_TOKEN"):
        await call(address, "CreateTournament")
    assert recorder.callers == []


async def test_a_token_that_is_not_known_is_refused(start, recorder):
    with pytest.raises(Unauthenticated, match="a token that is not known here"):
        await call(await start(), "CreateTournament", token="a guess")
    assert recorder.callers == []


async def test_the_holder_of_the_token_file_is_an_operator(start, recorder):
    await call(await start(), "CreateTournament", token=OPERATOR_TOKEN)
    (caller,) = recorder.callers
    assert caller is not None
    assert (caller.name, caller.via) == ("operator", "token")
    assert access_pb2.ROLE_OPERATOR in caller.roles


async def test_a_signed_token_says_who_calls(start, recorder, key):
    token = key.sign(claims_of("alice", {access_pb2.ROLE_USER}, expire_time=NOW + 60.0))
    await call(await start(), "CreateTournament", token=token)
    assert [caller.name for caller in recorder.callers] == ["alice"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expire_time": NOW - 60.0}, "has expired"),
        ({"audience": "grpc://simulator:1", "expire_time": NOW + 60.0}, "not valid here"),
    ],
)
async def test_an_expired_token_and_one_for_another_audience_are_refused(start, recorder, key, changes, message):
    token = key.sign(claims_of("alice", {access_pb2.ROLE_USER}, **changes))
    with pytest.raises(Unauthenticated, match=message):
        await call(await start(), "CreateTournament", token=token)
    assert recorder.callers == []


async def test_a_verified_token_is_refused_again_when_it_expires(recorder, key):
    now = [NOW]
    guard = Guard([SignedTokenAuthenticator(key.public, [AUDIENCE])], now=lambda: now[0])
    service = rpc.Service(
        pb.DESCRIPTOR.services_by_name["OrchestratorService"],
        pb_grpc.add_OrchestratorServiceServicer_to_server,
        recorder,
    )
    server = await rpc.Server.start(rpc.ServerConfig(grace_seconds=0.0), [service], guard=guard)
    token = key.sign(claims_of("alice", {access_pb2.ROLE_USER}, expire_time=NOW + 60.0))
    await call(server.address, "CreateTournament", token=token)
    key.public._now = lambda: now[0]
    now[0] += 120.0
    with pytest.raises(Unauthenticated, match="has expired"):
        await call(server.address, "CreateTournament", token=token)
    key.public._now = lambda: NOW
    await server.drain()


async def test_a_pod_may_not_do_what_users_do(start, recorder, key):
    with pytest.raises(PermissionDenied, match=r"pod/t-p1 has the role pod-leader; .*CreateTournament needs user"):
        await call(await start(), "CreateTournament", token=pod_token(key, "t-p1", "t", NOW + 60.0))
    assert recorder.callers == []


async def test_the_lease_of_another_tournament_and_of_another_pod_look_like_none(start, recorder, key):
    address = await start(holder_of={"t-a1.1": "t-p1", "t-a2.1": "t-p2", "u-a1.1": "u-p1"}.get)
    token = pod_token(key, "t-p1", "t", NOW + 60.0)
    await call(address, "RenewAssignment", token=token, assignment_id="t-a1.1")
    for foreign in ("t-a2.1", "u-a1.1", "u-a9.1"):
        with pytest.raises(NotFound, match=f"assignment of '{foreign[:-2]}': there is no such agent or evaluation"):
            await call(address, "RenewAssignment", token=token, assignment_id=foreign)
    assert len(recorder.callers) == 1


async def test_a_stream_is_refused_as_a_call_is(start, recorder):
    async with rpc.connect(await start()) as channel:
        stub = pb_grpc.OrchestratorServiceStub(channel)
        with pytest.raises(Unauthenticated):
            async for _ in rpc.stream(
                stub.WatchTournament, pb.WatchTournamentRequest(tournament_id="t"), deadline_seconds=10.0
            ):
                pass
    async with rpc.connect(await start(), token=lambda: OPERATOR_TOKEN) as channel:
        stub = pb_grpc.OrchestratorServiceStub(channel)
        watched = rpc.stream(stub.WatchTournament, pb.WatchTournamentRequest(tournament_id="t"), deadline_seconds=10.0)
        assert [answer async for answer in watched] == [pb.WatchTournamentResponse()]
    assert len(recorder.callers) == 1


async def test_a_caller_of_a_private_unix_socket_is_the_user_unless_it_presents_a_token(start, recorder, key):
    with tempfile.TemporaryDirectory() as folder:
        address = await start(f"unix:{folder}/o.sock")
        await call(address, "CreateTournament")
        (caller,) = recorder.callers
        assert caller is not None
        assert caller.via == "unix"
        assert access_pb2.ROLE_POD_LEADER in caller.roles
        with pytest.raises(PermissionDenied):
            await call(address, "CreateTournament", token=pod_token(key, "t-p1", "t", NOW + 60.0))


async def test_a_server_without_a_guard_answers_no_one_on_a_port(recorder):
    service = rpc.Service(
        pb.DESCRIPTOR.services_by_name["OrchestratorService"],
        pb_grpc.add_OrchestratorServiceServicer_to_server,
        recorder,
    )
    server = await rpc.Server.start(rpc.ServerConfig(grace_seconds=0.0), [service])
    with pytest.raises(Unauthenticated):
        await call(server.address, "CreateTournament", token=OPERATOR_TOKEN)
    # Health is not a secret: probes have no credentials.
    await rpc.wait_until_serving(server.address, deadline_seconds=10.0)
    await server.drain()


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o701, 0o777])
async def test_a_socket_in_a_folder_that_others_can_enter_is_refused(mode):
    # Directly below a folder that everyone can enter.
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(mode)
        with pytest.raises(FailedPrecondition, match=r"other users can enter the folder .* mode 0700"):
            await rpc.Server.start(rpc.ServerConfig(f"unix:{name}/o.sock"), [])
        assert not list(Path(name).iterdir())


async def test_a_folder_below_one_that_only_the_user_can_enter_is_private():
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        below = Path(name) / "open"
        below.mkdir()
        below.chmod(0o777)
        server = await rpc.Server.start(rpc.ServerConfig(f"unix:{below}/o.sock", grace_seconds=0.0), [])
        await server.drain()


async def test_a_socket_without_a_file_is_refused():
    with pytest.raises(InvalidArgument, match="every process could open this socket"):
        await rpc.Server.start(rpc.ServerConfig("unix-abstract:podrace-test"), [])


async def test_a_token_is_not_sent_unencrypted_to_another_machine():
    sent: list[str] = []
    for address in ("192.0.2.1:50051", "orchestrator:50051"):
        channel = rpc.connect(address, token=lambda: sent.append("token") or "token")
        assert not isinstance(channel, TokenChannel)
        await channel.close()
    assert sent == []
