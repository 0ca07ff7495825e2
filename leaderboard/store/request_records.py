"""Records which outcome each request id had, so that a repeated request has no further effect."""

from leaderboard.store import records
from podrace.database import Transaction
from podrace.errors import AlreadyExists


def hold_request(transaction: Transaction, method: str, request_id: str, outcome: str) -> None:
    """Records the outcome of a request id: the id of an agent or of a candidate.

    No row is written for a request id that equals its outcome, as those of podrace's own pods do.

    Raises:
        AlreadyExists: The request id has another outcome.
    """
    if not request_id:
        return
    rows = transaction.execute("SELECT outcome FROM requests WHERE method = ? AND request_id = ?", method, request_id)
    if rows:
        differs = rows[0][0] != outcome
    elif request_id == outcome:
        differs = False
    else:
        differs = bool(
            records.find_submission(transaction, request_id) or records.find_generation(transaction, request_id)
        )
        transaction.execute("INSERT INTO requests VALUES (?, ?, ?)", method, request_id, outcome)
    if differs:
        raise AlreadyExists(f"{method}: request_id {request_id!r} was used for another request; send a new one")
