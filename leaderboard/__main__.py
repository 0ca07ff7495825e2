"""Runs the leaderboard service: `python -m leaderboard`. The one place that creates and connects its components."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path

import structlog

from leaderboard.checkpoints.archiving import TournamentArchiving
from leaderboard.checkpoints.checkpoint_quotas import CheckpointQuotas, Measured
from leaderboard.checkpoints.deletion import TournamentDeletion
from leaderboard.checkpoints.storage_space import StorageSpace
from leaderboard.config import Config, check, location_of
from leaderboard.delivery.checkpoint_delivery import CheckpointDelivery
from leaderboard.delivery.servicer import delivery_service
from leaderboard.garbage import RecentAgents, collect_periodically
from leaderboard.generator import Generator
from leaderboard.plugins.plugin_pool import PluginPool
from leaderboard.rebuilding.known import KnownTournaments
from leaderboard.rebuilding.rebuild import rebuild
from leaderboard.service import services
from leaderboard.snapshots import SnapshotRecorder
from leaderboard.store.owners import TournamentOwners
from leaderboard.store.schema import DATABASE_FORMAT
from leaderboard.store_access.access import StoreAccess
from leaderboard.store_access.backups import BackupAccess
from leaderboard.submission_watch import SubmissionWatch
from leaderboard.updater import Updater
from podrace import service, telemetry
from podrace.access.service_access import ServiceAccess
from podrace.access.v1 import access_pb2
from podrace.backup.database import BackedUpDatabase
from podrace.backup.opening import open_when_leading
from podrace.checkpoint_store import open_store
from podrace.checkpoint_store.store import CheckpointStore
from podrace.database import Database, DatabaseLocation
from podrace.database.leadership import CheckLeads, leader_check
from podrace.errors import ResourceExhausted
from podrace.processes import freed_memory, lifeline
from podrace.rpc import Server, shutdown_requested, standby_health

_log = structlog.get_logger(__name__)


async def serve(config: Config) -> None:
    """Serves until a signal arrives or the lifeline is lost.

    Raises:
        PodraceError: The service cannot start.
    """
    check(config)
    telemetry.start(config.telemetry, service="leaderboard")
    # A service that is restarted while the disk is full must still answer.
    store = open_store(config.store, tolerated=(ResourceExhausted,))
    location = location_of(config)
    backed_up = await open_when_leading(
        location, DATABASE_FORMAT, time.time, config.backup, config.store, config.server
    )
    async with backed_up as state:
        await _serve_from(state, store, config, location, backed_up)


async def _serve_from(
    state: Database, store: CheckpointStore, config: Config, location: DatabaseLocation, backed_up: BackedUpDatabase
) -> None:
    watch, urgent, own = SubmissionWatch(), asyncio.Event(), config.server
    plugins = PluginPool(config.plugins, config.runtime_folder, config.allow)
    owners = await TournamentOwners.load(state)
    if config.backup.rebuild:
        # The orchestrator registers the owners of the tournaments.
        async with standby_health(config.server, ready=False):
            owners.expect([one.tournament_id for one in await rebuild(state, store)])
    updater = Updater(state, store, watch, plugins=plugins)
    leads = leader_check(backed_up.leadership)
    space = _storage_space(config, location, store, urgent, leads)
    quotas = CheckpointQuotas(urgent.set)
    generator = Generator(state, plugins, space.shortage, owners, quotas)
    snapshots, delivery = SnapshotRecorder(state, store), CheckpointDelivery(store)
    renew = {"renew_after_seconds": config.collect_grace_seconds / 2}
    stores, backups = StoreAccess(state, store, **renew), BackupAccess(store, config.backup.name, **renew)
    access = ServiceAccess.open(config.access, access_pb2.ROLE_LEADERBOARD, own.listen, insecure=own.insecure)
    deletion = TournamentDeletion(state, store, owners, watch, on_deleted=stores.forget, check_leads=leads)
    served = services(
        *(state, watch, updater, generator, snapshots, stores, access.lease_verifier, owners, deletion),
        *(TournamentArchiving(state, store), KnownTournaments(state, store), backed_up.back_up, backups),
    )
    served.append(delivery_service(delivery))
    server = await Server.start(own, served, guard=access.guard(owners, scoped=()), check_leads=leads)
    _log.info("leaderboard serves", address=server.address, database=str(location), store=store.uri)
    if access.token_file:
        _log.info("callers need a token", token_file=access.token_file)
    measured = [owners.measure, quotas.measure, space.measure]
    async with deletion, space, _garbage_collection(state, store, config, urgent, measured, leads):
        watched = [lifeline.lost(config.lifeline)] if config.lifeline else []
        reason = await shutdown_requested(*watched, *backed_up.ends())
    _log.info("leaderboard stops", reason=reason)
    await watch.close()
    await server.drain()
    snapshots.close()
    delivery.close()
    for component in (updater, generator, plugins):
        await component.close()


def _storage_space(
    config: Config, location: DatabaseLocation, store: CheckpointStore, urgent: asyncio.Event, check_leads: CheckLeads
) -> StorageSpace:
    """Returns what checks the disks of the database and of a store in a folder, and the store."""
    scheme, _, path = config.store.rpartition("://")
    folders = [location.file.parent] if location.file else []
    folders += [Path(path)] if scheme in ("", "folder") else []
    limits = config.low_water_bytes, config.store_capacity_bytes
    return StorageSpace(store, folders, *limits, urgent.set, check_leads=check_leads)


@contextlib.asynccontextmanager
async def _garbage_collection(
    state: Database,
    store: CheckpointStore,
    config: Config,
    urgent: asyncio.Event,
    observers: Collection[Callable[[Measured], None]],
    check_leads: CheckLeads,
) -> AsyncIterator[None]:
    """Deletes unreferenced checkpoint files periodically while the block runs. Observers get what remains."""

    def on_measured(found: Measured) -> None:
        for observe in observers:
            observe(found)

    if not config.collect_period_seconds:
        yield
        return
    collecting = asyncio.create_task(
        collect_periodically(
            state,
            store,
            await RecentAgents.load(state, config.collect_grace_seconds),
            period_seconds=config.collect_period_seconds,
            retention=config.retention,
            urgent=urgent,
            on_measured=on_measured,
            check_leads=check_leads,
        )
    )
    try:
        yield
    finally:
        collecting.cancel()
        await asyncio.wait([collecting])


if __name__ == "__main__":
    freed_memory.keep_little()
    sys.exit(service.run("leaderboard", Config, serve, sys.argv[1:]))
