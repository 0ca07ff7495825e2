"""Serves the worker class of a user, which derives from podrace's worker, and reports its errors in one line."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc.aio

from agentpod.liveness.activity import Activity
from agentpod.roles.worker import WorkerServicer
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.errors import NOT_OPEN, FailedPrecondition, InvalidArgument, PodraceError
from podrace.limits.config import Allowed
from podrace.limits.names import plugin_problem
from podrace.plugins.address import PythonFunction, parse
from podrace.plugins.loader import describe_exception, import_user_module
from podrace.plugins.user_calls import line_of

EXPECTED = "expected the name of a class that derives from agentpod.roles.worker.WorkerServicer"


def load_class(address: str, allowed: Allowed) -> type[WorkerServicer]:
    """Imports the class of a worker. Blocks while its module is imported.

    Raises:
        InvalidArgument: It is not allowed, cannot be imported, or is no such class.
    """
    setting, found = f"pod.worker = {address!r}", parse(address)
    if problem := plugin_problem(address, allowed):
        raise InvalidArgument(f"{setting}: {problem}")
    if not isinstance(found, PythonFunction):
        raise InvalidArgument(f"{setting}: expected python:module:Class")
    try:
        cls = getattr(import_user_module(found.module), found.name, None)
    except InvalidArgument as error:
        raise InvalidArgument(f"{setting}: {error.message}", reason=error.reason) from None
    if not isinstance(cls, type) or not issubclass(cls, WorkerServicer):
        raise InvalidArgument(f"{setting}: {EXPECTED}")
    return cls


class UserWorkerServicer(pb_grpc.WorkerServiceServicer):
    """Serves one worker of a pod by an instance of a user-defined class, made when the first session is opened."""

    def __init__(self, address: str, allowed: Allowed, make: Callable[[type[WorkerServicer]], WorkerServicer]) -> None:
        """Leaves the import to the first session.

        Args:
            address: `python:module:Class`.
            allowed: What specifications may name.
            make: Makes the instance, given the class.
        """
        self._setting, self._allowed, self._make = address, allowed, make
        self._worker: WorkerServicer | None = None
        self._activity = Activity()

    async def OpenWorker(
        self, request: pb.OpenWorkerRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.OpenWorkerResponse:
        """Opens a session; see the contract."""
        if self._worker is None:
            cls = await asyncio.to_thread(load_class, self._setting, self._allowed)
            with self._reported(cls, "__init__"):
                self._worker = self._make(cls)
        with self._reported(type(self._worker), "OpenWorker"):
            return await self._worker.OpenWorker(request, context)

    async def CollectRollout(
        self, request: pb.CollectRolloutRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CollectRolloutResponse:
        """Fills a slot with one rollout; see the contract."""
        if self._worker is None:
            raise FailedPrecondition("the worker has no session; open one", reason=NOT_OPEN)
        with self._reported(type(self._worker), "CollectRollout"):
            return await self._worker.CollectRollout(request, context)

    async def GetWorker(
        self, request: pb.GetWorkerRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetWorkerResponse:
        """Returns what the worker is doing; see the contract."""
        if self._worker is None:
            return pb.GetWorkerResponse(progress=self._activity.progress())
        return await self._worker.GetWorker(request, context)

    async def CloseWorker(
        self, request: pb.CloseWorkerRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CloseWorkerResponse:
        """Closes a session; see the contract."""
        return await self._worker.CloseWorker(request, context) if self._worker else pb.CloseWorkerResponse()

    @contextmanager
    def _reported(self, cls: type[WorkerServicer], method: str) -> Iterator[None]:
        try:
            yield
        except PodraceError:
            raise
        except Exception as error:
            place = line_of(error, cls)
            raised = f"{method} raised {describe_exception(error)}{f' ({place})' if place else ''}"
            raise InvalidArgument(f"pod.worker = {self._setting!r}: {raised}") from error
