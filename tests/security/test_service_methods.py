"""RegisterTournaments and ArchiveTournament, which only the orchestrator may call: what others get, and do not change.

The matrix tries one token of each role. Here are the relatives: forged and expired tokens, those of another audience or
mesh, streams whose caller is refused, and registrations and archives of tournaments that belong to others.
"""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fuzz.worlds import given_spec, published

from leaderboard.checkpoints.archiving import TournamentArchiving
from leaderboard.generator import Generator
from leaderboard.service import services
from leaderboard.snapshots import SnapshotRecorder
from leaderboard.store.owners import TournamentOwners
from leaderboard.store.schema import DATABASE_FORMAT
from leaderboard.store_access.access import StoreAccess
from leaderboard.submission_watch import SubmissionWatch
from leaderboard.updater import Updater
from podrace import rpc
from podrace.access.authenticators.signed import SignedTokenAuthenticator
from podrace.access.guard import Guard
from podrace.access.lease_tokens import LEASE_AUDIENCE
from podrace.access.mesh_key import MeshKey, make_pem
from podrace.access.ownership import Ownership
from podrace.access.principal import ROLES_BY_NAME
from podrace.access.tokens import AUDIENCE, claims_of, pod_claims
from podrace.backup.archives import Archives, json_lines
from podrace.checkpoint_store.folder import FolderStore
from podrace.database import Database
from podrace.errors import InvalidArgument, NotFound, PermissionDenied, PodraceError, Unauthenticated, Unavailable
from podrace.leaderboard.v1 import leaderboard_pb2 as pb
from podrace.leaderboard.v1 import leaderboard_pb2_grpc as pb_grpc
from podrace.specification.resolve import resolve

NOW, NAME = 1_800_000_000.0, "race-abcdef"
KEY, FOREIGN = MeshKey(make_pem(), lambda: NOW), MeshKey(make_pem(), lambda: NOW)
ORCHESTRATOR = {ROLES_BY_NAME["orchestrator"]}
RECORDS = json_lines([{"record": "event", "kind": "tournament_created"}])


def token(key: MeshKey = KEY, role: str = "orchestrator", expires: float = 600.0, **claims: str) -> str:
    return key.sign(claims_of(role, {ROLES_BY_NAME[role]}, expire_time=NOW + expires, **claims))


GOOD = token()
REFUSED: dict[str, tuple[str, type[PodraceError]]] = {
    "no token": ("", Unauthenticated),
    "words": ("orchestrator", Unauthenticated),
    "of another mesh": (token(FOREIGN), Unauthenticated),
    "expired": (token(expires=-3600.0), Unauthenticated),
    "of another audience": (token(audience="grpc://leaderboard:50052"), Unauthenticated),
    "of a lease": (KEY.sign({"aud": LEASE_AUDIENCE, "sub": "a", "exp": NOW + 600}), Unauthenticated),
    "changed": (GOOD[:-8] + ("A" * 8 if GOOD[-8:] != "A" * 8 else "B" * 8), Unauthenticated),
    "of its pod": (KEY.sign(pod_claims(f"{NAME}-p0", NAME, NOW + 600)), PermissionDenied),
    "of its owner": (token(role="user", tournament_id=NAME), PermissionDenied),
    "of an operator": (token(role="operator"), PermissionDenied),
    "of a leaderboard": (token(role="leaderboard"), PermissionDenied),
}


@dataclass
class Running:
    """A leaderboard on a port, with a tournament of alice that is archived."""

    address: str
    owners: TournamentOwners
    archives: Archives
    store: FolderStore

    async def register(self, token: str, *tournaments: pb.RegisteredTournament) -> None:
        async with rpc.connect(self.address, token=lambda: token) as channel:
            stub: Any = pb_grpc.UpdaterServiceStub(channel)
            request = pb.RegisterTournamentsRequest(tournaments=tournaments)
            await rpc.call(stub.RegisterTournaments, request, deadline_seconds=30.0)

    async def archive(self, token: str, requests: Iterator[pb.ArchiveTournamentRequest]) -> Any:
        async with rpc.connect(self.address, token=lambda: token) as channel:
            stub: Any = pb_grpc.UpdaterServiceStub(channel)
            return await rpc.send(stub.ArchiveTournament, requests, deadline_seconds=30.0)

    def objects(self) -> list[str]:
        return sorted(str(path) for path in Path(self.store.uri.removeprefix("folder://")).rglob("*"))


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    state = Database.open(tmp_path / "leaderboard.sqlite", DATABASE_FORMAT, lambda: NOW)
    store, watch, owners = FolderStore(tmp_path / "store"), SubmissionWatch(), TournamentOwners()
    updater, generator = Updater(state, store, watch), Generator(state, owners=owners)
    kept, access = SnapshotRecorder(state, store), StoreAccess(state, store, renew_after_seconds=1800.0)
    archiving = TournamentArchiving(state, store, lambda: NOW)
    offered = services(state, watch, updater, generator, kept, access, owners=owners, archiving=archiving)
    guard = Guard([SignedTokenAuthenticator(KEY.public, AUDIENCE)], owners=owners, now=lambda: NOW)
    server = await rpc.Server.start(rpc.ServerConfig(grace_seconds=0.0), offered, guard=guard)
    request = pb.GenerateAgentRequest(
        request_id=f"{NAME}-a0", tournament_id=NAME, spec=resolve(given_spec()), owner="alice", namespace="vision"
    )
    agent: Any = await generator.generate(request)
    await updater.submit(published(store.within(NAME), agent, 1.0))  # type: ignore[arg-type]
    made = Running(server.address, owners, Archives(store), store)
    await made.archive(GOOD, requests(NAME))
    yield made
    await watch.close()
    await server.drain()
    state.close()


def requests(*names: str, records: bytes = RECORDS) -> Iterator[pb.ArchiveTournamentRequest]:
    return (pb.ArchiveTournamentRequest(tournament_id=name, records=records) for name in names)


@pytest.mark.parametrize("what", REFUSED)
async def test_nothing_is_registered_or_archived_for_another_caller(running: Running, what: str) -> None:
    presented, error = REFUSED[what]
    before, kept = running.objects(), running.archives.read(NAME)
    with pytest.raises(error):
        await running.register(presented, pb.RegisteredTournament(tournament_id="new-abcdef", owner="mallory"))
    for name in (NAME, "new-abcdef"):
        with pytest.raises(error):
            await running.archive(presented, requests(name, records=json_lines([{"record": "forged"}])))
    assert list(running.owners.tournament_ids()) == [NAME]
    assert running.objects() == before
    assert running.archives.read(NAME) == kept


async def test_a_refused_stream_is_not_read(running: Running) -> None:
    sent = 0

    def endless() -> Iterator[pb.ArchiveTournamentRequest]:
        nonlocal sent
        while True:
            sent += 1
            yield pb.ArchiveTournamentRequest(tournament_id=NAME, records=bytes(1 << 20))

    for _ in range(20):
        sent = 0
        with pytest.raises((PermissionDenied, Unavailable)) as caught:
            await running.archive(REFUSED["of its pod"][0], endless())
        # What fits into the windows of the connection, and not the 256 MiB that an archive may have.
        assert sent < 64
        if caught.type is PermissionDenied:
            return
    pytest.fail("gRPC never gave the status of the server")


async def test_a_registration_does_not_change_the_owner_of_a_known_tournament(running: Running) -> None:
    other = pb.RegisteredTournament(tournament_id=NAME, owner="mallory", namespace="else")
    await running.register(GOOD, other, pb.RegisteredTournament(tournament_id="new-abcdef", owner="bob"))
    assert running.owners.ownership_of(NAME) == Ownership("alice", "vision")
    assert running.owners.ownership_of("new-abcdef") == Ownership("bob")


@pytest.mark.parametrize("name", ["../race", "race/../x", "/etc", "", "a b", "x" * 300, "race\n"])
async def test_an_archive_has_no_path_of_its_own(running: Running, name: str) -> None:
    before = running.objects()
    with pytest.raises(InvalidArgument):
        await running.archive(GOOD, requests(name))
    with pytest.raises(InvalidArgument):
        await running.register(GOOD, pb.RegisteredTournament(tournament_id=name))
    assert running.objects() == before


async def test_the_requests_of_an_archive_name_one_tournament(running: Running) -> None:
    before = running.objects()
    with pytest.raises(InvalidArgument, match="must name the same tournament"):
        await running.archive(GOOD, requests(NAME, "new-abcdef"))
    assert running.objects() == before
    with pytest.raises(NotFound):
        running.archives.read("new-abcdef")
