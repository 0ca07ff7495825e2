"""Tests what a pod can do with the access to the checkpoint store that a leaderboard grants it, on a real S3 server.

Before there were grants, every pod held the keys of the whole store: it could read, replace and delete the objects and
pointers of all tournaments.
"""

import asyncio
import itertools
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import urllib3
import weed

from leaderboard.generator import Generator
from leaderboard.service import services
from leaderboard.snapshots import SnapshotRecorder
from leaderboard.store import records
from leaderboard.store.records import Generation
from leaderboard.store.schema import DATABASE_FORMAT
from leaderboard.store_access.access import StoreAccess
from leaderboard.submission_watch import SubmissionWatch
from leaderboard.updater import Updater
from podrace import rpc
from podrace.checkpoint.v1 import store_pb2, store_pb2_grpc
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Pointer
from podrace.checkpoint_store import open_store
from podrace.checkpoint_store.assignment_store import GrantedStores
from podrace.checkpoint_store.publish import claim, fetch, fetch_latest, publish
from podrace.checkpoint_store.snapshots import store_snapshot
from podrace.checkpoint_store.store import SHARED, CheckpointStore
from podrace.database import Database
from podrace.digests import digest
from podrace.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    PodraceError,
)
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.orchestrator.v1.orchestrator_pb2 import Assignment
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

OWN, OTHER, ANCESTOR = "ant-x1", "ant-y2", "ant-z3"
NOW = 1_700_000_000.0
CREDENTIALS = {"PODRACE_STORE_ACCESS_KEY", "PODRACE_STORE_SECRET_KEY"}


@pytest.fixture(scope="module", params=[False, True], ids=["keys", "sts"])
def server(request: pytest.FixtureRequest) -> Iterator[weed.S3Server]:
    """A server that knows keys only, and one with an identity service."""
    if weed.binary() is None:
        pytest.skip(weed.MISSING)
    with weed.running_server(sts=request.param) as running:
        yield running


@dataclass
class World:
    """A leaderboard with the keys of a store, and pods without them."""

    store: CheckpointStore
    """The store as a whole, with its keys."""
    stub: Any
    pods: GrantedStores

    def pod(self, tournament_id: str = OWN, number: int = 0, *, lease_epoch: int = 1) -> CheckpointStore:
        """Returns the store of a pod that trains an agent."""
        agent = Agent(agent_id=f"{tournament_id}-a{number}", tournament_id=tournament_id)
        return self.pods.of(Assignment(tournament_id=tournament_id, lease_epoch=lease_epoch, train=agent))

    async def publish(self, tournament_id: str = OWN, version: int = 1, *, lease_epoch: int = 1) -> str:
        """Publishes as a pod; returns the digest of the manifest."""
        store, agent_id = self.pod(tournament_id, lease_epoch=lease_epoch), f"{tournament_id}-a0"

        def work() -> str:
            claim(store, agent_id, lease_epoch)
            return publish(store, agent_id, lease_epoch, parts(version), manifest(tournament_id, version))

        return await asyncio.to_thread(work)

    def published(self, tournament_id: str = OWN) -> Pointer:
        found = self.store.read_pointer(f"{tournament_id}-a0")
        return found[0] if found else Pointer()


def parts(version: int) -> dict[str, bytes]:
    return {"policy": b"policy %d" % version, "learner": b"learner %d" % version}


def manifest(tournament_id: str, version: int) -> Manifest:
    return Manifest(tournament_id=tournament_id, algorithm="ppo", policy_version=version)


def generated(transaction: Any) -> None:
    positions = itertools.count(1)
    for tournament_id in (OWN, OTHER, ANCESTOR):
        spec = TournamentSpec()
        if tournament_id == OWN:
            spec.evolution.ancestor_agent_id = f"{ANCESTOR}-a0"
        records.add_spec(transaction, tournament_id, spec)
        for number in range(2):
            agent = Agent(agent_id=f"{tournament_id}-a{number}", tournament_id=tournament_id, number=number)
            records.add_generation(transaction, Generation(agent, 0, 0, next(positions)))


@pytest.fixture
async def world(server: weed.S3Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    uri = server.uri(f"test/{uuid.uuid4().hex[:12]}")
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    store = await asyncio.to_thread(open_store, uri)
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    folder = Path(tempfile.mkdtemp(prefix="sg-"))
    state = Database.open(folder / "leaderboard.sqlite", DATABASE_FORMAT, lambda: NOW)
    await state.transact(generated)
    watch, access = SubmissionWatch(), StoreAccess(state, store, renew_after_seconds=0.0)
    served = services(
        state, watch, Updater(state, store, watch), Generator(state), SnapshotRecorder(state, store), access
    )
    running = await rpc.Server.start(rpc.ServerConfig(listen=f"unix:{folder}/l.sock", grace_seconds=0.5), served)
    channel = rpc.connect(running.address, store_pb2.DESCRIPTOR)
    stub: Any = store_pb2_grpc.StoreServiceStub(channel)
    yield World(store, stub, GrantedStores(uri, stub, asyncio.get_running_loop(), environ={}))
    await channel.close()
    await watch.close()
    await running.drain()
    state.close()
    shutil.rmtree(folder)


async def refused(kind: type[PodraceError], work: Callable[..., object], *arguments: object) -> PodraceError:
    with pytest.raises(kind) as refusal:
        await asyncio.to_thread(work, *arguments)
    return refusal.value


# --- what a pod needs ------------------------------------------------------------------------------------------------


async def test_a_pod_without_credentials_publishes_and_resumes(world: World) -> None:
    published = await world.publish()
    assert world.published() == Pointer(agent_id=f"{OWN}-a0", lease_epoch=1, manifest_digest=published)
    assert fetch(world.store.within(OWN), published)[1] == parts(1)
    assert {stored.tournament_id for stored in world.store.within(OWN).list_objects()} == {OWN}
    latest = await asyncio.to_thread(fetch_latest, world.pod(lease_epoch=1), f"{OWN}-a0")
    assert latest is not None
    assert (latest.manifest_digest, latest.parts) == (published, parts(1))


async def test_a_large_part_is_stored_and_read(world: World) -> None:
    data = bytes(range(256)) * 2**17  # 32 MiB
    store = world.pod()

    def work() -> bytes:
        claim(store, f"{OWN}-a0", 1)
        name = publish(store, f"{OWN}-a0", 1, {"policy": data}, manifest(OWN, 1))
        return fetch(world.pod(), name)[1]["policy"]

    assert await asyncio.to_thread(work) == data


async def test_a_publication_may_be_repeated_and_keeps_its_objects_young(world: World) -> None:
    first = await world.publish()
    assert await world.publish() == first
    assert world.published().previous_manifest_digest == ""


async def test_a_child_reads_the_checkpoint_of_the_named_ancestor(world: World) -> None:
    ancestor = await world.publish(ANCESTOR)
    store = world.pod()
    assert (await asyncio.to_thread(fetch, store, ancestor))[1] == parts(1)
    # It has to store the parts again that its own manifests list.
    assert not store.has_object(digest(b"policy 1"))


async def test_checkpoints_of_a_released_version_are_read(world: World) -> None:
    def released() -> str:
        claim(world.store, f"{OWN}-a0", 1)
        return publish(world.store, f"{OWN}-a0", 1, parts(7), manifest(OWN, 7))

    name = await asyncio.to_thread(released)
    assert (await asyncio.to_thread(fetch, world.pod(), name))[1] == parts(7)


async def test_an_evaluation_reads_checkpoints_of_its_tournament(world: World) -> None:
    published = await world.publish()
    store = world.pods.of(Assignment(tournament_id=OWN))
    assert (await asyncio.to_thread(fetch, store, published))[1] == parts(1)


async def test_a_snapshot_is_stored(world: World) -> None:
    await world.publish()
    name = await asyncio.to_thread(store_snapshot, world.pod(), b"policy 9", manifest(OWN, 9))
    assert fetch(world.store.within(OWN), name)[1] == {"policy": b"policy 9"}


# --- what a pod must not do ------------------------------------------------------------------------------------------


async def test_a_pod_reads_nothing_of_another_tournament(world: World) -> None:
    theirs = await world.publish(OTHER)
    await refused(NotFound, fetch, world.pod(), theirs)
    # The ancestor does not read from its descendants either.
    ours = await world.publish(OWN, 2)
    await refused(NotFound, fetch, world.pod(ANCESTOR), ours)


async def test_the_answer_about_a_checkpoint_of_others_is_that_about_none(world: World) -> None:
    theirs, none = await world.publish(OTHER), digest(b"no checkpoint")
    found = [(await refused(NotFound, fetch, world.pod(), name)).message.replace(name, "X") for name in (theirs, none)]
    assert found[0] == found[1]


async def test_a_manifest_that_names_objects_of_others_opens_none_of_them(world: World) -> None:
    """A pod knows the digests of candidates of other tournaments from the lists of a leaderboard."""
    theirs = await world.publish(OTHER)
    shared = world.store.within(SHARED).put_object(b"released policy of others")

    def work() -> list[str]:
        store = world.pod()
        claim(store, f"{OWN}-a0", 1)
        lure = manifest(OWN, 1)
        stolen = [theirs, digest(b"policy 1"), shared]
        for name in stolen:
            lure.parts.add(name=name[:8], digest=name, size_bytes=1)
        listed = list(lure.parts)
        name = publish(store, f"{OWN}-a0", 1, {"policy": b"own"}, lure, stored=listed)
        reading = world.pod()
        reading.get_object(name)
        opened = []
        for part in stolen:
            try:
                reading.get_object(part)
            except NotFound:
                continue
            opened.append(part)
        return opened

    assert await asyncio.to_thread(work) == []


async def test_a_manifest_in_the_shared_folder_that_names_another_tournament_is_not_read(world: World) -> None:
    def released() -> str:
        claim(world.store, f"{OTHER}-a0", 1)
        return publish(world.store, f"{OTHER}-a0", 1, parts(7), manifest(OTHER, 7))

    await refused(NotFound, fetch, world.pod(), await asyncio.to_thread(released))


async def test_a_pod_cannot_replace_an_object(world: World) -> None:
    await world.publish()
    before = {(stored.digest, stored.size_bytes) for stored in world.store.within(OWN).list_objects()}
    files = [store_pb2.StoredFile(digest=digest(b"policy 1"), size_bytes=len(b"policy 1"))]
    request = store_pb2.GrantUploadsRequest(tournament_id=OWN, agent_id=f"{OWN}-a0", lease_epoch=1, files=files)
    (upload,) = (await world.stub.GrantUploads(request)).uploads

    def put(body: bytes, **changed: str) -> int:
        headers = dict(upload.headers) | {name.replace("_", "-"): value for name, value in changed.items()}
        with urllib3.PoolManager(retries=False) as pool:
            return pool.request("PUT", upload.url, body=body, headers=headers).status

    assert await asyncio.to_thread(put, b"policy 1") == 412
    assert await asyncio.to_thread(put, b"policy 2") in (400, 412)
    assert await asyncio.to_thread(put, b"policy 2", if_none_match="") == 403
    assert {(stored.digest, stored.size_bytes) for stored in world.store.within(OWN).list_objects()} == before
    assert fetch(world.store.within(OWN), world.published().manifest_digest)[1] == parts(1)


async def test_a_pod_neither_lists_nor_deletes(world: World) -> None:
    await world.publish()
    store = world.pod()
    await refused(PermissionDenied, store.list_objects)
    await refused(PermissionDenied, store.list_pointers)
    await refused(PermissionDenied, store.delete_object, digest(b"policy 1"), 0.0)
    methods = {method.name for method in store_pb2.DESCRIPTOR.services_by_name["StoreService"].methods}
    of_orchestrator = {"ListBackupPointers", "SwapBackupPointer", "GrantBackupTransfers"}
    assert methods - of_orchestrator == {"GetPointer", "SwapPointer", "GrantUploads", "GrantReads", "RenewObjects"}


async def test_a_pod_that_lost_its_agent_gets_no_grant_and_swaps_nothing(world: World) -> None:
    await world.publish(lease_epoch=1)
    await world.publish(version=2, lease_epoch=2)
    stale, before = world.pod(lease_epoch=1), world.published()
    for work in (
        lambda: stale.read_pointer(f"{OWN}-a0"),
        lambda: stale.announce({digest(b"x"): 1}),
        lambda: stale.swap_pointer(f"{OWN}-a0", Pointer(agent_id=f"{OWN}-a0", lease_epoch=1), None),
    ):
        assert (await refused(FailedPrecondition, work)).reason == "ERROR_REASON_STALE_EPOCH"
    assert world.published() == before


async def test_an_upload_needs_a_claim(world: World) -> None:
    error = await refused(FailedPrecondition, world.pod().announce, {digest(b"x"): 1})
    assert "claim it first" in error.message


async def test_a_pod_moves_no_pointer_of_another_agent(world: World) -> None:
    await world.publish(OTHER)
    theirs = world.store.read_pointer(f"{OTHER}-a0")
    assert theirs is not None
    await refused(PermissionDenied, world.pod().read_pointer, f"{OTHER}-a0")
    request = store_pb2.SwapPointerRequest(
        tournament_id=OWN, agent_id=f"{OTHER}-a0", lease_epoch=9, pointer=Pointer(lease_epoch=9), etag=theirs[1]
    )
    with pytest.raises(NotFound, match="never generated"):
        await rpc.call(world.stub.SwapPointer, request, deadline_seconds=10)
    assert world.store.read_pointer(f"{OTHER}-a0") == theirs


async def test_a_pointer_moves_only_to_a_manifest_of_its_agent(world: World) -> None:
    first = await world.publish()
    theirs = await world.publish(ANCESTOR)
    found = world.store.read_pointer(f"{OWN}-a0")
    assert found is not None

    def move(manifest_digest: str) -> None:
        wanted = Pointer(
            agent_id=f"{OWN}-a0", lease_epoch=1, manifest_digest=manifest_digest, previous_manifest_digest=first
        )
        world.pod().swap_pointer(f"{OWN}-a0", wanted, found[1])

    await refused(NotFound, move, digest(b"never stored"))
    await refused(NotFound, move, theirs)
    foreign = await asyncio.to_thread(store_snapshot, world.pod(), b"policy 9", manifest(OWN, 9))
    await refused(InvalidArgument, move, foreign)
    assert world.store.read_pointer(f"{OWN}-a0") == found


@pytest.mark.parametrize("method", ["GetPointer", "GrantUploads", "RenewObjects"])
async def test_an_agent_of_another_tournament_does_not_exist(world: World, method: str) -> None:
    request = getattr(store_pb2, f"{method}Request")
    messages = []
    for agent_id in (f"{OTHER}-a0", f"{OTHER}-a999"):
        asked = request(tournament_id=OWN, agent_id=agent_id, lease_epoch=1)
        with pytest.raises(NotFound) as refusal:
            await rpc.call(getattr(world.stub, method), asked, deadline_seconds=10)
        messages.append(refusal.value.message.replace(agent_id, "X"))
    assert messages[0] == messages[1]


async def test_too_large_or_too_many_objects_are_refused(world: World) -> None:
    await world.publish()
    error = await refused(InvalidArgument, world.pod().announce, {digest(b"x"): 5 * 2**30 + 1})
    assert 'store_access = "direct"' in error.message
    files = [store_pb2.StoredFile(digest=digest(b"x"), size_bytes=1)] * 1001
    request = store_pb2.GrantUploadsRequest(tournament_id=OWN, agent_id=f"{OWN}-a0", lease_epoch=1, files=files)
    with pytest.raises(InvalidArgument, match="at most 1000"):
        await rpc.call(world.stub.GrantUploads, request, deadline_seconds=10)
