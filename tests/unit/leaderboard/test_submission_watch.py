"""Tests what ends the waits for submissions, and that deleted tournaments are forgotten."""

import asyncio

from leaderboard.submission_watch import SubmissionWatch


async def test_a_wait_ends_with_a_later_submission_only() -> None:
    watch = SubmissionWatch()
    with watch.watching("t"):
        waiting = asyncio.create_task(watch.wait_after("t", 1))
        await watch.notify("t", 1)
        done, _ = await asyncio.wait([waiting], timeout=0.01)
        assert not done
        await watch.notify("t", 2)
        await asyncio.wait_for(waiting, 5.0)


async def test_a_deletion_ends_the_waits_of_all_who_watch_and_is_then_forgotten() -> None:
    watch = SubmissionWatch()
    await watch.notify("t", 1)
    with watch.watching("t"):
        with watch.watching("t"):
            waiting = asyncio.create_task(watch.wait_after("t", 1))
            await asyncio.sleep(0)
            await watch.end("t")
            await asyncio.wait_for(waiting, 5.0)
        # A watcher that read its page before the deletion waits afterwards.
        await asyncio.wait_for(watch.wait_after("t", 1), 5.0)
    assert not watch._newest
    assert not watch._watchers


async def test_a_deleted_tournament_without_watchers_is_forgotten_at_once() -> None:
    watch = SubmissionWatch()
    await watch.notify("t", 1)
    await watch.notify("u", 2)
    await watch.end("t")
    assert set(watch._newest) == {"u"}
