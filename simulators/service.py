"""Implements SimulatorService; each stream computes on its own thread, or on a GPU all of them on one thread.

The thread is shared on a GPU because simulators record CUDA graphs there: what another thread did on the same GPU at
that time would fail, or become part of the graph.
"""

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
from podrace.limits.config import NOTHING, Allowed
from podrace.simulator.v1 import simulator_pb2 as pb
from podrace.simulator.v1 import simulator_pb2_grpc as pb_grpc
from simulators.config import Limits
from simulators.stepping import Stepping, describe

STREAMS = prometheus_client.Gauge("podrace_simulator_streams", "Batches of environments that are open")
REQUESTS = prometheus_client.Counter("podrace_simulator_requests", "Requests of streams that were answered")

_log = structlog.get_logger(__name__)


class SimulatorServicer(pb_grpc.SimulatorServiceServicer):
    """Serves streams of environment batches within limits."""

    def __init__(self, limits: Limits, device: str = "cpu", threads: int = 1, allowed: Allowed = NOTHING) -> None:
        """Creates the servicer; simulators are made when a stream opens them.

        Args:
            limits: What callers may use.
            device: Where simulators compute.
            threads: torch threads per thread that computes.
            allowed: What ids and options may name.
        """
        self._limits, self._device, self._threads, self._allowed = limits, device, threads, allowed
        self._open_streams = 0
        self._shared_thread = self._thread() if torch.device(device).type == "cuda" else None

    async def GetSimulator(
        self, request: pb.GetSimulatorRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetSimulatorResponse:
        """Describes a simulator; see the proto."""
        # None: a thread of asyncio.
        loop, thread = asyncio.get_running_loop(), self._shared_thread
        return await loop.run_in_executor(thread, describe, request, self._limits, self._device, self._allowed)

    async def StreamSteps(
        self,
        requests: AsyncIterator[pb.StreamStepsRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[pb.StreamStepsResponse]:
        """Steps one batch of environments; see the proto."""
        loop = asyncio.get_running_loop()
        with self._admitted():
            thread = self._shared_thread or self._thread()
            stepping = Stepping(self._limits, self._device, self._allowed)
            try:
                while (request := await self._next(requests)) is not None:
                    for response in await loop.run_in_executor(thread, stepping.answer, request):
                        yield response
                    REQUESTS.inc()
            finally:
                # Queued behind a step that may still be running, however the stream ended.
                thread.submit(stepping.close).add_done_callback(_log_failure)
                if thread is not self._shared_thread:
                    thread.shutdown(wait=False)

    def _thread(self) -> ThreadPoolExecutor:
        """Returns a thread that computes, which starts with its first call."""
        return ThreadPoolExecutor(1, "stepping", torch.set_num_threads, (self._threads,))

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        if self._open_streams >= self._limits.maximum_streams:
            raise ResourceExhausted(
                f"{self._open_streams} streams are open, the maximum of this service (limits.maximum_streams)"
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
                f"no request arrived for {self._limits.idle_seconds:g} s: open a new stream (limits.idle_seconds)"
            ) from None


def _log_failure(closed: Future[None]) -> None:
    error = closed.exception()
    if error:
        _log.error("a simulator failed to close", error=repr(error))


def services(servicer: SimulatorServicer) -> list[rpc.Service]:
    """Returns the gRPC services that a simulator server registers."""
    descriptor = pb.DESCRIPTOR.services_by_name["SimulatorService"]
    return [rpc.Service(descriptor, pb_grpc.add_SimulatorServiceServicer_to_server, servicer)]
