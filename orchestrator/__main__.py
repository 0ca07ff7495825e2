"""Wires the orchestrator and runs it until it is asked to stop: `python -m orchestrator`."""

import asyncio
import contextlib
import dataclasses
import functools
import gc
import secrets
import sys
from collections.abc import AsyncIterator, Callable

import structlog

from orchestrator.archiving import Archiving
from orchestrator.assignments import external_pods
from orchestrator.assignments.evaluation_epochs import EvaluationEpochs
from orchestrator.assignments.external_pods import ExternalPods
from orchestrator.assignments.service import Assignments
from orchestrator.backup_store import granted_store
from orchestrator.config import Config, check, location_of, make_folders, store_access_of
from orchestrator.decisions.pod_silence import SilenceLimits
from orchestrator.decisions.pool_size import Limits
from orchestrator.discovery import with_discovery
from orchestrator.launchers import EXTERNAL, LAUNCHERS
from orchestrator.launchers.base import EventSink, Launcher, LauncherContext, PodEnvironment
from orchestrator.launchers.external import ExternalLauncher
from orchestrator.launchers.pod_settings import unstartable
from orchestrator.leaderboard_client import LeaderboardClient
from orchestrator.pool.log_folder import LogFolder
from orchestrator.pool.pool_rules import LAUNCHED_POD_RULES
from orchestrator.pool.prometheus_targets import PATH, PrometheusTargets
from orchestrator.pool.reconciler import Reconciler
from orchestrator.pool.silent_pods import NEVER_SILENT
from orchestrator.rebuilding.rebuild import rebuild
from orchestrator.service import BackUp, OrchestratorServicer
from orchestrator.state.clock import Clock, SystemClock
from orchestrator.state.database import DATABASE_FORMAT, StateDatabase
from orchestrator.state.ownership_records import assign_owner
from orchestrator.state.runtime import RuntimeState
from orchestrator.state.saved_state import load_saved_state
from orchestrator.tournaments import lifecycle
from orchestrator.tournaments.deletion import Deletion
from orchestrator.tournaments.evaluations import Evaluations
from orchestrator.tournaments.lifecycle import Tournaments
from orchestrator.tournaments.queries import SCOPED_METHODS, Queries
from orchestrator.tournaments.registration import Registration
from orchestrator.validation import Validation
from podrace import disk_space, rpc, service, telemetry
from podrace.access.authenticators.unix_socket import user_name
from podrace.access.service_access import ServiceAccess
from podrace.access.tokens import PodTokens
from podrace.access.v1 import access_pb2
from podrace.backup.copies import backup_message
from podrace.backup.database import BackedUpDatabase
from podrace.backup.granted import needs_grants
from podrace.backup.opening import open_when_leading
from podrace.database.leadership import CheckLeads, leader_check
from podrace.leaderboard.v1.leaderboard_pb2 import DatabaseBackup
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.processes import freed_memory, lifeline

GARBAGE_THRESHOLDS = 5_000, 10, 100
"""Thresholds of the garbage collector's generations. A full collection over the state of thousands of pods takes a
tenth of a second, in which no call is answered, and finds nothing: it is done rarely."""
DAY_SECONDS = 86_400.0
MESH_STOPPED = "the mesh that ran it has stopped; resume it to continue"
_log = structlog.get_logger(__name__)


async def serve(config: Config, clock: Clock) -> None:
    """Serves until SIGTERM, or until the lifeline is lost.

    Raises:
        PodraceError: The service cannot start; the message says what to do.
    """
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    check(config)
    targets = PrometheusTargets()
    metrics = telemetry.start(config.telemetry, service="orchestrator", pages={PATH: targets.page})
    make_folders(config)
    location = location_of(config)
    async with contextlib.AsyncExitStack() as stack:
        # A database on a server needs no store. Its keys are read when this replica leads, because they may change.
        access = _open_access(config) if location.file and needs_grants(config.store) else None
        granted = None
        if access:
            granting = granted_store(config.leaderboard, config.store, config.backup.name, access.token)
            granted = await stack.enter_async_context(granting)
        backed_up = await open_when_leading(
            *(location, DATABASE_FORMAT, clock.wall, config.backup, config.store, config.server), granted=granted
        )
        state = StateDatabase(await stack.enter_async_context(backed_up), most_events=config.kept_events)
        await _serve_from(state, config, clock, targets, metrics, backed_up, access or _open_access(config))


async def _serve_from(
    state: StateDatabase,
    config: Config,
    clock: Clock,
    targets: PrometheusTargets,
    metrics: str,
    backed_up: BackedUpDatabase,
    access: ServiceAccess,
) -> None:
    leads, runtime = leader_check(backed_up.leadership), RuntimeState(config.lease_duration_seconds)
    leaderboard = _leaderboard(config, runtime, access, leads)
    try:
        await _restore(config, state, runtime, leaderboard, clock)
        external = ExternalPods(state, runtime, clock, config.quota) if config.launcher == EXTERNAL else None
        opened: asyncio.Future[Launcher] = asyncio.get_running_loop().create_future()
        registration = Registration(runtime, leaderboard, clock)
        validation, back_up = Validation(config, opened), functools.partial(_back_up, backed_up, leaderboard)
        servicer = _servicer(
            config, state, runtime, clock, leaderboard, access, external, registration, validation, back_up
        )
        server = await _start_server(config, servicer, access, runtime, leads)
        _announce(server, access, metrics=metrics, mesh_id=config.mesh_id)
        async with _open_launcher(config, server.address, runtime, external, access.pod_tokens, leads) as launcher:
            opened.set_result(launcher)
            if isinstance(launcher, EventSink):
                state.on_event(launcher.record_event)
            reconciler = _reconciler(config, state, runtime, leaderboard, launcher, clock, targets, registration, leads)
            async with _tidied_logs(config, runtime, clock):
                await _work(config, reconciler, servicer, server, backed_up)
    finally:
        await leaderboard.close()


def _servicer(
    config: Config,
    state: StateDatabase,
    runtime: RuntimeState,
    clock: Clock,
    leaderboard: LeaderboardClient,
    access: ServiceAccess,
    external: ExternalPods | None,
    registration: Registration,
    validation: Validation,
    back_up: BackUp,
) -> OrchestratorServicer:
    return OrchestratorServicer(
        _tournaments(config, state, runtime),
        Queries(state, runtime),
        Assignments(state, runtime, leaderboard, clock, external_pods=external, quotas=config.quota),
        runtime,
        clock,
        EvaluationEpochs(state, runtime, clock),
        leaderboard_address=config.leaderboard,
        token_leaderboard_address=config.token_leaderboard or config.leaderboard,
        pod_tokens=access.pod_tokens,
        lease_tokens=access.lease_tokens,
        validation=validation,
        evaluations=Evaluations(state, runtime, clock),
        deletion=_deletion(config, state, runtime, leaderboard, clock),
        registration=registration,
        back_up=back_up,
    )


def _leaderboard(
    config: Config, runtime: RuntimeState, access: ServiceAccess, check_leads: CheckLeads
) -> LeaderboardClient:
    return LeaderboardClient(
        config.leaderboard,
        runtime.best.update,
        token=access.token,
        on_unknown=runtime.registered.discard,
        check_leads=check_leads,
    )


async def _back_up(backed_up: BackedUpDatabase, leaderboard: LeaderboardClient) -> list[DatabaseBackup]:
    """Backs up the leaderboard last: after a restore, an agent that only the orchestrator knew could submit nothing."""
    return [backup_message(await backed_up.back_up()), await leaderboard.back_up()]


@contextlib.asynccontextmanager
async def _tidied_logs(config: Config, runtime: RuntimeState, clock: Clock) -> AsyncIterator[None]:
    """Limits the size of logs while the block runs."""
    logs = LogFolder(config.log_folder, config.logs, runtime, clock, mesh=bool(config.mesh_id))
    tidying = asyncio.create_task(logs.run())
    try:
        yield
    finally:
        tidying.cancel()


def _announce(server: rpc.Server, access: ServiceAccess, **settings: str) -> None:
    _log.info("serving", address=server.address, **settings)
    if access.token_file:
        _log.info("callers need a token", token_file=access.token_file)


async def _start_server(
    config: Config,
    servicer: OrchestratorServicer,
    access: ServiceAccess,
    runtime: RuntimeState,
    check_leads: CheckLeads,
) -> rpc.Server:
    guard = access.guard(runtime.cache, SCOPED_METHODS, runtime.pod_that_holds)
    services = with_discovery(config, [_service(servicer)])
    return await rpc.Server.start(config.server, services, guard=guard, check_leads=check_leads)


async def _restore(
    config: Config, state: StateDatabase, runtime: RuntimeState, leaderboard: LeaderboardClient, clock: Clock
) -> None:
    if config.backup.rebuild:
        async with rpc.standby_health(config.server, ready=False):
            await rebuild(state, leaderboard, config.mesh_id)
    # This process holds the database, so any other embedded mesh that ran a tournament from it has stopped.
    await state.transact(lifecycle.cancel_running, MESH_STOPPED, but_mesh_id=config.mesh_id)
    await state.transact(assign_owner, user_name())
    runtime.restore(await state.transact(load_saved_state), clock.monotonic())
    state.on_saved(runtime.cache.apply_saved)


def _deletion(
    config: Config, state: StateDatabase, runtime: RuntimeState, leaderboard: LeaderboardClient, clock: Clock
) -> Deletion:
    keep_seconds = config.keep_days * DAY_SECONDS
    return Deletion(
        *(state, runtime, leaderboard, clock),
        log_folder=config.log_folder,
        keep_seconds=keep_seconds,
        archive=Archiving(state, runtime, leaderboard, clock).archive,
        archive_all=config.archive,
    )


def _shortage_finder(config: Config) -> Callable[[], str]:
    """Returns what finds out why the disk of the database has too little free space; it returns "" if it has enough."""
    file = location_of(config).file
    folders = [file.resolve().parent] if file else []
    return lambda: disk_space.shortage(disk_space.read(folders), config.low_water_bytes)


def _tournaments(config: Config, state: StateDatabase, runtime: RuntimeState) -> Tournaments:
    return Tournaments(
        state,
        runtime,
        mesh_id=config.mesh_id,
        start_pods=config.start_pods,
        random_bytes=secrets.token_bytes,
        allowed=config.allow,
        limits=config.quota,
        unstartable=lambda pod: unstartable(pod, config.launcher, config.launchers),
    )


async def _work(
    config: Config,
    reconciler: Reconciler,
    servicer: OrchestratorServicer,
    server: rpc.Server,
    backed_up: BackedUpDatabase,
) -> None:
    """Runs until it is asked to stop; stops all pods first if they belong to an embedded mesh."""
    running = asyncio.create_task(reconciler.run())
    watched = [lifeline.lost(config.lifeline)] if config.lifeline else []
    reason = await rpc.shutdown_requested(asyncio.shield(running), *watched, *backed_up.ends())
    _log.info("stopping", reason=reason)
    reconciler.stop()
    await running
    replaced, leadership = backed_up.replaced.is_set(), backed_up.leadership
    if config.mesh_id and not replaced:
        # Pods publish and complete their assignments, so calls are answered until all pods have stopped.
        servicer.refuse_new()
        await reconciler.stop_all_pods(config.stop_grace_seconds)
    servicer.close()
    await server.drain()
    await reconciler.close(save=not replaced and (leadership is None or leadership.is_valid()))


def _service(servicer: OrchestratorServicer) -> rpc.Service:
    return rpc.Service(
        pb.DESCRIPTOR.services_by_name["OrchestratorService"],
        pb_grpc.add_OrchestratorServiceServicer_to_server,
        servicer,
    )


def _open_access(config: Config) -> ServiceAccess:
    listen, insecure = config.server.listen, config.server.insecure
    access = ServiceAccess.open(
        config.access, access_pb2.ROLE_ORCHESTRATOR, listen, config.leaderboard, insecure=insecure
    )
    return dataclasses.replace(access, orphan_seconds=config.orphan_seconds)


def _open_launcher(
    config: Config,
    address: str,
    runtime: RuntimeState,
    external: ExternalPods | None,
    pod_tokens: PodTokens,
    check_leads: CheckLeads,
) -> LauncherContext:
    if external:
        return ExternalLauncher(external, config.launchers.external)
    pod_environment = _pod_environment(config, address, runtime, pod_tokens, check_leads)
    return LAUNCHERS[config.launcher](pod_environment, config.launchers, runtime.reconcile_requested.set)


def _pod_environment(
    config: Config, address: str, runtime: RuntimeState, pod_tokens: PodTokens, check_leads: CheckLeads
) -> PodEnvironment:
    return PodEnvironment(
        orchestrator=config.advertised or address,
        leaderboard=config.leaderboard,
        store=config.store,
        runtime_folder=config.runtime_folder,
        log_folder=config.log_folder,
        lifeline=config.lifeline,
        orphan_seconds=config.orphan_seconds,
        telemetry=config.telemetry,
        progress=config.progress,
        insecure=config.server.insecure,
        pod_tokens=pod_tokens,
        store_access=store_access_of(config),
        allow=config.allow,
        # The runtime folder of an embedded mesh is its own.
        owns_tournament=lambda name: bool(config.mesh_id) or runtime.cache.ownership_of(name) is not None,
        check_leads=check_leads,
    )


def _reconciler(
    config: Config,
    state: StateDatabase,
    runtime: RuntimeState,
    leaderboard: LeaderboardClient,
    launcher: Launcher,
    clock: Clock,
    targets: PrometheusTargets,
    registration: Registration,
    check_leads: CheckLeads,
) -> Reconciler:
    return Reconciler(
        state,
        runtime,
        leaderboard,
        launcher,
        clock,
        limits=Limits(config.start_pods, config.terminate_seconds, config.kill_seconds),
        period_seconds=config.reconcile_period_seconds,
        on_list=targets.update,
        quotas=config.quota,
        deletion=_deletion(config, state, runtime, leaderboard, clock),
        registration=registration,
        check_leads=check_leads,
        find_shortage=_shortage_finder(config),
        silence=(
            NEVER_SILENT
            if config.launcher == EXTERNAL
            else SilenceLimits(
                config.silent_seconds,
                config.opening_silent_seconds,
                config.starting_silent_seconds,
                config.together_silent_seconds,
                # An orphaned pod gets as much time to exit as one that was asked to stop.
                orphaned_seconds=config.orphan_seconds + config.kill_seconds,
            )
        ),
        rules=external_pods.EXTERNAL_POD_RULES if config.launcher == EXTERNAL else LAUNCHED_POD_RULES,
    )


if __name__ == "__main__":
    freed_memory.keep_little()
    sys.exit(service.run("orchestrator", Config, lambda config: serve(config, SystemClock()), sys.argv[1:]))
