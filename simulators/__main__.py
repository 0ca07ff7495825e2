"""Runs the simulator service: `python -m simulators`."""

import sys

import structlog

from podrace import service, telemetry
from podrace.access.guard import Guard
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
    server = await Server.start(config.server, services(servicer), guard=Guard.of_anyone())
    _log.info("simulator service started", address=server.address, device=config.device)
    reason = await shutdown_requested(*([lifeline.lost(config.lifeline)] if config.lifeline else []))
    _log.info("simulator service stops", reason=reason)
    await server.drain()


if __name__ == "__main__":
    sys.exit(service.run("simulators", Config, serve, sys.argv[1:]))
