"""Keeps which tournaments exist and the owner of each, in the database and in memory, and how many bytes it has stored.

The orchestrator registers its tournaments, and states the owner with each request for an agent.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol, Self

from podrace.access.authenticators.unix_socket import user_name
from podrace.access.ownership import Ownership, unknown_tournament, visible
from podrace.access.principal import Principal
from podrace.database import Database, Transaction
from podrace.errors import QUOTA_EXCEEDED, NotFound, ResourceExhausted
from podrace.leaderboard.v1.leaderboard_pb2 import GenerateAgentRequest, RegisteredTournament


class Stored(Protocol):
    """What the garbage collection measures."""

    @property
    def kept_bytes(self) -> Mapping[str, int]:
        """Bytes of the checkpoint files that it left, by tournament."""


RETRY_SECONDS = 60.0
"""Suggested delay before an agent is requested again for an owner that has stored too much."""


class TournamentOwners:
    """The owners of the tournaments; implements podrace.access.ownership.Owners.

    owners = await TournamentOwners.load(state)
    await owners.register(state, tournaments)               # when the orchestrator registers tournaments
    owners.learn(tournament_id, ownership_in(request))      # when an agent was generated
    owners.check_known(tournament_id, current_principal())  # before a tournament is read
    """

    def __init__(self, known: Mapping[str, Ownership] | None = None) -> None:
        """Creates the collection.

        Args:
            known: The owner of each tournament, by its id.
        """
        self._known = dict(known or {})
        # Tournaments that were rebuilt, until the orchestrator states their owner.
        self._unowned: set[str] = set()
        self._stored_bytes: Mapping[str, int] = {}

    @classmethod
    async def load(cls, state: Database) -> Self:
        """Reads the database. Tournaments of earlier versions become those of the user of this process."""
        await state.transact(assign_owner, user_name())
        return cls(await state.transact(read_owners))

    async def register(self, state: Database, tournaments: Mapping[str, Ownership]) -> None:
        """Records the tournaments that are not known, and their owners."""
        new = {name: owned for name, owned in tournaments.items() if name not in self._known}
        if new:
            await state.transact(add_owners, new)
            for name, owned in new.items():
                self.learn(name, owned)

    def learn(self, tournament_id: str, ownership: Ownership) -> None:
        """Remembers the owner of a tournament, unless it is known."""
        self._known.setdefault(tournament_id, ownership)

    def expect(self, tournament_ids: Iterable[str]) -> None:
        """Remembers that tournaments exist whose owner is not known; only services and operators reach them."""
        self._unowned.update(tournament_ids)

    def forget(self, tournament_id: str) -> None:
        """Forgets a tournament that was deleted."""
        self._known.pop(tournament_id, None)
        self._unowned.discard(tournament_id)

    def measure(self, found: Stored) -> None:
        """Remembers the bytes of the checkpoint files of each tournament."""
        self._stored_bytes = found.kept_bytes

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

    def check_known(self, tournament_id: str, caller: Principal | None) -> None:
        """Checks that a tournament exists; the guard of the server has checked that the caller may see it.

        Args:
            tournament_id: The tournament.
            caller: Who makes the request; None: the user of this process.

        Raises:
            NotFound: There is no such tournament. The message suggests tournaments that the caller may see.
        """
        if tournament_id in self._known or tournament_id in self._unowned:
            return
        seen = visible(caller, self) if caller else None
        raise NotFound(unknown_tournament(tournament_id, [one for one in self._known if seen is None or one in seen]))

    def ownership_of(self, tournament_id: str) -> Ownership | None:
        """Returns the owner of a tournament; None if it is not known."""
        known = self._known.get(tournament_id)
        return known or (Ownership("") if tournament_id in self._unowned else None)

    def tournament_ids(self) -> Iterable[str]:
        """Returns the ids of all tournaments, oldest first."""
        return self._known


def ownership_in(request: GenerateAgentRequest | RegisteredTournament) -> Ownership:
    """Returns the owner of the tournament of a request."""
    return Ownership(request.owner or user_name(), request.namespace)


# --- records -----------------------------------------------------------------------------------------------------


def add_owner(transaction: Transaction, tournament_id: str, ownership: Ownership) -> None:
    """Records the owner of a tournament; a second call has no effect."""
    statement = "INSERT INTO owners VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
    transaction.execute(statement, tournament_id, ownership.owner, ownership.namespace)


def add_owners(transaction: Transaction, tournaments: Mapping[str, Ownership]) -> None:
    """Records the owners of tournaments; has no effect for tournaments that are recorded."""
    for tournament_id, ownership in tournaments.items():
        add_owner(transaction, tournament_id, ownership)


def assign_owner(transaction: Transaction, owner: str) -> None:
    """Assigns an owner to tournaments that have none, because a version without owners recorded them."""
    transaction.execute(
        "INSERT INTO owners SELECT tournament_id, ?, '' FROM tournaments WHERE true ON CONFLICT DO NOTHING", owner
    )


def read_owners(transaction: Transaction) -> dict[str, Ownership]:
    """Returns the owner of each tournament, by its id."""
    rows = transaction.execute("SELECT tournament_id, owner, namespace FROM owners ORDER BY rowid")
    return {tournament_id: Ownership(owner, namespace) for tournament_id, owner, namespace in rows}
