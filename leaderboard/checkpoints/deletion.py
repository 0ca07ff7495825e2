"""Deletes tournaments: their rows at once, and then, also after a restart, their objects in the checkpoint store."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

import structlog

from leaderboard.evolution.agents import agent_id_of
from leaderboard.store.deletion_records import delete_rows, finish_deletion, pending_deletions
from leaderboard.store.owners import TournamentOwners
from leaderboard.submission_watch import SubmissionWatch
from podrace.checkpoint_store.store import CheckpointStore
from podrace.database import Database
from podrace.database.leadership import CheckLeads, only_replica
from podrace.errors import PodraceError
from podrace.tasks import wait_at_most

RETRY_SECONDS = 60.0
LATER = "objects of a deleted tournament are deleted later"
_log = structlog.get_logger(__name__)


class TournamentDeletion:
    """Deletes tournaments.

    async with TournamentDeletion(state, store, owners) as deletion:
        await deletion.delete(tournament_id)
    """

    def __init__(
        self,
        state: Database,
        store: CheckpointStore,
        owners: TournamentOwners,
        watch: SubmissionWatch | None = None,
        *,
        on_deleted: Callable[[str], object] = lambda _: None,
        check_leads: CheckLeads = only_replica,
    ) -> None:
        """Prepares to delete.

        Args:
            state: Database of the leaderboard.
            store: Checkpoint store.
            owners: Forgets the owners of deleted tournaments.
            watch: Ends the watches of deleted tournaments; None: there are none.
            on_deleted: Called with the id of each deleted tournament.
            check_leads: Called before each deletion from the store.
        """
        self._on_deleted, self._check_leads = on_deleted, check_leads
        self._state, self._store, self._owners, self._watch = state, store, owners, watch
        self._requested = asyncio.Event()
        self._working: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Starts to delete objects that a previous run has left."""
        self._working = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stops; what is left is deleted by the next run."""
        if self._working:
            self._working.cancel()
            await asyncio.wait([self._working])

    async def delete(self, tournament_id: str) -> None:
        """Deletes the rows of a tournament durably; its objects follow. Has no effect without rows."""
        await self._state.transact(delete_rows, tournament_id)
        self._owners.forget(tournament_id)
        self._on_deleted(tournament_id)
        if self._watch:
            await self._watch.end(tournament_id)
        self._requested.set()

    async def delete_objects(self) -> bool:
        """Deletes the objects of all deleted tournaments; returns whether none are left.

        A tournament whose objects cannot be deleted now is logged, and the others follow.

        Raises:
            PodraceError: The database does not answer.
        """
        pending = await self._state.transact(pending_deletions)
        return all([await self._delete_objects_of(tournament_id, agents) for tournament_id, agents in pending])

    async def _delete_objects_of(self, tournament_id: str, agents: int) -> bool:
        with _logged_errors(tournament_id=tournament_id):
            objects = await asyncio.to_thread(delete_from_store, self._store, tournament_id, agents, self._check_leads)
            await self._state.transact(finish_deletion, tournament_id)
            _log.info("tournament deleted", tournament_id=tournament_id, agents=agents, objects=objects)
            return True
        return False

    async def _work(self) -> None:
        while True:
            self._requested.clear()
            finished = False
            with _logged_errors():
                finished = await self.delete_objects()
            await wait_at_most(self._requested.wait(), None if finished else RETRY_SECONDS)


@contextmanager
def _logged_errors(**about: str) -> Iterator[None]:
    """Logs an error instead of raising it, because the deletion is tried again."""
    try:
        yield
    except PodraceError as error:
        _log.warning(LATER, **about, error=error.message)
    except Exception:
        # A defect must not end the deletions, or objects of deleted tournaments stay until a restart.
        _log.exception(LATER, **about)


def delete_from_store(
    store: CheckpointStore, tournament_id: str, agents: int, check_leads: CheckLeads = only_replica
) -> int:
    """Deletes the pointers and objects of a tournament that nothing publishes to; returns the number of objects."""
    # Pointers first: garbage collection logs a pointer without its manifest as a lost checkpoint.
    for number in range(agents):
        check_leads()
        store.delete_pointer(agent_id_of(tournament_id, number))
    check_leads()
    return store.delete_tournament(tournament_id)
