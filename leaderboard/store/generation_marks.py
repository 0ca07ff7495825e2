"""Records marks in the order in which agents are generated: at each one, the position of the last agent.

The garbage collection sets them at times that it chooses, and needs the last two.
"""

from podrace.database import Transaction

LAST_POSITION = "(SELECT coalesce(max(generation), 0) FROM agents)"


def add_mark(transaction: Transaction) -> None:
    """Sets a mark now, and forgets all but the last two."""
    transaction.execute(
        f"INSERT INTO generation_marks SELECT coalesce(max(mark), 0) + 1, {LAST_POSITION} FROM generation_marks"
    )
    transaction.execute("DELETE FROM generation_marks WHERE mark < (SELECT max(mark) - 1 FROM generation_marks)")


def add_first_mark(transaction: Transaction) -> None:
    """Sets a mark if there is none."""
    if not transaction.execute("SELECT mark FROM generation_marks LIMIT 1"):
        add_mark(transaction)


def earlier_mark(transaction: Transaction) -> int:
    """Returns the position of the last mark but one; of the only mark if there is one."""
    return int(transaction.execute("SELECT position FROM generation_marks ORDER BY mark LIMIT 1")[0][0])


def lower_marks(transaction: Transaction) -> None:
    """Lowers marks to the position of the last agent, because positions above it are assigned again."""
    transaction.execute(f"UPDATE generation_marks SET position = {LAST_POSITION} WHERE position > {LAST_POSITION}")
