import asyncio
from typing import Any

import pytest

from podrace import tasks


async def never() -> None:
    await asyncio.get_running_loop().create_future()


def new_stop() -> "asyncio.Future[Any]":
    return asyncio.get_running_loop().create_future()


async def test_a_task_that_finishes_first_keeps_its_result():
    task = asyncio.create_task(asyncio.sleep(0, "result"))
    assert await tasks.finish_unless_stopped(task, new_stop())
    assert task.result() == "result"


async def test_an_error_stays_with_the_task():
    async def fail() -> None:
        raise ValueError("broken")

    task = asyncio.create_task(fail())
    assert await tasks.finish_unless_stopped(task, new_stop())
    with pytest.raises(ValueError, match="broken"):
        task.result()


async def test_a_stop_cancels_the_task_and_waits_for_its_cleanup():
    steps = []

    async def work() -> None:
        try:
            await never()
        finally:
            await asyncio.sleep(0)
            steps.append("cleaned up")

    stop, task = new_stop(), asyncio.create_task(work())
    asyncio.get_running_loop().call_soon(lambda: asyncio.get_running_loop().call_soon(stop.set_result, "stop"))
    assert not await tasks.finish_unless_stopped(task, stop)
    assert steps == ["cleaned up"]
    assert task.cancelled()


async def test_a_cancelled_caller_cancels_the_task_and_not_the_stop():
    stop, task = new_stop(), asyncio.create_task(never())
    caller = asyncio.create_task(tasks.finish_unless_stopped(task, stop))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert not stop.done()


async def test_the_first_of_several_ends_the_others():
    slow = asyncio.create_task(never())
    (done,) = await tasks.first_finished(asyncio.sleep(0, "first"), slow)
    assert done.result() == "first"
    assert slow.cancelled()


async def test_a_wait_has_a_limit():
    assert await tasks.wait_at_most(asyncio.sleep(0), 10.0)
    assert not await tasks.wait_at_most(never(), 0.0)


async def test_every_notification_wakes_those_that_wait_then():
    signal, woken = tasks.ChangeSignal(), []

    async def wait(name: str) -> None:
        await signal.next_change().wait()
        woken.append(name)

    first = [asyncio.create_task(wait("a")), asyncio.create_task(wait("b"))]
    await asyncio.sleep(0)
    signal.notify_all()
    await asyncio.gather(*first)
    second = asyncio.create_task(wait("c"))
    await asyncio.sleep(0)
    assert woken == ["a", "b"]
    signal.notify_all()
    await second
    assert woken == ["a", "b", "c"]


async def test_a_change_before_the_wait_is_not_missed():
    signal = tasks.ChangeSignal()
    change = signal.next_change()
    signal.notify_all()
    assert await tasks.wait_at_most(change.wait(), 0.1)
