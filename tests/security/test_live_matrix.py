"""The matrix of methods and roles against running programs with TLS, databases, and tournaments of two owners.

test_method_matrix tries each cell on stand-ins. Here the orchestrator, the leaderboard and the simulators are those of
`python -m`, so a service that is wired without its guard, its owners or its keys fails.
"""

import asyncio
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory
from test_method_matrix import MATRIX, OTHER_MESH, PEOPLE, POD, SERVICES, foreign_code, request_of
from test_one_machine import spec
from test_several_machines import Network

from podrace import rpc
from podrace.access.mesh_key import MeshKey
from podrace.access.principal import ROLES_BY_NAME
from podrace.access.tokens import claims_of
from podrace.errors import Unavailable
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.rpc import renewing_channel

pytestmark = pytest.mark.e2e
SERVED = {
    "orchestrator": ("OrchestratorService", "DiscoveryService"),
    "leaderboard": (
        *("LeaderboardService", "UpdaterService", "GeneratorService", "StoreService"),
        "CheckpointService",
    ),
    "simulators": ("SimulatorService",),
}
CELLS = [
    (program, service, method) for program, names in SERVED.items() for service in names for method in MATRIX[service]
]
LATER = 4_000_000_000.0
DENIED, UNKNOWN, HIDDEN = (
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.NOT_FOUND,
)
BROKEN = {UNKNOWN, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNIMPLEMENTED}
"""Answers that no caller with a role may get."""
ENDLESS = "WatchCandidates"
"""A watch without a first message; test_owners compares those of foreign tournaments."""
ATTEMPT_SECONDS, START_SECONDS = 30.0, 180.0
CALLS_AT_ONCE = 8


def ids_of(tournament_id: str) -> dict[str, str]:
    return {
        "tournament_id": tournament_id,
        "agent_id": f"{tournament_id}-a1",
        "evaluation_id": f"{tournament_id}-e1",
        "assignment_id": f"{tournament_id}-a1.1",
        "pod_id": f"{tournament_id}-p1",
    }


class World:
    """Running services, a tournament of alice and one of bob, and channels with the token of each role."""

    def __init__(self, network: Network, stack: AsyncExitStack) -> None:
        self._network, self._stack = network, stack
        self._key = MeshKey.load_or_make(network.certificates.path / "orchestrator/mesh.key")
        self._channels: dict[tuple[str, str], grpc.aio.Channel] = {}
        self._slots = asyncio.Semaphore(CALLS_AT_ONCE)
        self.own, self.foreign, self.nothing = {}, {}, ids_of("none-x1")

    def token(self, program: str, role: str, *, key: MeshKey | None = None, **changes: Any) -> str:
        """The token of a role for a program: that of alice, or of a pod of her tournament."""
        pod = {"name": f"pod/{self.own['pod_id']}", "tournament_id": self.own["tournament_id"]}
        who = pod if role in POD else {"name": "alice" if role in PEOPLE else role}
        claims = {**who, "roles": {ROLES_BY_NAME[role]}, "expire_time": LATER, **changes}
        if program == "simulators":
            # It accepts no token of the mesh, but those for its own address.
            claims.setdefault("audience", f"grpc://{self._network.address(program)}")
        return (key or self._key).sign(claims_of(**claims))

    async def create(self, owner: str) -> dict[str, str]:
        token = self._key.sign(claims_of(owner, {ROLES_BY_NAME["user"]}, expire_time=LATER))
        stub = pb_grpc.OrchestratorServiceStub(await self.channel("orchestrator", token))
        request = pb.CreateTournamentRequest(request_id=uuid.uuid4().hex, spec=spec())
        created = await rpc.call(stub.CreateTournament, request, deadline_seconds=10.0)
        return ids_of(created.tournament.tournament_id)

    async def channel(self, program: str, token: str) -> grpc.aio.Channel:
        if (program, token) not in self._channels:
            made = rpc.connect(self._network.address(program), token=lambda: token)
            self._channels[program, token] = await self._stack.enter_async_context(made)
        return self._channels[program, token]

    async def answer(self, program: str, service: str, method: str, token: str, ids: dict[str, str]) -> grpc.StatusCode:
        """Makes a call, and returns its status, repeated for the reason that test_method_matrix.answer gives."""
        for _ in range(5):
            code = await self._answer_once(program, service, method, token, ids)
            if code != grpc.StatusCode.INTERNAL:
                break
        return code

    async def _answer_once(
        self, program: str, service: str, method: str, token: str, ids: dict[str, str]
    ) -> grpc.StatusCode:
        described = SERVICES[service][0].methods_by_name[method]
        request = request_of(described, MATRIX[service][method][1], ids)
        if "request_id" in described.input_type.fields_by_name:
            request.request_id = uuid.uuid4().hex
        response = message_factory.GetMessageClass(described.output_type)
        many = ("stream" if each else "unary" for each in (described.client_streaming, described.server_streaming))
        async with self._slots:
            call = getattr(await self.channel(program, token), "_".join(many))(
                f"/{described.containing_service.full_name}/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=response.FromString,
            )(iter([request]) if described.client_streaming else request, timeout=ATTEMPT_SECONDS)
            try:
                await (call.read() if described.server_streaming else call)
            except grpc.aio.AioRpcError as error:
                return error.code()
            call.cancel()
            return grpc.StatusCode.OK


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """The running services; each test makes its own tournaments."""
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as name, ExitStack() as stack:
        made = Network(Path(name), stack)
        made.serve()
        public = made.certificates.path / "leaderboard/mesh.pub"
        made.start(
            "simulators", "plugin/simulators", server__listen=made.address("simulators"), access__public_keys=public
        )
        yield made


def become(network: Network, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process the holder of a certificate; empty: of none."""
    for name, file in network.environment(path).items():
        monkeypatch.setenv(name, file if path else "")


@pytest.fixture
async def world(network: Network, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(renewing_channel, "LOOK_SECONDS", 0.0)
    # The certificate of every caller is that of a pod's role; its token says what it may do.
    become(network, "pod-role", monkeypatch)
    for program in SERVED:
        await rpc.wait_until_serving(network.address(program), deadline_seconds=START_SECONDS)
    async with AsyncExitStack() as stack:
        made = World(network, stack)
        made.own, made.foreign = await made.create("alice"), await made.create("bob")
        yield made


async def test_every_role_is_refused_what_the_table_does_not_allow_it(world: World) -> None:
    async def tried(program: str, service: str, method: str, role: str) -> set[grpc.StatusCode]:
        token = world.token(program, role)
        return {
            await world.answer(program, service, method, token, ids)
            for ids in (world.own, world.foreign, world.nothing)
        }

    cells = [(*cell, role) for cell in CELLS for role in ROLES_BY_NAME if role not in MATRIX[cell[1]][cell[2]][0]]
    found = await asyncio.gather(*(tried(*cell) for cell in cells))
    assert {cell: codes for cell, codes in zip(cells, found, strict=True) if codes != {DENIED}} == {}
    assert len(cells) > 200


async def test_an_allowed_role_may_call_and_foreign_ids_answer_like_unknown_ones(world: World) -> None:
    async def tried(program: str, service: str, method: str, role: str) -> str:
        path, token = MATRIX[service][method][1], world.token(program, role)
        absent = await world.answer(program, service, method, token, world.nothing)
        if absent in BROKEN or (absent == DENIED and role not in POD):
            return f"{absent}"
        if role in PEOPLE and path:
            foreign = await world.answer(program, service, method, token, world.foreign)
            return "" if foreign == absent else f"{foreign} for what is foreign, {absent} for what does not exist"
        if role in POD and path:
            expected = foreign_code(role, path, method)
            foreign = await world.answer(program, service, method, token, world.foreign)
            return "" if foreign == expected else f"{foreign} for what is foreign"
        return ""

    cells = [(*cell, role) for cell in CELLS if cell[2] != ENDLESS for role in sorted(MATRIX[cell[1]][cell[2]][0])]
    found = await asyncio.gather(*(tried(*cell) for cell in cells))
    assert {cell: problem for cell, problem in zip(cells, found, strict=True) if problem} == {}
    # Methods that find something do so for its owner.
    for program, service, method in (
        ("orchestrator", "OrchestratorService", "GetTournament"),
        ("orchestrator", "OrchestratorService", "ListEvents"),
        ("orchestrator", "OrchestratorService", "WatchTournament"),
    ):
        assert (
            await world.answer(program, service, method, world.token(program, "user"), world.own) == grpc.StatusCode.OK
        )


async def test_no_method_answers_tokens_that_are_expired_or_meant_for_others(
    world: World, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tokens(program: str, role: str) -> dict[str, str]:
        return {
            "expired": world.token(program, role, expire_time=1_700_000_000.0),
            "of another audience": world.token(program, role, audience="grpc://127.0.0.1:1"),
            "of another mesh": world.token(program, role, key=OTHER_MESH),
            "cut": world.token(program, role)[:-4],
            "guess": "guess",
        }

    async def tried(program: str, service: str, method: str, token: str) -> grpc.StatusCode:
        return await world.answer(program, service, method, token, world.own)

    cells = {
        (program, service, method, what): token
        for program, service, method in CELLS
        for what, token in tokens(program, sorted(MATRIX[service][method][0])[0]).items()
    }
    found = await asyncio.gather(*(tried(*cell[:3], token) for cell, token in cells.items()))
    assert {cell: code for cell, code in zip(cells, found, strict=True) if code != UNKNOWN} == {}
    # Without a certificate there is not even a connection.
    become(network, "", monkeypatch)
    for program in SERVED:
        with pytest.raises(Unavailable):
            await rpc.wait_until_serving(network.address(program), deadline_seconds=1.0)


async def test_a_token_of_another_tournament_finds_nothing_in_this_one(world: World) -> None:
    """That of a pod of bob's tournament, and one that alice gave to a helper for another of her tournaments."""

    async def tried(program: str, service: str, method: str, role: str) -> grpc.StatusCode:
        bound = {"tournament_id": world.foreign["tournament_id"]}
        if role in POD:
            bound["name"] = f"pod/{world.foreign['pod_id']}"
        return await world.answer(program, service, method, world.token(program, role, **bound), world.own)

    def asked(service: str, method: str, role: str) -> bool:
        allowed, path = MATRIX[service][method]
        # Methods that list all that the caller may see name no tournament.
        return role in allowed and path not in ("", "pod") and role in POD | PEOPLE and method != ENDLESS

    cells = [(*cell, role) for cell in CELLS for role in ROLES_BY_NAME if asked(cell[1], cell[2], role)]
    found = dict(zip(cells, await asyncio.gather(*(tried(*cell) for cell in cells)), strict=True))
    absent = {
        cell: await world.answer(*cell[:3], world.token(cell[0], cell[3]), world.nothing)
        for cell in cells
        if cell[3] in PEOPLE
    }
    expected = {
        cell: absent[cell] if cell in absent else foreign_code(cell[3], MATRIX[cell[1]][cell[2]][1], cell[2])
        for cell in cells
    }
    assert {cell: code for cell, code in found.items() if code != expected[cell]} == {}
