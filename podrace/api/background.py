"""Runs coroutines for blocking code, on one event loop in a thread of the process.

All blocking objects share the loop, because gRPC works best with one loop in a process. What is still open when the
process exits is closed then.
"""

import asyncio
import atexit
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from podrace.errors import FailedPrecondition
from podrace.tasks import cancel_all, finish_unless_stopped

Result = TypeVar("Result")
Value = TypeVar("Value")

CLOSED = "the mesh is closed; connect to it, or open it, again"
_LOCK = threading.Lock()
_LOOPS: list[asyncio.AbstractEventLoop] = []
"""The loop, once it runs."""
_OPEN: "set[HeldContext[Any]]" = set()
"""What has to be closed before the process exits."""


def submit(work: Coroutine[Any, Any, Result]) -> "Future[Result]":
    """Starts a coroutine on the loop, which is started first if necessary; its future has the result."""
    with _LOCK:
        if not _LOOPS:
            _LOOPS.append(_started_loop())
    return asyncio.run_coroutine_threadsafe(work, _LOOPS[0])


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine on the loop and returns its result; an interrupt of the caller cancels it."""
    future = submit(work)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _started_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="podrace", daemon=True).start()
    atexit.register(_close_all)
    return loop


def _close_all() -> None:
    for held in list(_OPEN):
        # The error would have no reader, and the processes of a mesh stop by themselves when this one has exited.
        with contextlib.suppress(Exception):
            held.close()


class HeldContext(Generic[Value]):
    """Holds an asynchronous context open on the loop until it is closed.

    held = HeldContext(aio.connect(address))
    held.run(held.value.tournaments())
    held.close()

    Attributes:
        value: What the context yields.
    """

    def __init__(self, context: AbstractAsyncContextManager[Value]) -> None:
        """Enters the context; raises its error."""
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None]
        self.value: Value = run(self._enter(context))
        _OPEN.add(self)

    @property
    def closed(self) -> bool:
        """Whether the context has ended."""
        return self._task.done()

    async def _enter(self, context: AbstractAsyncContextManager[Value]) -> Value:
        entered: asyncio.Future[Value] = asyncio.get_running_loop().create_future()
        # In a separate task, because a context may cancel the task of its block.
        self._task = asyncio.create_task(self._hold(context, entered))
        try:
            either: list[asyncio.Future[Any]] = [entered, self._task]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await cancel_all(self._task)
            raise
        if not entered.done():
            self._task.result()
        return entered.result()

    async def _hold(self, context: AbstractAsyncContextManager[Value], entered: "asyncio.Future[Value]") -> None:
        async with context as value:
            entered.set_result(value)
            await self._closing.wait()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs a coroutine that needs the context, and returns its result.

        Raises:
            FailedPrecondition: The context is closed.
            PodraceError: The context ended meanwhile; the error is that of the context.
        """
        return run(self.within(work))

    async def within(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Awaits a coroutine for at most as long as the context lasts; raises as `run`."""
        if self.closed:
            work.close()
            raise FailedPrecondition(CLOSED)
        task = asyncio.ensure_future(work)
        try:
            if await finish_unless_stopped(task, self._task):
                return task.result()
        finally:
            # Also if the caller was cancelled, the work has ended when this returns.
            await cancel_all(task)
        self._task.result()
        raise FailedPrecondition("the mesh was closed during a call")

    def close(self) -> None:
        """Leaves the context and waits until it has ended; has no effect on one that has ended."""
        _OPEN.discard(self)
        if not self.closed:
            run(self._leave())

    async def _leave(self) -> None:
        self._closing.set()
        await self._task
