import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

import pytest

from podrace.api import background
from podrace.api.background import HeldContext
from podrace.errors import FailedPrecondition, Unavailable


@contextlib.asynccontextmanager
async def recorded(log: list[str], failure: asyncio.Future[None] | None = None) -> AsyncIterator[str]:
    log.append("entered")
    block = asyncio.current_task()
    if failure is not None and block is not None:
        failure.add_done_callback(lambda _: block.cancel())
    try:
        yield "value"
    except asyncio.CancelledError:
        raise Unavailable("a service stays down") from None
    finally:
        log.append("left")


async def where() -> str:
    return threading.current_thread().name


async def forever() -> None:
    await asyncio.Event().wait()


def test_all_work_runs_on_one_thread() -> None:
    assert background.run(where()) == background.run(where()) != threading.current_thread().name


def test_a_context_is_left_once_by_the_task_that_entered_it() -> None:
    log: list[str] = []
    held = HeldContext(recorded(log))
    assert (held.value, held.run(where()), log) == ("value", "podrace", ["entered"])
    held.close()
    held.close()
    assert (held.closed, log) == (True, ["entered", "left"])
    with pytest.raises(FailedPrecondition, match="the mesh is closed"):
        held.run(where())


def test_the_error_of_entering_is_raised() -> None:
    @contextlib.asynccontextmanager
    async def refused() -> AsyncIterator[None]:
        raise Unavailable("no answer")
        yield

    with pytest.raises(Unavailable, match="no answer"):
        HeldContext(refused())


def test_a_call_that_waits_gets_the_error_with_which_the_context_ends() -> None:
    async def made() -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    async def fail() -> None:
        failure.set_result(None)
        await forever()

    failure = background.run(made())
    held = HeldContext(recorded([], failure))
    with pytest.raises(Unavailable, match="a service stays down"):
        held.run(fail())
    assert held.closed


def test_a_call_that_waits_ends_when_the_context_is_closed() -> None:
    held = HeldContext(recorded([]))
    waiting = background.submit(held.within(forever()))
    held.close()
    with pytest.raises(FailedPrecondition, match="closed"):
        waiting.result(10)


def test_what_is_open_at_the_end_of_the_process_is_closed() -> None:
    log: list[str] = []
    HeldContext(recorded(log))
    background._close_all()
    assert log == ["entered", "left"]
