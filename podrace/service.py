"""Runs the process of a service: reads its configuration, serves, and reports errors on one line."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from podrace import tracing
from podrace.config import config_from_arguments
from podrace.errors import PodraceError
from podrace.printable import printable
from podrace.telemetry import TelemetryConfig


class ServiceConfig(Protocol):
    """The part that the configurations of all services have in common."""

    @property
    def telemetry(self) -> TelemetryConfig:
        """Logs and metrics."""
        ...


Config = TypeVar("Config", bound=ServiceConfig)


def run(
    program: str, kind: type[Config], serve: Callable[[Config], Coroutine[Any, Any, None]], arguments: Sequence[str]
) -> int:
    """Runs a service until it stops.

    Args:
        program: Name of the service, as in `python -m <program>`.
        kind: Type of its configuration, a frozen dataclass.
        serve: Serves until a stop is requested; raises a PodraceError if it cannot start.
        arguments: The command line.

    Returns:
        The exit code: 0, or 2 after a PodraceError. With the log level `debug` the error is raised instead.
    """
    debug = False
    try:
        config = config_from_arguments(kind, arguments, program=program)
        debug = config.telemetry.log_level == "debug"
        asyncio.run(serve(config))
    except PodraceError as error:
        if debug:
            raise
        print(f"error: {printable(error.message)}", file=sys.stderr)
        return 2
    finally:
        tracing.flush()
    return 0
