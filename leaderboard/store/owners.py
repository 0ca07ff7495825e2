"""Keeps whose each tournament is, in the database and in memory, and how many bytes it has stored.

The orchestrator says it with each request for an agent.
"""

from collections.abc import Iterable, Mapping
from typing import Self

from podrace.access.authenticators.unix_socket import user_name
from podrace.access.ownership import Ownership
from podrace.database import Database, Transaction
from podrace.errors import QUOTA_EXCEEDED, ResourceExhausted
from podrace.leaderboard.v1.leaderboard_pb2 import GenerateAgentRequest

RETRY_SECONDS = 60.0
"""Time after which it helps to ask again for an agent of an owner who had stored too much."""
_SERVICE = "/podrace.leaderboard.v1.LeaderboardService"
SCOPED_METHODS = frozenset(
    f"{_SERVICE}/{name}"
    for name in ("ListCandidates", "GetLineage", "WatchCandidates", "GetStatistics", "ListSnapshots")
)
"""Methods that answer about a tournament that the caller may not see as about one that has no agents."""


class TournamentOwners:
    """Whose the tournaments are; implements podrace.access.ownership.Owners.

    owners = await TournamentOwners.load(state)
    owners.learn(tournament_id, ownership_in(request))      # when an agent was generated
    """

    def __init__(self, known: Mapping[str, Ownership] | None = None) -> None:
        """Creates the collection.

        Args:
            known: Whose each tournament is, by its id.
        """
        self._known = dict(known or {})
        self._stored_bytes: Mapping[str, int] = {}

    @classmethod
    async def load(cls, state: Database) -> Self:
        """Reads the database. Tournaments of earlier versions become those of the user of this process."""
        await state.transact(assign_owner, user_name())
        return cls(await state.transact(read_owners))

    def learn(self, tournament_id: str, ownership: Ownership) -> None:
        """Remembers whose a tournament is, unless it is known."""
        self._known.setdefault(tournament_id, ownership)

    def forget(self, tournament_id: str) -> None:
        """Forgets a tournament that was deleted."""
        self._known.pop(tournament_id, None)

    def measure(self, stored_bytes: Mapping[str, int]) -> None:
        """Remembers the bytes of the checkpoint files of each tournament."""
        self._stored_bytes = stored_bytes

    def check_stored_bytes(self, ownership: Ownership, maximum_bytes: int) -> None:
        """Checks what the tournaments of an owner have stored, as it was last measured.

        Args:
            ownership: The owner.
            maximum_bytes: Most bytes; 0: no limit.

        Raises:
            ResourceExhausted: They have stored more (QUOTA_EXCEEDED).
        """
        if not maximum_bytes:
            return
        own = (size for name, size in self._stored_bytes.items() if self._known.get(name) == ownership)
        if (stored := sum(own)) > maximum_bytes:
            name = ownership.display_name
            raise ResourceExhausted(
                f"the tournaments of {name} have stored {stored} bytes, and quota.stored_bytes of the orchestrator"
                f" allows {maximum_bytes}; delete tournaments that have ended (podrace delete)",
                reason=QUOTA_EXCEEDED,
                metadata={"setting": "quota.stored_bytes", "limit": str(maximum_bytes), "owner": name},
                retry_seconds=RETRY_SECONDS,
            )

    def ownership_of(self, tournament_id: str) -> Ownership | None:
        """Returns whose a tournament is; None if no agent of it was generated."""
        return self._known.get(tournament_id)

    def tournament_ids(self) -> Iterable[str]:
        """Returns the ids of all tournaments, oldest first."""
        return self._known


def ownership_in(request: GenerateAgentRequest) -> Ownership:
    """Returns whose the tournament of a request is."""
    return Ownership(request.owner or user_name(), request.namespace)


# --- records -----------------------------------------------------------------------------------------------------


def add_owner(transaction: Transaction, tournament_id: str, ownership: Ownership) -> None:
    """Records whose a tournament is; a second call has no effect."""
    statement = "INSERT OR IGNORE INTO owners VALUES (?, ?, ?)"
    transaction.execute(statement, tournament_id, ownership.owner, ownership.namespace)


def assign_owner(transaction: Transaction, owner: str) -> None:
    """Gives the tournaments without an owner to one; versions before owners existed have recorded them."""
    transaction.execute("INSERT OR IGNORE INTO owners SELECT tournament_id, ?, '' FROM tournaments", owner)


def read_owners(transaction: Transaction) -> dict[str, Ownership]:
    """Returns whose each tournament is, by its id."""
    rows = transaction.execute("SELECT tournament_id, owner, namespace FROM owners ORDER BY rowid")
    return {tournament_id: Ownership(owner, namespace) for tournament_id, owner, namespace in rows}
