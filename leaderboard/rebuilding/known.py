"""Lists what the leaderboard knows of all tournaments, for an orchestrator whose database was lost."""

import asyncio

from leaderboard.store import records
from leaderboard.store.known_records import first_positions, highest_submitted_epoch
from leaderboard.store.owners import read_owners
from podrace.checkpoint_store.store import ARCHIVE_PREFIX, BACKUP_PREFIX, CheckpointStore
from podrace.database import Database, Transaction
from podrace.leaderboard.v1.leaderboard_pb2 import (
    KnownTournament,
    ListKnownTournamentsRequest,
    ListKnownTournamentsResponse,
)
from podrace.page_bytes import page_of
from podrace.page_tokens import position_in, token_after

PAGE_SIZE = 100
LIST = ("known_tournaments",)


class KnownTournaments:
    """Lists tournaments.

    response = await known.page(request)
    """

    def __init__(self, state: Database, store: CheckpointStore) -> None:
        """Reads the database and the pointers of the store."""
        self._state, self._store = state, store

    async def page(self, request: ListKnownTournamentsRequest) -> ListKnownTournamentsResponse:
        """Returns a page.

        Raises:
            InvalidArgument: The page token belongs to another list.
            PodraceError: The store cannot be read.
        """
        after = position_in(request.page_token, LIST, int)
        highest = await asyncio.to_thread(self._highest_epoch)
        found, submitted = await self._state.transact(read_page, after)
        entries, token = page_of(
            found,
            lambda one: one[1],
            lambda one: token_after(LIST, one[0]),
            more=len(found) == PAGE_SIZE,
        )
        return ListKnownTournamentsResponse(
            tournaments=entries, next_page_token=token, highest_lease_epoch=max(highest, submitted)
        )

    def _highest_epoch(self) -> int:
        """Returns the highest lease epoch of the pointer of an agent. Blocks."""
        epochs = (
            pointer.lease_epoch
            for pointer in self._store.list_pointers()
            if not pointer.agent_id.startswith((BACKUP_PREFIX, ARCHIVE_PREFIX))
        )
        return max(epochs, default=0)


def read_page(transaction: Transaction, after: int) -> tuple[list[tuple[int, KnownTournament]], int]:
    """Returns tournaments after a position, each with its own, and the highest lease epoch of a submission."""
    owners = read_owners(transaction)
    found = []
    for position, name in first_positions(transaction, after, PAGE_SIZE):
        owned = owners.get(name)
        spec = records.get_spec(transaction, name)
        known = KnownTournament(tournament_id=name, spec=spec)
        if owned:
            known.owner, known.namespace = owned.owner, owned.namespace
        found.append((position, known))
    return found, highest_submitted_epoch(transaction)
