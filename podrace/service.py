"""Owns how a service's process starts and ends: reads the configuration, runs it, tells a failure in one line."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from podrace.config import config_from_arguments
from podrace.errors import PodraceError
from podrace.telemetry import TelemetryConfig


class ServiceConfig(Protocol):
    """What the configuration of every service has."""

    @property
    def telemetry(self) -> TelemetryConfig:
        """Logs and metrics."""
        ...


Config = TypeVar("Config", bound=ServiceConfig)


def run(
    program: str, kind: type[Config], serve: Callable[[Config], Coroutine[Any, Any, None]], arguments: Sequence[str]
) -> int:
    """Runs a service until it ends.

    Args:
        program: Its name, as in `python -m <program>`.
        kind: Its configuration, a frozen dataclass.
        serve: Serves until it is told to stop; raises a PodraceError where it cannot start.
        arguments: The command line.

    Returns:
        The exit code: 0; 2 after a PodraceError, which with the log level `debug` is raised instead.
    """
    debug = False
    try:
        config = config_from_arguments(kind, arguments, program=program)
        debug = config.telemetry.log_level == "debug"
        asyncio.run(serve(config))
    except PodraceError as error:
        if debug:
            raise
        print(f"error: {error.message}", file=sys.stderr)
        return 2
    return 0
