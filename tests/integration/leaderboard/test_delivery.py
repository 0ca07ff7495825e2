"""Checkpoints are delivered through the contract: to which callers, in which pieces, within which limits."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from leaderboard.delivery.checkpoint_delivery import CHUNK_BYTES, CheckpointDelivery, DeliveryLimits
from leaderboard.delivery.servicer import CheckpointServicer, delivery_service
from podrace import rpc
from podrace.access.credentials import Credentials
from podrace.access.guard import Guard
from podrace.access.ownership import Ownership
from podrace.access.principal import Principal, roles_with_included, set_current_principal
from podrace.access.v1 import access_pb2
from podrace.checkpoint.v1 import delivery_pb2 as pb
from podrace.checkpoint.v1 import delivery_pb2_grpc as pb_grpc
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation, Manifest, Trace
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.publish import claim, publish
from podrace.checkpoint_store.store import UrlGrant
from podrace.client.delivery import CheckpointFetcher
from podrace.errors import (
    Cancelled,
    DataLoss,
    InvalidArgument,
    NamedResource,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
)

RACE, OTHER = "race-1", "race-2"
PARTS = {"policy": b"p" * (2 * CHUNK_BYTES + 5), "test_vectors": b"v" * 9, "learner": b"l" * 100}


class Roles:
    """Gives every caller the role of the test."""

    def __init__(self) -> None:
        self.role = access_pb2.ROLE_VIEWER

    async def authenticate(self, credentials: Credentials) -> Principal:
        return Principal("someone", roles_with_included([self.role]))


class World:
    def __init__(self, folder: Path, store: FolderStore, roles: Roles, address: str) -> None:
        self.folder, self.store, self.roles, self.address = folder, store, roles, address
        self.channel = rpc.connect(address, pb.DESCRIPTOR)
        self.stub: Any = pb_grpc.CheckpointServiceStub(self.channel)

    def publish(self, tournament_id: str = RACE, **changes: Any) -> str:
        own, agent_id = self.store.within(tournament_id), f"{tournament_id}-a0"
        claim(own, agent_id, 1)
        return publish(own, agent_id, 1, PARTS, Manifest(tournament_id=tournament_id, algorithm="ppo", **changes))

    async def manifest(self, manifest_digest: str, tournament_id: str = RACE) -> Any:
        request = pb.GetManifestRequest(tournament_id=tournament_id, manifest_digest=manifest_digest)
        return await rpc.call(self.stub.GetManifest, request, deadline_seconds=10.0)

    async def parts(self, manifest_digest: str, **request: Any) -> Any:
        asked = pb.ListPartsRequest(tournament_id=RACE, manifest_digest=manifest_digest, **request)
        return await rpc.call(self.stub.ListParts, asked, deadline_seconds=10.0)

    async def read(self, manifest_digest: str, data: bytes, offset: int = 0) -> list[Any]:
        request = pb.ReadPartRequest(
            tournament_id=RACE, manifest_digest=manifest_digest, digest=sha(data), offset=offset
        )
        return [chunk async for chunk in rpc.stream(self.stub.ReadPart, request, deadline_seconds=10.0)]


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
async def make_world(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    opened: list[Any] = []

    async def make(limits: DeliveryLimits | None = None) -> World:
        store, roles = FolderStore(tmp_path / "store"), Roles()
        delivery = CheckpointDelivery(store, limits)
        config = rpc.ServerConfig(listen="127.0.0.1:0", grace_seconds=0.5)
        server = await rpc.Server.start(config, [delivery_service(delivery)], guard=Guard([roles]))
        world = World(tmp_path, store, roles, server.address)
        opened.append((delivery, server, world))
        return world

    yield make
    for delivery, server, world in opened:
        await world.channel.close()
        await server.drain()
        delivery.close()


@pytest.fixture
async def world(make_world: Callable[..., Any]) -> World:
    made: World = await make_world()
    return made


async def test_a_manifest_is_returned_without_its_parts_and_without_large_traces(world: World) -> None:
    small = world.publish(policy_version=3, evaluation=Evaluation(traces={"account": Trace(values=[1.0])}))
    response = await world.manifest(small)
    assert (response.manifest.agent_id, response.manifest.policy_version) == ("race-1-a0", 3)
    assert not response.manifest.parts
    assert response.size_bytes == len(world.store.within(RACE).get_object(small))
    assert list(response.manifest.evaluation.traces["account"].values) == [1.0]
    large = world.publish(evaluation=Evaluation(mean_return=2.0, traces={"account": Trace(values=[1.0] * 200_000)}))
    response = await world.manifest(large)
    assert not response.manifest.evaluation.traces
    assert response.manifest.evaluation.mean_return == 2.0


async def test_a_checkpoint_of_another_tournament_is_answered_like_one_that_does_not_exist(world: World) -> None:
    foreign = world.publish(OTHER)
    for name in (foreign, "0" * 64):
        with pytest.raises(NotFound, match=f"manifest {name} is not in") as raised:
            await world.manifest(name)
        assert raised.value.resource == NamedResource("checkpoint", name)
        with pytest.raises(NotFound):
            await world.parts(name)
        with pytest.raises(NotFound):
            await world.read(name, PARTS["policy"])


async def test_a_part_that_a_manifest_does_not_list_is_named(world: World) -> None:
    with pytest.raises(NotFound, match="lists no part") as raised:
        await world.read(world.publish(), b"unlisted")
    assert raised.value.resource == NamedResource("part", sha(b"unlisted"))


async def test_a_part_arrives_in_chunks_with_digests_and_from_any_offset(world: World) -> None:
    name = world.publish()
    chunks = await world.read(name, PARTS["policy"])
    assert [len(chunk.data) for chunk in chunks] == [CHUNK_BYTES, CHUNK_BYTES, 5]
    assert [chunk.offset for chunk in chunks] == [0, CHUNK_BYTES, 2 * CHUNK_BYTES]
    assert {chunk.size_bytes for chunk in chunks} == {len(PARTS["policy"])}
    assert all(chunk.digest == sha(chunk.data) for chunk in chunks)
    assert b"".join(chunk.data for chunk in chunks) == PARTS["policy"]
    rest = await world.read(name, PARTS["policy"], offset=CHUNK_BYTES + 7)
    assert b"".join(chunk.data for chunk in rest) == PARTS["policy"][CHUNK_BYTES + 7 :]
    assert await world.read(name, PARTS["policy"], offset=len(PARTS["policy"])) == []


async def test_viewers_read_policies_and_users_every_part(world: World) -> None:
    name = world.publish()
    assert [entry.part.name for entry in (await world.parts(name)).parts] == ["policy", "test_vectors"]
    with pytest.raises(PermissionDenied, match="only callers with the role user may read more"):
        await world.parts(name, all_parts=True)
    with pytest.raises(PermissionDenied, match="part 'learner'"):
        await world.read(name, PARTS["learner"])
    world.roles.role = access_pb2.ROLE_USER
    everything = (await world.parts(name, all_parts=True)).parts
    assert [entry.part.name for entry in everything] == ["learner", "policy", "test_vectors"]
    assert (await world.read(name, PARTS["learner"]))[0].data == PARTS["learner"]


async def test_pages_together_are_the_whole_list_and_tokens_belong_to_their_list(world: World) -> None:
    name = world.publish()
    first = await world.parts(name, page_size=1)
    second = await world.parts(name, page_size=1, page_token=first.next_page_token)
    assert [entry.part.name for page in (first, second) for entry in page.parts] == ["policy", "test_vectors"]
    assert not second.next_page_token
    assert not first.HasField("lifetime")  # a folder signs no URLs
    with pytest.raises(InvalidArgument, match="does not belong to this list"):
        await world.parts(world.publish(policy_version=2), page_token=first.next_page_token)


class SigningStore(FolderStore):
    """A folder that signs URLs, as an S3 store does."""

    def grant_upload(self, name: str, size_bytes: int, lifetime_seconds: float) -> UrlGrant:
        raise NotImplementedError

    def grant_read(self, name: str, lifetime_seconds: float) -> UrlGrant:
        return UrlGrant(f"https://store/{name}?expires={lifetime_seconds:g}", {})

    def renew_object(self, name: str, minimum_age_seconds: float) -> bool:
        raise NotImplementedError


async def test_parts_have_urls_of_five_minutes_if_the_store_signs_them(tmp_path: Path) -> None:
    store = SigningStore(tmp_path / "store")
    delivery = CheckpointDelivery(store)
    request = pb.ListPartsRequest(tournament_id=RACE, manifest_digest=_published(store))
    response = await delivery.list_parts(request, every_part=False)
    assert [entry.url for entry in response.parts] == [
        f"https://store/{sha(PARTS[name])}?expires=300" for name in ("policy", "test_vectors")
    ]
    assert response.lifetime.seconds == 300
    delivery.close()


async def test_a_client_gets_manifest_and_parts_with_equal_digests(world: World) -> None:
    name = world.publish(policy_version=9)
    async with CheckpointFetcher(world.address, RACE) as fetcher:
        fetched = await fetcher.fetch(name)
        assert sha(fetched.manifest_json) == name
        assert fetched.manifest.policy_version == 9
        assert fetched.parts == {key: PARTS[key] for key in ("policy", "test_vectors")}


async def test_a_damaged_part_is_refused_before_its_first_byte(world: World) -> None:
    name = world.publish()
    wanted = sha(PARTS["policy"])
    path = world.folder / "store/tournaments" / RACE / "objects" / wanted[:2] / wanted
    path.chmod(0o600)
    path.write_bytes(PARTS["policy"][:-1] + b"x")
    with pytest.raises(DataLoss, match="is damaged"):
        await world.read(name, PARTS["policy"])


async def test_a_stream_holds_its_place_until_it_has_ended(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    name = _published(store)
    delivery = CheckpointDelivery(store, DeliveryLimits(streams=1))

    def chunks(part: str) -> AsyncGenerator[Any, None]:
        request = pb.ReadPartRequest(tournament_id=RACE, manifest_digest=name, digest=sha(PARTS[part]))
        return delivery.chunks(request, every_part=False)

    async with contextlib.aclosing(chunks("policy")) as first:
        await anext(first)
        with pytest.raises(ResourceExhausted, match=r"1 streams with \d+ bytes are open"):
            await anext(chunks("test_vectors"))
    assert (await anext(chunks("test_vectors"))).data == PARTS["test_vectors"]
    delivery.close()


@pytest.mark.parametrize(
    ("limits", "of_owner"),
    [({"owner_streams": 2}, 2), ({"owner_bytes": 2 * len(PARTS["policy"])}, 2), ({"owner_bytes": 1}, 1)],
)
async def test_a_reader_with_many_streams_leaves_some_to_the_others(
    tmp_path: Path, limits: dict[str, int], of_owner: int
) -> None:
    store = FolderStore(tmp_path / "store")
    request = pb.ReadPartRequest(tournament_id=RACE, manifest_digest=_published(store), digest=sha(PARTS["policy"]))
    delivery = CheckpointDelivery(store, DeliveryLimits(**limits))
    async with contextlib.AsyncExitStack() as opened:

        async def read(owner: Ownership | None) -> AsyncGenerator[Any, None]:
            chunks = delivery.chunks(request, every_part=False, owner=owner)
            await opened.enter_async_context(contextlib.aclosing(chunks))
            await anext(chunks)
            return chunks

        slow = [await read(Ownership("alice")) for _ in range(of_owner)]
        with pytest.raises(ResourceExhausted, match=rf"alice has {of_owner} streams with \d+ bytes open"):
            await read(Ownership("alice"))
        for other in (Ownership("bob"), Ownership("alice", "vision"), None, None, None):
            await read(other)
        await slow[0].aclose()
        await read(Ownership("alice"))
    delivery.close()


async def test_streams_are_counted_for_users_and_viewers_and_not_for_services(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    request = pb.ReadPartRequest(tournament_id=RACE, manifest_digest=_published(store), digest=sha(PARTS["policy"]))
    delivery = CheckpointDelivery(store, DeliveryLimits(owner_streams=1))
    servicer = CheckpointServicer(delivery)

    class Reader:
        def __init__(self, *, slow: bool) -> None:
            self.reads, self.slow = asyncio.Event(), slow

        async def write(self, chunk: Any) -> None:
            self.reads.set()
            if self.slow:
                await asyncio.Event().wait()

    async def read(name: str, role: access_pb2.Role, reader: Reader) -> None:
        set_current_principal(Principal(name, roles_with_included([role])))
        await servicer.ReadPart(request, reader)  # type: ignore[arg-type]

    async with contextlib.AsyncExitStack() as opened:
        for name, role in (("alice", access_pb2.ROLE_VIEWER), ("policy-server", access_pb2.ROLE_POLICY_SERVER)):
            slow = Reader(slow=True)
            opened.callback(asyncio.create_task(read(name, role, slow)).cancel)
            await slow.reads.wait()
        await asyncio.create_task(read("bob", access_pb2.ROLE_VIEWER, Reader(slow=False)))
        await asyncio.create_task(read("policy-server", access_pb2.ROLE_POLICY_SERVER, Reader(slow=False)))
        with pytest.raises(ResourceExhausted, match="alice has 1 streams"):
            await asyncio.create_task(read("alice", access_pb2.ROLE_VIEWER, Reader(slow=False)))
    delivery.close()


async def test_a_part_that_is_too_large_is_not_streamed(make_world: Callable[..., Any]) -> None:
    small: World = await make_world(DeliveryLimits(held_bytes=50))
    small.roles.role = access_pb2.ROLE_USER
    name = small.publish()
    with pytest.raises(ResourceExhausted, match="part 'learner' has 100 bytes, and at most 50 are streamed"):
        await small.read(name, PARTS["learner"])


async def test_a_reader_that_stands_still_loses_its_stream_and_frees_its_place(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    name = _published(store)
    delivery = CheckpointDelivery(store, DeliveryLimits(streams=1))

    class StandsStill:
        async def write(self, chunk: Any) -> None:
            await asyncio.Event().wait()

    servicer = CheckpointServicer(delivery, chunk_seconds=0.01)
    request = pb.ReadPartRequest(tournament_id=RACE, manifest_digest=name, digest=sha(PARTS["policy"]))
    for _ in range(2):  # the second one finds the place free
        with pytest.raises(Cancelled, match="was read too slowly"):
            await servicer.ReadPart(request, StandsStill())  # type: ignore[arg-type]
    delivery.close()


def _published(store: FolderStore) -> str:
    own = store.within(RACE)
    claim(own, "race-1-a0", 1)
    return publish(own, "race-1-a0", 1, PARTS, Manifest(tournament_id=RACE))
