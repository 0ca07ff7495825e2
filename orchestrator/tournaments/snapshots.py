"""Schedules snapshots of champions; the leaderboard stores them."""

import asyncio
from collections.abc import Iterable

import structlog

from orchestrator.leaderboard_client import LeaderboardClient
from orchestrator.state.runtime import RuntimeState
from podrace.errors import DeadlineExceeded, PodraceError, Unavailable
from podrace.specification.snapshot_schedule import SnapshotSchedule, period_seconds

_log = structlog.get_logger(__name__)


class ChampionSnapshots:
    """Requests snapshots that are due, in tasks that run alongside the reconcile loop.

    snapshots.take_due(clock.monotonic(), running_tournament_ids)  # in each reconcile cycle
    await snapshots.close()
    """

    def __init__(self, runtime: RuntimeState, leaderboard: LeaderboardClient) -> None:
        self._runtime, self._leaderboard = runtime, leaderboard
        self._schedules: dict[str, SnapshotSchedule] = {}
        self._taking: dict[str, asyncio.Task[None]] = {}

    def take_due(self, now: float, tournament_ids: Iterable[str]) -> None:
        """Starts to take the snapshots that are due for running tournaments; `now` is monotonic."""
        for name in tournament_ids:
            period = period_seconds(self._runtime.cache.tournaments[name].spec.evaluation)
            if period is None or name in self._taking:
                continue
            # If a previous run took the latest snapshot, it is requested again, which has no effect.
            schedule = self._schedules.setdefault(name, SnapshotSchedule(period, last=0))
            number = schedule.due(self._runtime.running_time.seconds(name, now))
            if number:
                taking = self._take(name, number, self._runtime.running_time.seconds(name, now), schedule)
                self._taking[name] = asyncio.create_task(taking)

    async def _take(self, name: str, number: int, running_seconds: float, schedule: SnapshotSchedule) -> None:
        try:
            steps = self._runtime.counters.environment_steps(name)
            await self._leaderboard.snapshot_champion(name, number, running_seconds, steps)
        except (DeadlineExceeded, Unavailable):
            return  # retried in the next reconcile cycle
        except PodraceError as error:
            _log.warning("could not take a champion snapshot", tournament_id=name, number=number, error=error.message)
        finally:
            del self._taking[name]
        schedule.last = number

    async def close(self) -> None:
        """Cancels snapshots that are being taken."""
        tasks = list(self._taking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
