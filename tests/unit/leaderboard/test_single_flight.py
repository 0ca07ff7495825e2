import asyncio

import pytest

from leaderboard.single_flight import SingleFlight


async def test_work_is_done_once_for_all_concurrent_callers() -> None:
    shared: SingleFlight[int] = SingleFlight()
    done = 0
    go = asyncio.Event()

    async def work() -> int:
        nonlocal done
        await go.wait()
        done += 1
        return done

    waiting = [asyncio.ensure_future(shared.run("a", work)) for _ in range(3)]
    other = asyncio.ensure_future(shared.run("b", work))
    await asyncio.sleep(0)
    go.set()
    assert len({await task for task in waiting}) == 1
    await other
    assert done == 2
    assert await shared.run("a", work) == 3


async def test_work_continues_when_its_callers_give_up() -> None:
    shared: SingleFlight[str] = SingleFlight()
    go, finished = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        await go.wait()
        finished.set()
        return "made"

    waiting = asyncio.ensure_future(shared.run("a", work))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go.set()
    await asyncio.wait_for(finished.wait(), 1.0)


async def test_an_error_reaches_all_callers_and_the_next_call_starts_again() -> None:
    shared: SingleFlight[str] = SingleFlight()

    async def fails() -> str:
        raise ValueError("no")

    for result in await asyncio.gather(*(shared.run("a", fails) for _ in range(2)), return_exceptions=True):
        assert isinstance(result, ValueError)
    with pytest.raises(ValueError, match="no"):
        await shared.run("a", fails)


async def test_closing_cancels_running_work() -> None:
    shared: SingleFlight[None] = SingleFlight()

    async def forever() -> None:
        await asyncio.Event().wait()

    waiting = asyncio.ensure_future(shared.run("a", forever))
    await asyncio.sleep(0)
    await shared.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
