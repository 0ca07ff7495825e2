"""Runs jobs that pages start, a bounded number at a time, and keeps the newest results."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import structlog

from podrace.dashboard.entrance.reader import Person
from podrace.errors import PodraceError, ResourceExhausted
from podrace.tasks import cancel_all

log = structlog.get_logger()


class JobState(StrEnum):
    """What a job does."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass
class Job:
    """One piece of work and its result."""

    key: str
    """Two requests for the same work have the same key."""
    tournament_id: str
    """Tournament that it concerns."""
    person: Person | None = None
    """Who has started it; None: everyone who uses the dashboard."""
    state: JobState = JobState.WAITING
    result: Any = None
    error: str = ""
    """Why it failed, in one line."""

    @property
    def ended(self) -> bool:
        """Whether it has a result or an error."""
        return self.state in (JobState.DONE, JobState.FAILED)


class JobQueue:
    """Jobs by key, in the order in which they were started.

    queue = JobQueue(running=1, unfinished=8, kept=16, discard=remove_file)
    job = queue.start(key, "cartpole-2xxpit", work)       # `work` is awaited later
    ...
    await queue.close()
    """

    def __init__(
        self,
        *,
        running: int,
        unfinished: int,
        kept: int,
        unfinished_of_person: int = 0,
        discard: Callable[[Any], None] = lambda result: None,
    ) -> None:
        """Has no job.

        Args:
            running: Jobs that run at the same time, at most.
            unfinished: Jobs that wait or run, at most.
            kept: Jobs that are kept when they have ended, at most; the oldest are forgotten.
            unfinished_of_person: Jobs of one person that wait or run, at most; 0: no limit.
            discard: Called with the result of a job that is forgotten.
        """
        self._places = asyncio.Semaphore(running)
        self._unfinished, self._kept, self._discard = unfinished, kept, discard
        self._unfinished_of_person = unfinished_of_person
        self._jobs: dict[str, Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(
        self, key: str, tournament_id: str, work: Callable[[], Awaitable[Any]], person: Person | None = None
    ) -> Job:
        """Returns the job of a key. It is started if there is none, or if the last one failed.

        Args:
            key: The key.
            tournament_id: Tournament that it concerns.
            work: Does it, and returns its result.
            person: Who starts it; None: everyone who uses the dashboard.

        Raises:
            ResourceExhausted: Too many jobs, or too many of this person, have not ended.
        """
        known = self._jobs.get(key)
        if known and known.state is not JobState.FAILED:
            return known
        if len(self._tasks) >= self._unfinished:
            raise ResourceExhausted(f"{self._unfinished} jobs wait or run already; try again when one has ended")
        own = sum(job.person == person and not job.ended for job in self._jobs.values())
        if person and 0 < self._unfinished_of_person <= own:
            raise ResourceExhausted(f"{own} of your jobs wait or run already; try again when one has ended")
        self._jobs.pop(key, None)
        job = self._jobs[key] = Job(key, tournament_id, person)
        task = asyncio.create_task(self._run(job, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    def find(self, key: str) -> Job | None:
        """Returns the job of a key; None: it was not started, or was forgotten."""
        return self._jobs.get(key)

    async def close(self) -> None:
        """Cancels what has not ended, and forgets all jobs."""
        await cancel_all(*self._tasks)
        for job in self._jobs.values():
            self._forget(job)
        self._jobs.clear()

    async def _run(self, job: Job, work: Callable[[], Awaitable[Any]]) -> None:
        async with self._places:
            job.state = JobState.RUNNING
            try:
                job.result = await work()
                job.state = JobState.DONE
            except PodraceError as error:
                job.state, job.error = JobState.FAILED, error.message
            except Exception:
                log.exception("job failed", key=job.key)
                job.state, job.error = JobState.FAILED, "the dashboard failed; its log has the traceback"
        ended = [one for one in self._jobs.values() if one.ended]
        for one in ended[: max(0, len(ended) - self._kept)]:
            del self._jobs[one.key]
            self._forget(one)

    def _forget(self, job: Job) -> None:
        if job.state is JobState.DONE:
            with contextlib.suppress(OSError):
                self._discard(job.result)
