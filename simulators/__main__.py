"""`python -m simulators`: serves simulators until it is told to go."""

import sys

import structlog

from podrace import service, telemetry
from podrace.processes import lifeline
from podrace.rpc import Server, shutdown_requested
from simulators.config import Config
from simulators.service import SimulatorServicer, services

_log = structlog.get_logger(__name__)


async def serve(config: Config) -> None:
    """Serves until a signal comes or the lifeline is lost.

    Raises:
        PodraceError: It cannot start.
    """
    telemetry.start(config.telemetry, service="simulators")
    servicer = SimulatorServicer(config.limits, config.device, config.threads)
    server = await Server.start(config.server, services(servicer))
    _log.info("simulators serve", address=server.address, device=config.device)
    reason = await shutdown_requested(*([lifeline.lost(config.lifeline)] if config.lifeline else []))
    _log.info("simulators go", reason=reason)
    await server.drain()


if __name__ == "__main__":
    sys.exit(service.run("simulators", Config, serve, sys.argv[1:]))
