"""Runs the queries that depend on the owner of a tournament, and assigns the default owner."""

from orchestrator.state.database import Transaction
from orchestrator.state.records import (
    END_STATES,
    OwnershipRecord,
    find,
)
from podrace.access.ownership import Ownership


def assign_owner(transaction: Transaction, owner: str) -> None:
    """Assigns an owner to tournaments that have none, because a version without owners created them."""
    transaction.execute(
        "INSERT INTO ownerships SELECT tournament_id, ?, '' FROM tournaments WHERE true ON CONFLICT DO NOTHING", owner
    )


def unended_tournaments(transaction: Transaction, ownership: Ownership) -> int:
    """Returns the number of tournaments of an owner that have not ended."""
    statement = (
        "SELECT COUNT(*) FROM tournaments JOIN ownerships USING (tournament_id)"
        f" WHERE owner = ? AND namespace = ? AND state NOT IN ({', '.join('?' * len(END_STATES))})"
    )
    rows = transaction.execute(statement, ownership.owner, ownership.namespace, *END_STATES)
    return int(next(iter(rows))[0])


def ownership_of(transaction: Transaction, tournament_id: str) -> Ownership:
    """Returns the owner of a tournament."""
    found = find(transaction, OwnershipRecord, tournament_id)
    return Ownership(found.owner, found.namespace) if found else Ownership("")
