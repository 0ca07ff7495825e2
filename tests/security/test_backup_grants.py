"""Tests what an orchestrator without keys can do in the checkpoint store, on a real S3 server: back itself up."""

import asyncio
import contextlib
import math
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import weed

from leaderboard.generator import Generator
from leaderboard.service import services
from leaderboard.snapshots import SnapshotRecorder
from leaderboard.store.schema import DATABASE_FORMAT
from leaderboard.store_access.access import StoreAccess
from leaderboard.store_access.backups import BackupAccess
from leaderboard.submission_watch import SubmissionWatch
from leaderboard.updater import Updater
from orchestrator.backup_store import granted_store
from podrace import rpc
from podrace.backup.config import BackupConfig
from podrace.backup.copies import Backups
from podrace.backup.database import BackedUpDatabase, OpenStore
from podrace.backup.granted import needs_grants
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Pointer
from podrace.checkpoint_store import open_store
from podrace.checkpoint_store.minio_address import parse_address, read_access
from podrace.checkpoint_store.minio_client import Bucket
from podrace.checkpoint_store.minio_retries import RetryPolicy
from podrace.checkpoint_store.publish import claim, publish, read_manifest
from podrace.checkpoint_store.store import CheckpointStore, object_path
from podrace.database import Database, DatabaseLocation, Format, Transaction
from podrace.digests import digest
from podrace.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    PodraceError,
    ResourceExhausted,
)
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.specification.resolve import parse

FORMAT = Format("orchestrator", 7, 1, "CREATE TABLE numbers (number INTEGER, text TEXT)")
PLACE = "podrace-backup-main-orchestrator"
NOW = 1_700_000_000.0
DEADLINE_SECONDS, PROCESS_SECONDS = 20.0, 90.0
SPEC = {
    "environment": {"id": "cartpole"},
    "algorithms": {"ppo": {}},
    "objective": {"environment_steps": 10**9},
}
CREDENTIALS = ("PODRACE_STORE_ACCESS_KEY", "PODRACE_STORE_SECRET_KEY")


@pytest.fixture(scope="module")
def server() -> Iterator[weed.S3Server]:
    if weed.binary() is None:
        pytest.skip(weed.MISSING)
    with weed.running_server() as running:
        yield running


@dataclass
class World:
    """A leaderboard with the keys of a store, and an orchestrator without them."""

    store: CheckpointStore
    """The store as a whole, with its keys."""
    granted: OpenStore
    """What opens the store of the orchestrator."""
    uri: str
    address: str

    async def opened(self, folder: Path, **config: Any) -> BackedUpDatabase:
        """Opens the database of the orchestrator."""
        location = DatabaseLocation(folder / "state.sqlite")
        return await BackedUpDatabase.open(
            *(location, FORMAT, lambda: NOW, BackupConfig(**config), self.uri), granted=self.granted
        )


@pytest.fixture
async def world(server: weed.S3Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    uri = server.uri(f"test/{uuid.uuid4().hex[:12]}")
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    store = await asyncio.to_thread(open_store, uri)
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    assert needs_grants(uri)
    folder = Path(tempfile.mkdtemp(prefix="bg-"))
    state = Database.open(folder / "leaderboard.sqlite", DATABASE_FORMAT, lambda: NOW)
    watch, access = SubmissionWatch(), StoreAccess(state, store, renew_after_seconds=0.0)
    served = services(
        *(state, watch, Updater(state, store, watch), Generator(state), SnapshotRecorder(state, store), access),
        backups=BackupAccess(store, "main", renew_after_seconds=0.0),
    )
    running = await rpc.Server.start(rpc.ServerConfig(listen=f"unix:{folder}/l.sock", grace_seconds=0.5), served)
    async with granted_store(running.address, uri, "main", None) as granted:
        yield World(store, granted, uri, running.address)
    await watch.close()
    await running.drain()
    state.close()
    shutil.rmtree(folder)


def insert(transaction: Transaction, number: int, size: int = 10) -> None:
    transaction.execute("INSERT INTO numbers VALUES (?, ?)", number, "x" * size)


def numbers(path: Path) -> list[int]:
    with contextlib.closing(sqlite3.connect(path)) as opened:
        return [number for (number,) in opened.execute("SELECT number FROM numbers ORDER BY number")]


async def refused(kind: type[PodraceError], work: Callable[..., object], *arguments: object) -> None:
    with pytest.raises(kind):
        await asyncio.to_thread(work, *arguments)


@pytest.mark.parametrize("config", [{"period_seconds": 3600.0}, {"rebuild": True}], ids=["period", "on demand"])
async def test_an_orchestrator_without_keys_starts_from_its_backup_on_an_empty_volume(
    world: World, tmp_path: Path, config: dict[str, Any]
) -> None:
    first = await world.opened(tmp_path / "first", **config)
    await first.database.transact(insert, 1, 9_000_000)
    made = await first.back_up()
    await first.database.transact(insert, 2)
    newest = await first.back_up()
    first.database.close()
    assert (made.database_id, made.epoch) == (newest.database_id, newest.epoch)
    second = await world.opened(tmp_path / "second", **config)
    assert second.restored == newest
    again = await second.back_up()
    second.database.close()
    assert numbers(tmp_path / "second" / "state.sqlite") == [1, 2]
    assert again.epoch > newest.epoch
    listed = await asyncio.to_thread(Backups(world.store, "main", "orchestrator").list)
    assert listed[0] == again
    with pytest.raises(FailedPrecondition, match="is out of date"):
        (await world.opened(tmp_path / "first", period_seconds=3600.0)).database.close()


async def test_a_first_start_finds_no_backup_and_makes_one(world: World, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    opened = await world.opened(tmp_path / "first", period_seconds=3600.0)
    assert opened.restored is None
    async with opened as database:
        await database.transact(insert, 1)
    assert (await asyncio.to_thread(Backups(world.store, "main", "orchestrator").newest)) is not None


async def test_what_is_not_a_backup_of_the_orchestrator_cannot_be_reached(world: World) -> None:
    def published(place: str) -> str:
        store = world.store.within(place)
        claim(store, f"{place}-a0", 1)
        return publish(store, f"{place}-a0", 1, {"policy": b"parameters"}, Manifest(tournament_id=place))

    for place in ("ant-x1", "podrace-backup-main-leaderboard", "podrace-backup-other-orchestrator"):
        checkpoint = await asyncio.to_thread(published, place)
        store = world.granted(DEADLINE_SECONDS)
        await refused(PermissionDenied, store.within, place)
        await refused(NotFound, store.get_object, checkpoint)
        for work in (store.read_pointer, store.delete_pointer):
            await refused(InvalidArgument, work, f"{place}-a0")
        await refused(InvalidArgument, store.swap_pointer, f"{place}-a0", Pointer(agent_id=f"{place}-a0"), None)
        stolen = Pointer(agent_id=f"{PLACE}-a0", lease_epoch=1, manifest_digest=checkpoint)
        await refused(NotFound, store.swap_pointer, f"{PLACE}-a0", stolen, None)
    assert await asyncio.to_thread(lambda: list(world.granted(DEADLINE_SECONDS).list_pointers())) == []
    await refused(PermissionDenied, store.list_objects)
    await refused(PermissionDenied, store.delete_object, "0" * 64, 0.0)
    await refused(PermissionDenied, store.delete_tournament, "x")


@pytest.mark.parametrize("lost", [True, False], ids=["missing", "damaged"])
async def test_a_piece_that_is_missing_or_damaged_is_stored_again(
    world: World, server: weed.S3Server, tmp_path: Path, lost: bool
) -> None:
    opened = await world.opened(tmp_path / "first", period_seconds=3600.0)
    await opened.database.transact(insert, 1, 9_000_000)
    first = await opened.back_up()
    store = world.store.within(PLACE)
    pieces = (await asyncio.to_thread(read_manifest, store, first.manifest_digest)).parts
    piece = next(part.digest for part in pieces if part.name == "00000001")
    assert await asyncio.to_thread(store.delete_object, piece, -math.inf)
    if not lost:
        address = parse_address(world.uri)
        bucket = Bucket(address, read_access(address, server.environ), RetryPolicy(10.0))
        key = f"{address.prefix}{object_path(PLACE, piece)}"
        await asyncio.to_thread(bucket.put, key, b"damaged", digest(b"damaged"), "object")
    again = await opened.back_up()
    opened.database.close()
    backups = Backups(world.store, "main", "orchestrator")
    for backup in (again, first):
        path = tmp_path / f"{backup.manifest_digest}.sqlite"
        assert await asyncio.to_thread(backups.restore, path, backup.manifest_digest) == backup
        assert numbers(path) == [1]


async def test_of_an_intact_object_at_most_the_stated_bytes_are_read(world: World) -> None:
    store = world.store.within(PLACE)
    name = await asyncio.to_thread(store.put_object, b"piece")
    await asyncio.to_thread(world.granted(DEADLINE_SECONDS).announce, {name: 5})
    await refused(ResourceExhausted, world.granted(DEADLINE_SECONDS).announce, {name: 4})
    assert await asyncio.to_thread(store.get_object, name) == b"piece"


async def test_both_services_have_the_same_name_of_backups(world: World) -> None:
    async with granted_store(world.address, world.uri, "another", None) as granted:
        store = granted(DEADLINE_SECONDS)
        with pytest.raises(InvalidArgument, match=r"backup\.name = 'main'; set the same"):
            await asyncio.to_thread(store.list_pointers)


@contextlib.contextmanager
def process(program: str, folder: Path, uri: str, environ: dict[str, str], **settings: object) -> Iterator[str]:
    """Runs a service and yields its address; it is killed at the end of the block."""
    address = f"unix:{folder}/{program}.sock"
    values = {"server.listen": address, "database": folder / f"{program}.sqlite", "store": uri, **settings}
    values |= {"runtime_folder": folder / "run" / program, "telemetry.metrics_listen": ""}
    arguments = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    (folder / "run").mkdir(mode=0o700, exist_ok=True)
    running = subprocess.Popen([sys.executable, "-m", program, *arguments], env=environ, cwd=folder)
    try:
        yield address
    finally:
        running.kill()
        running.wait()


@pytest.mark.long
async def test_an_orchestrator_process_without_keys_that_lost_its_volume_knows_its_tournament(
    server: weed.S3Server,
) -> None:
    folder, uri = Path(tempfile.mkdtemp(prefix="bg-")), server.uri(f"test/{uuid.uuid4().hex[:12]}")
    without_keys = {name: value for name, value in os.environ.items() if name not in server.environ}
    settings = {"launcher": "external", "log_folder": folder / "logs"}
    with process("leaderboard", folder, uri, without_keys | server.environ) as leaderboard:
        settings |= {"leaderboard": leaderboard, "backup.rebuild": "true"}
        with process("orchestrator", folder, uri, without_keys, **settings) as address:
            async with rpc.connect(address, pb.DESCRIPTOR) as channel:
                stub: Any = pb_grpc.OrchestratorServiceStub(channel)
                spec = parse(SPEC, source="test")
                created = await rpc.call(
                    stub.CreateTournament,
                    pb.CreateTournamentRequest(request_id="create", spec=spec),
                    deadline_seconds=PROCESS_SECONDS,
                )
                backups = await rpc.call(stub.BackUp, pb.BackUpRequest(), deadline_seconds=PROCESS_SECONDS)
        assert [one.service for one in backups.backups] == ["orchestrator", "leaderboard"]
        for file in folder.glob("orchestrator.sqlite*"):
            file.unlink()
        with process("orchestrator", folder, uri, without_keys, **settings) as address:
            async with rpc.connect(address, pb.DESCRIPTOR) as channel:
                listed = await rpc.call(
                    pb_grpc.OrchestratorServiceStub(channel).ListTournaments,
                    pb.ListTournamentsRequest(),
                    deadline_seconds=PROCESS_SECONDS,
                )
    expected = created.tournament.tournament_id
    assert [one.tournament_id for one in listed.tournaments] == [expected], "no agent exists, so no rebuild knows it"
    shutil.rmtree(folder)


def test_an_orchestrator_with_keys_or_a_folder_needs_no_grants() -> None:
    uri = "minio+http://store:9000/podrace"
    assert needs_grants(uri, {})
    for name in ("PODRACE_STORE_ACCESS_KEY", "PODRACE_STORE_ACCESS_KEY_FILE", "AWS_ACCESS_KEY_ID"):
        assert not needs_grants(uri, {name: "x"})
    assert not needs_grants("folder:///store", {})
