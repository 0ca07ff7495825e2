"""Serves simulators to whoever does not have them; see the contract. Computes on a thread of each stream's own."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc.aio
import prometheus_client
import structlog
import torch

from podrace import rpc
from podrace.errors import DeadlineExceeded, ResourceExhausted
from podrace.simulator.v1 import simulator_pb2 as pb
from podrace.simulator.v1 import simulator_pb2_grpc as pb_grpc
from simulators.config import Limits
from simulators.stepping import Stepping, describe

STREAMS = prometheus_client.Gauge("podrace_simulator_streams", "Batches of environments that are open")
REQUESTS = prometheus_client.Counter("podrace_simulator_requests", "Requests of streams that were answered")

_log = structlog.get_logger(__name__)


class SimulatorServicer(pb_grpc.SimulatorServiceServicer):
    """Serves streams within limits."""

    def __init__(self, limits: Limits, device: str = "cpu", threads: int = 1) -> None:
        """Opens nothing yet.

        Args:
            limits: What callers may have.
            device: Where simulators compute.
            threads: torch threads of each stream.
        """
        self._limits, self._device, self._threads = limits, device, threads
        self._open_streams = 0

    async def GetSimulator(
        self, request: pb.GetSimulatorRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetSimulatorResponse:
        """Describes; see the contract."""
        return await asyncio.to_thread(describe, request, self._limits, self._device)

    async def StreamSteps(
        self,
        requests: AsyncIterator[pb.StreamStepsRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[pb.StreamStepsResponse]:
        """Steps; see the contract."""
        loop = asyncio.get_running_loop()
        with self._admitted():
            thread = ThreadPoolExecutor(1, "stepping", torch.set_num_threads, (self._threads,))
            stepping = Stepping(self._limits, self._device)
            try:
                while (request := await self._next(requests)) is not None:
                    for response in await loop.run_in_executor(thread, stepping.answer, request):
                        yield response
                    REQUESTS.inc()
            finally:
                # After the step that may still run, whoever went away meanwhile.
                thread.submit(stepping.close).add_done_callback(_log_failure)
                thread.shutdown(wait=False)

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        if self._open_streams >= self._limits.maximum_streams:
            raise ResourceExhausted(
                f"{self._open_streams} streams are open, as many as this service takes (limits.maximum_streams)"
            )
        self._open_streams += 1
        STREAMS.inc()
        try:
            yield
        finally:
            self._open_streams -= 1
            STREAMS.dec()

    async def _next(self, requests: AsyncIterator[pb.StreamStepsRequest]) -> pb.StreamStepsRequest | None:
        try:
            async with asyncio.timeout(self._limits.idle_seconds):
                return await anext(requests, None)
        except TimeoutError:
            raise DeadlineExceeded(
                f"no request came for {self._limits.idle_seconds:g} s: open another stream (limits.idle_seconds)"
            ) from None


def _log_failure(closed: Future[None]) -> None:
    error = closed.exception()
    if error:
        _log.error("a simulator failed to close", error=repr(error))


def services(servicer: SimulatorServicer) -> list[rpc.Service]:
    """What a server of simulators serves."""
    descriptor = pb.DESCRIPTOR.services_by_name["SimulatorService"]
    return [rpc.Service(descriptor, pb_grpc.add_SimulatorServiceServicer_to_server, servicer)]
