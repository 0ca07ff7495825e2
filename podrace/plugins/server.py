"""`python -m podrace.plugins.server`: serves one function of a user's as an EvolutionService, for one leaderboard.

The function takes the request message and returns the response message. It is called in a thread, one question at a
time. A question about no tournament does not reach it: that asks only whether there is such a function. What it does to
this process (exit, crash, hang, fill the memory) it does to this process alone: the leaderboard sees a service that
failed, kills it and starts another.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import structlog
from google.protobuf.message import Message

from podrace import service, telemetry
from podrace.errors import FailedPrecondition, Internal, InvalidArgument, Unimplemented
from podrace.evolution.v1 import evolution_pb2 as pb
from podrace.evolution.v1 import evolution_pb2_grpc as pb_grpc
from podrace.plugins import address as custom
from podrace.plugins import loader
from podrace.processes import group_reaper, lifeline
from podrace.rpc import Server, ServerConfig, Service, shutdown_requested
from podrace.telemetry import TelemetryConfig

_log = structlog.get_logger(__name__)
Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class Config:
    """One function."""

    address: str
    """`python:module:function`."""
    part: str
    """What it is asked to be: `generator` or `updater`."""
    server: ServerConfig = field(default_factory=lambda: ServerConfig(grace_seconds=0.0))
    """Where it listens."""
    telemetry: TelemetryConfig = field(default_factory=lambda: TelemetryConfig(metrics_listen=""))
    """Logs."""
    lifeline: str = ""
    """Lifeline of the leaderboard; empty: nobody."""
    memory_bytes: int = 4 << 30
    """Memory it may use; 0: as much as there is."""


class ImportedServicer(pb_grpc.EvolutionServiceServicer):
    """Calls the function; each method is described in the contract."""

    def __init__(self, address: str, part: str) -> None:
        """Imports nothing yet."""
        self._address, self._part = address, part
        self._thread = ThreadPoolExecutor(1, "function")
        self._function: Callable[..., object] | None = None
        self._refusal: InvalidArgument | None = None

    async def load(self) -> None:
        """Imports the function; why that cannot be is told to whoever asks."""
        self._refusal = await asyncio.get_running_loop().run_in_executor(self._thread, self._import)

    async def ProposeAgent(self, request: pb.ProposeAgentRequest, context: Context) -> pb.ProposeAgentResponse:
        """Asks the function; see the contract."""
        answer: pb.ProposeAgentResponse = await self._ask("generator", request, pb.ProposeAgentResponse)
        return answer

    async def JudgeCandidate(self, request: pb.JudgeCandidateRequest, context: Context) -> pb.JudgeCandidateResponse:
        """Asks the function; see the contract."""
        answer: pb.JudgeCandidateResponse = await self._ask("updater", request, pb.JudgeCandidateResponse)
        return answer

    async def _ask(self, part: str, request: Any, kind: type[Any]) -> Any:
        if part != self._part:
            raise Unimplemented(f"{self._address} is the {self._part}")
        if self._refusal is not None:
            raise FailedPrecondition(self._refusal.message, reason=self._refusal.reason)
        if not request.tournament_id:
            return kind()
        answer = await asyncio.get_running_loop().run_in_executor(self._thread, self._call, request)
        if not isinstance(answer, kind):
            raise InvalidArgument(f"it returned {type(answer).__name__}, expected {kind.__name__}")
        return answer

    def _import(self) -> InvalidArgument | None:
        found = custom.parse(self._address)
        if not isinstance(found, custom.Imported):
            return InvalidArgument(f"{self._address!r} is no import path")
        try:
            self._function = loader.load(found.module, found.function)
        except InvalidArgument as error:
            return error
        return None

    def _call(self, request: Message) -> object:
        assert self._function is not None
        try:
            return self._function(request)
        except BaseException as error:  # sys.exit in a thread would end nothing, and answer nobody
            _log.error("the function failed", exc_info=error)
            raise Internal(loader.shown(error)) from None


async def serve(config: Config) -> None:
    """Serves until the lifeline is lost or a signal comes, and then ends this process, whatever the function does.

    Raises:
        PodraceError: It cannot start.
    """
    loader.confine(config.memory_bytes)
    telemetry.start(config.telemetry, service=f"{config.part} {config.address}")
    going = asyncio.ensure_future(shutdown_requested(*([lifeline.lost(config.lifeline)] if config.lifeline else [])))
    servicer = ImportedServicer(config.address, config.part)
    loading = asyncio.ensure_future(servicer.load())
    await asyncio.wait([going, loading], return_when=asyncio.FIRST_COMPLETED)
    if loading.done():
        descriptor = pb.DESCRIPTOR.services_by_name["EvolutionService"]
        served = Service(descriptor, pb_grpc.add_EvolutionServiceServicer_to_server, servicer)
        server = await Server.start(config.server, [served])
        _log.debug("serves", address=server.address, reason_to_go=await going)
    # Not an ordinary end: that would wait for a function that hangs.
    os._exit(0)


if __name__ == "__main__":
    # However it ends, what the function has started ends with it.
    group_reaper.sweep_after_this_process()
    sys.exit(service.run("podrace.plugins.server", Config, serve, sys.argv[1:]))
