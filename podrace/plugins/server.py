"""Serves the function of a plugin over gRPC: the main loop of the child process that podrace.plugins.child starts.

    await serve(config, make_service)      # make_service(LoadedFunction) -> Service, which translates and calls

The function is imported before the process serves. If it cannot be imported, the process serves anyway, and every call
fails with the reason, so that the parent can report it. The parent kills the process when the function does not answer
in time. A function that crashes ends this process only.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

import structlog

from podrace import telemetry
from podrace.errors import FailedPrecondition, Internal, InvalidArgument
from podrace.plugins import loader
from podrace.plugins.address import PythonFunction, parse
from podrace.processes import lifeline, user_ids
from podrace.rpc import Server, ServerConfig, Service, shutdown_requested
from podrace.telemetry import TelemetryConfig

_log = structlog.get_logger(__name__)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True)
class ChildConfig:
    """The settings of a child process that serves one function."""

    address: str
    """`python:module:function`."""
    kind: str
    """What the function is used as: `generator`, `updater` or `evaluator`."""
    server: ServerConfig = field(default_factory=lambda: ServerConfig(grace_seconds=0.0))
    """Where the process listens."""
    telemetry: TelemetryConfig = field(default_factory=lambda: TelemetryConfig(metrics_listen=""))
    """Logs."""
    lifeline: str = ""
    """The process exits when the holder of this lifeline is gone; empty: it is not watched."""
    memory_bytes: int = 0
    """Data memory that the process may allocate; 0: no limit."""
    user_id: int = 0
    """User that the process becomes before it imports the function; 0: it stays the user that started it."""
    home: Path = Path()
    """Home of that user."""


class LoadedFunction:
    """The function of a plugin, imported in this process.

    function = LoadedFunction("python:mine:propose")
    await function.load()
    answer = await function.run(function, request)     # on its own thread, one call at a time
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._thread = ThreadPoolExecutor(1, "function")
        self._function: Callable[..., object] | None = None
        self._refusal: InvalidArgument | None = None

    async def load(self) -> None:
        """Imports the function; an error is kept, and raised by `check`."""
        self._refusal = await self.run(self._load)

    def check(self) -> None:
        """Raises FailedPrecondition if the function could not be imported."""
        if self._refusal is not None:
            raise FailedPrecondition(self._refusal.message, reason=self._refusal.reason)

    async def run(
        self, work: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        """Runs work on the thread of the function."""
        return await asyncio.wrap_future(self._thread.submit(work, *args, **kwargs))

    def __call__(self, *args: object) -> object:
        """Calls the function on the current thread.

        Raises:
            FailedPrecondition: It could not be imported.
            Internal: It raised; the message has the type and the text of the exception.
        """
        self.check()
        assert self._function is not None
        try:
            return self._function(*args)
        except BaseException as error:  # sys.exit in a thread would leave the call without an answer
            _log.error("the function raised", function=self.address, exc_info=error)
            raise Internal(f"the function raised {loader.describe_exception(error)}") from None

    def _load(self) -> InvalidArgument | None:
        found = parse(self.address)
        if not isinstance(found, PythonFunction):
            return InvalidArgument(f"{self.address!r}: expected python:module:function")
        try:
            self._function = loader.load(found.module, found.name)
        except InvalidArgument as error:
            return error
        return None


async def serve(config: ChildConfig, make_service: Callable[[LoadedFunction], Service]) -> None:
    """Serves until the lifeline is lost or a signal arrives; then ends the process without waiting for the function.

    Args:
        config: Settings of this process.
        make_service: Makes the gRPC service that calls the function.

    Raises:
        PodraceError: The process cannot start.
    """
    telemetry.start(config.telemetry, service=f"{config.kind} {config.address}")
    if config.user_id:
        user_ids.limit(processes=True)
        user_ids.become(config.user_id, config.home)
    # After the change of user, because the kernel then clears the parent-death signal of a process.
    loader.confine(config.memory_bytes)
    watched = [lifeline.lost(config.lifeline)] if config.lifeline else []
    stopping = asyncio.ensure_future(shutdown_requested(*watched))
    function = LoadedFunction(config.address)
    loading = asyncio.ensure_future(function.load())
    await asyncio.wait([stopping, loading], return_when=asyncio.FIRST_COMPLETED)
    if loading.done():
        server = await Server.start(config.server, [make_service(function)])
        _log.debug("plugin serves", address=server.address)
        _log.debug("plugin stops", reason=await stopping)
    # A normal exit would wait for a function that hangs.
    os._exit(0)
