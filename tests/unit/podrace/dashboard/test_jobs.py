"""A bounded number of jobs runs at a time, the same work is done once, and old results are forgotten."""

import asyncio

import pytest

from podrace.dashboard.on_demand.jobs import JobQueue, JobState
from podrace.errors import NotFound, ResourceExhausted


class Gate:
    """Work that ends when the test lets it."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.open = asyncio.Event()

    def work(self, name: str):
        async def run() -> str:
            self.started.append(name)
            await self.open.wait()
            return name

        return run


async def ended(job) -> None:
    async with asyncio.timeout(5):
        while not job.ended:
            await asyncio.sleep(0)


async def test_jobs_run_one_after_the_other_and_the_same_work_is_done_once():
    gate, queue = Gate(), JobQueue(running=1, unfinished=4, kept=4)
    first, again, second = (queue.start(key, "run-abc123", gate.work(key)) for key in ("a", "a", "b"))
    assert first is again
    await asyncio.sleep(0)
    assert gate.started == ["a"]
    assert (first.state, second.state) == (JobState.RUNNING, JobState.WAITING)
    gate.open.set()
    await ended(second)
    assert (first.result, second.result) == ("a", "b")
    assert queue.start("a", "run-abc123", gate.work("a")) is first
    assert gate.started == ["a", "b"]


async def test_more_unfinished_jobs_than_allowed_are_refused():
    gate, queue = Gate(), JobQueue(running=1, unfinished=2, kept=4)
    for key in ("a", "b"):
        queue.start(key, "run-abc123", gate.work(key))
    with pytest.raises(ResourceExhausted):
        queue.start("c", "run-abc123", gate.work("c"))
    await queue.close()


async def test_one_person_has_a_limited_number_of_unfinished_jobs():
    gate, queue = Gate(), JobQueue(running=4, unfinished=16, kept=4, unfinished_of_person=2)
    alice, bob = ("team", "alice"), ("", "alice")
    jobs = [queue.start(key, "run-abc123", gate.work(key), alice) for key in ("a", "b")]
    with pytest.raises(ResourceExhausted, match="2 of your jobs"):
        queue.start("c", "run-abc123", gate.work("c"), alice)
    assert queue.start("a", "run-abc123", gate.work("a"), alice) is jobs[0]
    jobs += [queue.start(key, "run-abc123", gate.work(key), bob) for key in ("c", "d")]
    jobs += [queue.start(key, "run-abc123", gate.work(key)) for key in ("e", "f", "g")]
    gate.open.set()
    for job in jobs:
        await ended(job)
    queue.start("h", "run-abc123", gate.work("h"), alice)
    await queue.close()


async def test_a_job_that_failed_says_why_and_is_started_again():
    queue = JobQueue(running=1, unfinished=2, kept=4)

    async def refused() -> None:
        raise NotFound("there is no policy")

    async def broken() -> None:
        raise RuntimeError("secret")

    job = queue.start("a", "run-abc123", refused)
    await ended(job)
    assert (job.state, job.error) == (JobState.FAILED, "there is no policy")
    second = queue.start("a", "run-abc123", broken)
    assert second is not job
    await ended(second)
    assert "secret" not in second.error


async def test_the_oldest_results_are_discarded():
    gate, discarded = Gate(), []
    gate.open.set()
    queue = JobQueue(running=1, unfinished=9, kept=2, discard=discarded.append)
    for key in "abcd":
        await ended(queue.start(key, "run-abc123", gate.work(key)))
        await asyncio.sleep(0)
    assert discarded == ["a", "b"]
    assert queue.find("a") is None
    assert queue.find("d") is not None
    await queue.close()
    assert discarded == ["a", "b", "c", "d"]


async def test_closing_cancels_what_has_not_ended():
    gate, queue = Gate(), JobQueue(running=1, unfinished=4, kept=4)
    job = queue.start("a", "run-abc123", gate.work("a"))
    await asyncio.sleep(0)
    await queue.close()
    assert not job.ended
    assert queue.find("a") is None
