"""Runs a policy server: `python -m podrace.serving`. The one place that creates and connects its components."""

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import NoReturn

import structlog

from podrace import service, telemetry
from podrace.access.authenticators.anyone import AnyoneAuthenticator
from podrace.access.guard import Guard
from podrace.access.service_access import ServiceAccess
from podrace.access.v1 import access_pb2
from podrace.client import Client
from podrace.client.delivery import CheckpointFetcher
from podrace.errors import InvalidArgument
from podrace.processes import lifeline
from podrace.rpc import Server, shutdown_requested
from podrace.serving.config import ServingConfig
from podrace.serving.engine import PolicyEngine, PolicyGate
from podrace.serving.follower import SourceFollower
from podrace.serving.fresh_episodes_gate import FreshEpisodesGate
from podrace.serving.inference_servicer import inference_service
from podrace.serving.rest import RestServer
from podrace.serving.servicer import policy_service
from podrace.serving.sources import FolderSource, PolicySource, TournamentSource
from podrace.tournament.v1.tournament_pb2 import Tournament

_log = structlog.get_logger(__name__)


async def serve(config: ServingConfig) -> None:
    """Serves until a signal arrives or the lifeline is lost.

    Raises:
        PodraceError: The server cannot start, or its source cannot be used.
    """
    metrics_address = telemetry.start(config.telemetry, service="serving")
    async with contextlib.AsyncExitStack() as stack:
        source, gate = await _source(config, stack)
        engine = PolicyEngine(config.limits, clock=asyncio.get_running_loop().time, gate=gate)
        stack.push_async_callback(engine.close)
        await _serve_from(config, engine, source, metrics_address)


async def _serve_from(config: ServingConfig, engine: PolicyEngine, source: PolicySource, metrics_address: str) -> None:
    """Serves, without a policy until the source has one. The process does not exit if the source is slow or down."""
    listen, insecure = config.server.listen, config.server.insecure
    access = ServiceAccess.open(config.access, access_pb2.ROLE_PLUGIN, listen, insecure=insecure)
    guard = access.guard(also=[AnyoneAuthenticator([access_pb2.ROLE_VIEWER])] if config.anonymous else [])
    services = [policy_service(engine, source), inference_service(engine)]
    server = await Server.start(config.server, services, guard=guard, ready=False)
    rest = await _rest(config, engine, guard)

    async def report() -> None:
        await server.report_ready(bool(engine.record.current))

    async def follow() -> NoReturn:
        follower = SourceFollower(engine, source, pinned=config.version)
        await follower.begin()
        await report()
        facts = {"grpc": server.address, "rest": rest.address if rest else "", "metrics": metrics_address}
        # For the command that started this process; the log is on stderr.
        print(json.dumps(facts | {"version": engine.record.current, "source": source.description}), flush=True)
        await follower.run(config.poll_seconds, report)

    _log.info("policy server started", address=server.address, source=source.description)
    if access.token_file and not config.anonymous:
        _log.info("callers need a token", token_file=access.token_file)
    try:
        reason = await shutdown_requested(follow(), *([lifeline.lost(config.lifeline)] if config.lifeline else []))
        _log.info("policy server stops", reason=reason)
    finally:
        await server.drain()
        if rest:
            await rest.close()


async def _rest(config: ServingConfig, engine: PolicyEngine, guard: Guard) -> RestServer | None:
    if not config.rest_listen:
        return None
    return await RestServer.start(config.rest_listen, engine, guard, insecure=config.server.insecure)


async def _source(config: ServingConfig, stack: contextlib.AsyncExitStack) -> tuple[PolicySource, PolicyGate | None]:
    """Returns the source that the configuration names, and its gate. Nothing is read yet.

    Raises:
        InvalidArgument: It names none or several, or a gate without pods to evaluate.
    """
    if bool(config.folder) == bool(config.tournament) or bool(config.tournament) != bool(config.orchestrator):
        raise InvalidArgument("set either folder, or orchestrator and tournament")
    if config.folder:
        if config.gate.episodes:
            raise InvalidArgument("gate.episodes: a folder has no pods that could evaluate; follow a tournament")
        return FolderSource(Path(config.folder), awaited=config.folder_awaited), None
    client = await stack.enter_async_context(Client(config.orchestrator))

    def fetcher_of(tournament: Tournament) -> CheckpointFetcher:
        fetcher = CheckpointFetcher(tournament.leaderboard_address, tournament.tournament_id)
        stack.push_async_exit(fetcher)
        return fetcher

    gate = FreshEpisodesGate(client, config.tournament, config.gate) if config.gate.episodes else None
    return TournamentSource(client, config.tournament, fetcher_of, config.agent), gate


if __name__ == "__main__":
    sys.exit(service.run("podrace.serving", ServingConfig, serve, sys.argv[1:]))
