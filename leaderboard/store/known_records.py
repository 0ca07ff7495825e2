"""Reads whether the database is empty, and what an orchestrator that lost its database needs to know."""

from podrace.database import Transaction


def is_empty(transaction: Transaction) -> bool:
    """Whether the database has no tournament with agents, and none that is being deleted."""
    return not any(transaction.execute(f"SELECT 1 FROM {table} LIMIT 1") for table in ("tournaments", "deletions"))


def first_positions(transaction: Transaction, after: int, limit: int) -> list[tuple[int, str]]:
    """Returns tournaments by the position of their first agent, those after a position, each with that position."""
    rows = transaction.execute(
        "SELECT min(generation), tournament_id FROM agents GROUP BY tournament_id"
        " HAVING min(generation) > ? ORDER BY min(generation) LIMIT ?",
        after,
        limit,
    )
    return [(int(position), tournament_id) for position, tournament_id in rows]


def highest_submitted_epoch(transaction: Transaction) -> int:
    """Returns the highest lease epoch of a submission; 0: there is none."""
    return int(transaction.execute("SELECT coalesce(max(lease_epoch), 0) FROM submissions")[0][0])
