"""Deletes ended tournaments: when their owner asks for it, and when they have been kept for the configured time."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import structlog

from orchestrator.decisions.deletion import Deletable, expired, refusal
from orchestrator.leaderboard_client import LeaderboardClient
from orchestrator.state.clock import Clock
from orchestrator.state.database import StateDatabase
from orchestrator.state.deletion_records import delete_rows, finish_deletion, pending_deletions
from orchestrator.state.records import END_STATES
from orchestrator.state.runtime import RuntimeState
from podrace.access.authenticators.unix_socket import local_user
from podrace.access.ownership import Reach, reach
from podrace.access.principal import Principal
from podrace.errors import FailedPrecondition, PodraceError, Unimplemented
from podrace.specification.ancestor import tournament_of
from podrace.tasks import cancel_all

CHECK_SECONDS = 60.0
"""Time between two checks for tournaments that are due, and between two attempts to reach the leaderboard."""
MOST_AT_ONCE = 20
"""Largest number of tournaments that one check deletes, so that calls do not wait for long."""
Archive = Callable[[str], Awaitable[None]]
"""Archives a tournament, given by its id; raises PodraceError if that fails."""
_log = structlog.get_logger(__name__)


class Deletion:
    """Deletes tournaments.

    await deletion.delete(tournament_id)
    deletion.begin_due()                 # in every reconcile cycle
    await deletion.close()
    """

    def __init__(
        self,
        state: StateDatabase,
        runtime: RuntimeState,
        leaderboard: LeaderboardClient,
        clock: Clock,
        *,
        log_folder: Path,
        keep_seconds: float = 0.0,
        archive: Archive | None = None,
        archive_all: bool = False,
    ) -> None:
        """Creates the service.

        Args:
            state: Database of the orchestrator.
            runtime: State in memory.
            leaderboard: Deletes its own rows and the objects of the store.
            clock: Wall time and monotonic time.
            log_folder: Folder with the logs of pods.
            keep_seconds: Time for which ended tournaments are kept; 0: without end.
            archive: Archives a tournament; None: they cannot be archived.
            archive_all: Whether every tournament is archived before it is deleted.
        """
        self._archive, self._archive_all = archive, archive_all
        self._state, self._runtime, self._leaderboard, self._clock = state, runtime, leaderboard, clock
        self._log_folder, self._keep_seconds = log_folder, keep_seconds
        self._next_check = 0.0
        self._deleting: asyncio.Task[None] | None = None

    async def delete(self, tournament_id: str, caller: Principal | None = None, *, archive: bool = False) -> None:
        """Deletes an ended tournament; has no effect if there is none that the caller may see.

        Args:
            tournament_id: The tournament.
            caller: Who makes the request; None: the user of this process.
            archive: Whether it is archived first, even if the operator does not demand it.

        Raises:
            PodraceError: It cannot be archived; nothing was deleted.
            Unimplemented: `archive` is set, and this server archives nothing.
            FailedPrecondition: It has not ended, its pods or evaluations have not, or another tournament starts from
                one of its agents; the message says what to do.
        """
        owned = self._runtime.cache.ownership_of(tournament_id)
        if reach(caller or local_user(), tournament_id, owned) < Reach.CHANGE:
            return
        found = self._deletable([tournament_id])
        if found and (reason := refusal(found[0])):
            raise FailedPrecondition(reason)
        if found and (archive or self._archive_all):
            if self._archive is None:
                raise Unimplemented("archive: this server does not support archives; omit it")
            await self._archive(tournament_id)
        pods = await self._state.transact(delete_rows, tournament_id)
        self._runtime.forget(tournament_id)
        await asyncio.to_thread(_delete_logs, self._log_folder, pods)
        self._runtime.changes.notify_all()
        await self._delete_from_leaderboard(tournament_id)

    def begin_due(self) -> None:
        """Starts `delete_due` if a check is due, unless one is under way.

        It runs alongside the reconcile loop, because archiving takes long and the leaderboard may be unreachable.
        """
        now = self._clock.monotonic()
        if now >= self._next_check and (self._deleting is None or self._deleting.done()):
            self._next_check = now + CHECK_SECONDS
            self._deleting = asyncio.create_task(self._delete_safely())

    async def close(self) -> None:
        """Cancels the deletion that is under way; what the leaderboard has not done yet is repeated later."""
        if self._deleting:
            await cancel_all(self._deleting)

    async def _delete_safely(self) -> None:
        try:
            await self.delete_due()
        except PodraceError as error:
            _log.error("the deletion of tournaments failed; retrying", error=error.message)
        except Exception:
            _log.exception("the deletion of tournaments failed; retrying")

    async def delete_due(self) -> None:
        """Deletes tournaments that were kept long enough, and repeats what the leaderboard has not done yet.

        Raises:
            PodraceError: The database cannot be written.
        """
        for name in await self._state.transact(pending_deletions):
            await self._delete_from_leaderboard(name)
        if not self._keep_seconds:
            return
        known = self._deletable(self._runtime.cache.tournaments)
        for name in expired(known, self._clock.wall(), self._keep_seconds)[:MOST_AT_ONCE]:
            try:
                await self.delete(name)
            except PodraceError as error:
                _log.warning("a tournament cannot be deleted yet", tournament_id=name, reason=error.message)
            else:
                _log.info("tournament deleted: it ended more than keep_days ago", tournament_id=name)

    async def _delete_from_leaderboard(self, tournament_id: str) -> None:
        try:
            await self._leaderboard.delete_tournament(tournament_id)
        except PodraceError as error:
            _log.warning("the leaderboard deletes a tournament later", tournament_id=tournament_id, error=error.message)
            return
        await self._state.transact(finish_deletion, tournament_id)

    def _deletable(self, names: Iterable[str]) -> list[Deletable]:
        cache = self._runtime.cache
        children: defaultdict[str, list[str]] = defaultdict(list)
        for child in cache.tournaments.values():
            if ancestor := child.spec.evolution.ancestor_agent_id:
                children[tournament_of(ancestor)].append(child.tournament_id)
        pods = [pod.tournament_id for pod in cache.pods.values()]
        return [
            Deletable(
                name,
                found.end_time if found.state in END_STATES else None,
                pods.count(name),
                len(cache.unfinished_evaluations(name)),
                children[name],
            )
            for name in names
            if (found := cache.tournaments.get(name))
        ]


def _delete_logs(folder: Path, pods: Iterable[str]) -> None:
    for pod_id in pods:
        for path in folder.glob(f"{pod_id}.log*"):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                _log.warning("a log cannot be deleted", path=str(path), error=str(error))
