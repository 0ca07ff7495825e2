"""Runs the queries that depend on whose a tournament is: lists of what a caller may see, and the default owner."""

import json
from collections.abc import Collection

from orchestrator.state.database import Transaction
from orchestrator.state.records import (
    END_STATES,
    EventRecord,
    OwnershipRecord,
    TournamentRecord,
    events_after,
    find,
    select,
)
from podrace.access.ownership import Ownership

AMONG = "tournament_id IN (SELECT value FROM json_each(?))"


def assign_owner(transaction: Transaction, owner: str) -> None:
    """Gives the tournaments without an owner to one; versions before owners existed have created them."""
    transaction.execute("INSERT OR IGNORE INTO ownerships SELECT tournament_id, ?, '' FROM tournaments", owner)


def unended_tournaments(transaction: Transaction, ownership: Ownership) -> int:
    """Returns the number of tournaments of an owner that have not ended."""
    statement = (
        "SELECT COUNT(*) FROM tournaments JOIN ownerships USING (tournament_id)"
        " WHERE owner = ? AND namespace = ? AND state NOT IN (SELECT value FROM json_each(?))"
    )
    rows = transaction.execute(statement, ownership.owner, ownership.namespace, json.dumps(END_STATES))
    return int(next(iter(rows))[0])


def ownership_of(transaction: Transaction, tournament_id: str) -> Ownership:
    """Returns whose a tournament is."""
    found = find(transaction, OwnershipRecord, tournament_id)
    return Ownership(found.owner, found.namespace) if found else Ownership("")


def tournaments_before(
    transaction: Transaction, visible: Collection[str] | None, sequence: int, limit: int
) -> list[TournamentRecord]:
    """Returns visible tournaments (None: all are) with a lower sequence number, newest first."""
    if visible is None:
        return select(transaction, TournamentRecord, "sequence < ? ORDER BY sequence DESC LIMIT ?", sequence, limit)
    condition = f"{AMONG} AND sequence < ? ORDER BY sequence DESC LIMIT ?"
    return select(transaction, TournamentRecord, condition, json.dumps(sorted(visible)), sequence, limit)


def events_of_visible(
    transaction: Transaction, visible: Collection[str] | None, sequence: int, limit: int
) -> list[EventRecord]:
    """Returns the events of visible tournaments (None: all are) after a sequence number, oldest first."""
    if visible is None:
        return events_after(transaction, "", sequence, limit)
    condition = f"{AMONG} AND sequence > ? ORDER BY sequence LIMIT ?"
    return select(transaction, EventRecord, condition, json.dumps(sorted(visible)), sequence, limit)
