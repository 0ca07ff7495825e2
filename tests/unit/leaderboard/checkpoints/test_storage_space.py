"""A lack of space is found without a request for an agent, and starts a collection."""

import asyncio
import shutil
from collections import namedtuple
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from leaderboard import garbage
from leaderboard.__main__ import _storage_space
from leaderboard.checkpoints.checkpoint_quotas import RETRY_SECONDS, Measured
from leaderboard.checkpoints.storage_space import PROBE, StorageSpace
from leaderboard.config import Config, location_of
from leaderboard.garbage import RecentAgents, collect_periodically
from leaderboard.generator import Generator
from leaderboard.ranking.retention import Retention
from podrace.checkpoint_store.folder import FolderStore
from podrace.database.leadership import only_replica
from podrace.digests import digest
from podrace.errors import PodraceError, ResourceExhausted, Unavailable
from podrace.leaderboard.v1.leaderboard_pb2 import GenerateAgentRequest

HOUR = 3600.0
MIB = 1 << 20
GIB = 1 << 30
LOW_WATER_BYTES = 128 * MIB
Usage = namedtuple("Usage", ("total", "used", "free"))


class FaultyStore(FolderStore):
    """A store that refuses objects as long as it has a fault."""

    fault: PodraceError | None = None

    def put_object(self, data: bytes, name: str = "") -> str:
        if self.fault:
            raise self.fault
        return super().put_object(data, name)


FULL = ResourceExhausted("object ab in minio+http://store:9000/podrace: the store is full (XMinioStorageFull)")


@pytest.fixture
def store(mesh: Any, tmp_path: Path) -> FaultyStore:
    return FaultyStore(tmp_path / "store", mesh.clock)


@pytest.fixture
def make_space(mesh: Any, store: FaultyStore) -> Callable[..., StorageSpace]:
    def make(
        request_collection: Callable[[], None] = lambda: None, *, folders: Any = (), capacity: int = 0, **options: Any
    ) -> StorageSpace:
        return StorageSpace(
            store, folders, LOW_WATER_BYTES, capacity, request_collection, monotonic=mesh.clock, **options
        )

    return make


@asynccontextmanager
async def collecting(mesh: Any, store: FolderStore, urgent: asyncio.Event, **options: Any) -> AsyncIterator[None]:
    """Collects while the block runs, once an hour unless it is urgent."""
    recent = await RecentAgents.load(mesh.state, HOUR, mesh.clock)
    periodic = collect_periodically(
        mesh.state, store, recent, period_seconds=HOUR, retention=Retention(), urgent=urgent, **options
    )
    task = asyncio.create_task(periodic)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def litter(mesh: Any, store: FolderStore) -> str:
    """Stores an object that nothing needs, old enough to be deleted."""
    name = store.put_object(b"a part whose manifest was never written")
    mesh.clock.now += 2 * HOUR
    return name


async def until_deleted(store: FolderStore, name: str) -> None:
    async with asyncio.timeout(10):
        while store.has_object(name):
            await asyncio.sleep(0)


async def test_a_full_store_starts_a_collection_although_no_agent_is_requested(
    mesh: Any, store: FaultyStore, make_space: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "SHORTEST_PERIOD_SECONDS", 0.0)
    garbage_name, urgent = litter(mesh, store), asyncio.Event()
    store.fault = FULL
    async with collecting(mesh, store, urgent), make_space(urgent.set, check_seconds=0.0):
        await until_deleted(store, garbage_name)


async def test_a_full_disk_starts_a_collection_although_no_agent_is_requested(
    mesh: Any, store: FaultyStore, make_space: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(garbage, "SHORTEST_PERIOD_SECONDS", 0.0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1000 * GIB, 1000 * GIB - MIB, MIB))
    garbage_name, urgent = litter(mesh, store), asyncio.Event()
    async with collecting(mesh, store, urgent), make_space(urgent.set, folders=[tmp_path], check_seconds=0.0):
        await until_deleted(store, garbage_name)


async def test_what_a_collection_leaves_is_compared_with_the_capacity_and_refuses_agents(
    mesh: Any, store: FaultyStore, make_space: Any, make_spec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "SHORTEST_PERIOD_SECONDS", 0.0)
    litter(mesh, store)
    kept = store.put_object(bytes(99_000))
    urgent, measured = asyncio.Event(), asyncio.Event()
    space = make_space(urgent.set, capacity=100_000)
    generator = Generator(mesh.state, find_shortage=space.shortage)
    request = GenerateAgentRequest(request_id="one", tournament_id="t", spec=make_spec(), number=0)

    def on_measured(found: Measured) -> None:
        space.measure(found)
        measured.set()

    async with collecting(mesh, store, urgent, on_measured=on_measured), space:
        async with asyncio.timeout(10):
            await measured.wait()
    assert [one.digest for one in store.list_objects()] == [kept]
    # 2 % of the capacity must stay free.
    with pytest.raises(
        ResourceExhausted, match=r"checkpoint store folder://.*\(store_capacity_bytes\) has 0\.0 MiB left"
    ):
        await generator.generate(request)
    space.measure(Measured({"": 40_000, "t": 57_000}, {}, {}, {}))
    await generator.generate(request)


async def test_a_full_store_refuses_agents_with_its_own_words_until_it_stores_again(
    store: FaultyStore, make_space: Any
) -> None:
    space = make_space()
    await space.check()
    assert await space.shortage() == ""
    store.fault = FULL
    assert await space.shortage() == "", "the store was not checked yet"
    await space.check()
    assert await space.shortage() == FULL.message
    store.fault = None
    await space.check()
    assert await space.shortage() == ""


async def test_a_check_leaves_nothing_in_the_store(store: FaultyStore, make_space: Any) -> None:
    await make_space().check()
    assert not store.has_object(digest(PROBE))


async def test_a_store_that_does_not_answer_is_not_full(store: FaultyStore, make_space: Any) -> None:
    requested: list[bool] = []
    space = make_space(lambda: requested.append(True))
    store.fault = Unavailable("the server is away")
    await space.check()
    assert await space.shortage() == ""
    assert not requested


async def test_a_replica_that_does_not_lead_stores_nothing(store: FaultyStore, make_space: Any) -> None:
    def check_leads() -> None:
        raise Unavailable("another replica leads")

    store.fault = FULL
    space = make_space(check_leads=check_leads)
    await space.check()
    assert await space.shortage() == ""


async def test_collections_are_requested_again_while_the_shortage_lasts_but_not_without_end(
    mesh: Any, store: FaultyStore, make_space: Any
) -> None:
    requested: list[float] = []
    begin = mesh.clock.now
    space = make_space(lambda: requested.append(mesh.clock.now - begin))
    store.fault = FULL
    for moment in (0.0, 1.0, RETRY_SECONDS, RETRY_SECONDS + 1):
        mesh.clock.now = begin + moment
        await space.check()
    assert requested == [0.0, RETRY_SECONDS]


@pytest.mark.parametrize(
    ("config", "short"),
    [
        (Config(database="/data/l.sqlite", store="minio://h/b"), True),
        (Config(database="postgresql://u@h:1/d", store="/data/store"), True),
        (Config(database="postgresql://u@h:1/d", store="folder:///data/store"), True),
        (Config(database="postgresql://u@h:1/d", store="minio://h/b"), False),
        (Config(database="/elsewhere/l.sqlite", store="/elsewhere/store"), False),
        (Config(database="/data/l.sqlite", store="/data/store", low_water_bytes=0), False),
    ],
)
async def test_the_disks_of_the_database_and_of_a_store_in_a_folder_need_space(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch, config: Config, short: bool
) -> None:
    def usage(folder: Path) -> Usage:
        return Usage(GIB, 0, 0 if folder.is_relative_to("/data") else GIB)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    urgent = asyncio.Event()
    space = _storage_space(config, location_of(config), store, urgent, only_replica)
    assert bool(await space.shortage()) == urgent.is_set() == short
