"""Runs the simulator service: `python -m simulators`."""

import sys

import structlog

from podrace import service, telemetry
from podrace.access.address_tokens import audiences_of
from podrace.access.service_access import ServiceAccess
from podrace.access.v1 import access_pb2
from podrace.processes import lifeline
from podrace.rpc import Server, shutdown_requested
from simulators.config import Config
from simulators.service import SimulatorServicer, services

_log = structlog.get_logger(__name__)


async def serve(config: Config) -> None:
    """Serves until the process receives a signal or the lifeline is lost.

    Raises:
        PodraceError: The service cannot start.
    """
    telemetry.start(config.telemetry, service="simulators")
    servicer = SimulatorServicer(config.limits, config.device, config.threads, config.allow)
    audiences = [config.audience] if config.audience else []
    listen, insecure = config.server.listen, config.server.insecure
    access = ServiceAccess.open(config.access, access_pb2.ROLE_PLUGIN, listen, insecure=insecure, audiences=audiences)
    server = await Server.start(config.server, services(servicer), guard=access.guard())
    if not audiences:
        audiences += audiences_of(server.address)
    if access.token_file:
        _log.info("callers need a token", audiences=audiences, token_file=access.token_file)
    _log.info("simulator service started", address=server.address, device=config.device)
    reason = await shutdown_requested(*([lifeline.lost(config.lifeline)] if config.lifeline else []))
    _log.info("simulator service stops", reason=reason)
    await server.drain()


if __name__ == "__main__":
    sys.exit(service.run("simulators", Config, serve, sys.argv[1:]))
