"""Starts pods, each in its own task, because the first of a machine waits seconds for the fork server."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence

import structlog

from orchestrator.decisions import pool_size
from orchestrator.launchers.base import Launcher, NewPod
from orchestrator.state.database import StateDatabase
from orchestrator.state.transitions import fail_tournament
from podrace.database.leadership import CheckLeads, only_replica
from podrace.errors import InvalidArgument, PodraceError, Unavailable
from podrace.printable import one_line

_log = structlog.get_logger(__name__)


class PodStarts:
    """Starts pods, and reports those that did not start.

    starts.begin(pods)
    ...
    await starts.cancel()

    Attributes:
        pod_ids: The pods that are being started.
    """

    def __init__(
        self,
        state: StateDatabase,
        launcher: Launcher,
        on_failed: Callable[[str, str], Awaitable[None]],
        on_refused: Callable[[str, str, float], Awaitable[None]],
        on_end: Callable[[], None],
        check_leads: CheckLeads = only_replica,
    ) -> None:
        """Creates it.

        Args:
            state: Keeps the tournaments.
            launcher: Starts the pods.
            on_failed: Called with the id of a pod that cannot start, and the reason.
            on_refused: Called with the id of a pod that could not start this time, the reason, and the time in seconds
                until its tournament may start the next one.
            on_end: Called after each start, whether it succeeded or not.
            check_leads: Raises an error if another replica may lead.
        """
        self._state, self._launcher, self._check_leads = state, launcher, check_leads
        self._on_failed, self._on_refused, self._on_end = on_failed, on_refused, on_end
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # Refusals in a row, by tournament.
        self._refusals: Counter[str] = Counter()

    @property
    def pod_ids(self) -> Collection[str]:
        """See above."""
        return self._tasks.keys()

    def begin(self, pods: Sequence[NewPod]) -> None:
        """Begins to start pods."""
        self._tasks |= {pod.pod_id: asyncio.create_task(self._start(pod)) for pod in pods}

    async def cancel(self) -> list[str]:
        """Cancels all starts; returns the ids of these pods."""
        tasks = dict(self._tasks)
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        return list(tasks)

    async def _start(self, pod: NewPod) -> None:
        try:
            self._check_leads()
            await self._launcher.start(pod)
            del self._refusals[pod.tournament_id]
        except InvalidArgument as error:
            if not pod.replaces:
                await self._state.transact(fail_tournament, pod.tournament_id, error.message)
            await self._on_failed(pod.pod_id, error.message)
        except Unavailable as error:
            self._refusals[pod.tournament_id] += 1
            pause = pool_size.backoff_seconds(self._refusals[pod.tournament_id])
            await self._on_refused(pod.pod_id, error.message, pause)
        except PodraceError as error:
            await self._on_failed(pod.pod_id, error.message)
        except Exception as error:
            _log.exception("a pod could not be started", pod_id=pod.pod_id)
            await self._on_failed(pod.pod_id, one_line(repr(error)))
        finally:
            del self._tasks[pod.pod_id]
            self._on_end()
