"""Deletes the rows of a tournament, and records whose objects are still to be deleted from the checkpoint store."""

from leaderboard.store.generation_marks import lower_marks
from podrace.database import Transaction

TABLES = ("submissions", "snapshots", "held", "refusals", "owners", "agents", "tournaments")


def delete_rows(transaction: Transaction, tournament_id: str) -> None:
    """Deletes the rows of a tournament; has no effect if there are none."""
    agents = "SELECT agent_id FROM agents WHERE tournament_id = ?"
    candidates = "SELECT candidate_id FROM submissions WHERE tournament_id = ?"
    transaction.execute(
        "INSERT INTO deletions SELECT tournament_id, max(number) + 1 FROM agents WHERE tournament_id = ?"
        " GROUP BY tournament_id ON CONFLICT DO NOTHING",
        tournament_id,
    )
    transaction.execute(f"DELETE FROM proposals WHERE agent_id IN ({agents})", tournament_id)
    outcomes = f"outcome IN ({agents}) OR outcome IN ({candidates})"
    transaction.execute(f"DELETE FROM requests WHERE {outcomes}", tournament_id, tournament_id)
    for table in TABLES:
        transaction.execute(f"DELETE FROM {table} WHERE tournament_id = ?", tournament_id)
    lower_marks(transaction)


def pending_deletions(transaction: Transaction) -> list[tuple[str, int]]:
    """Returns the deleted tournaments whose objects may still be in the store, each with its number of agents."""
    rows = transaction.execute("SELECT tournament_id, agents FROM deletions ORDER BY tournament_id")
    return [(tournament_id, agents) for tournament_id, agents in rows]


def finish_deletion(transaction: Transaction, tournament_id: str) -> None:
    """Records that the objects of a tournament have been deleted."""
    transaction.execute("DELETE FROM deletions WHERE tournament_id = ?", tournament_id)
