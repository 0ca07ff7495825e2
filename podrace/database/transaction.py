"""Defines what a change receives: the time, and the connection within its transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from podrace.database.format import LARGEST_NUMBER
from podrace.errors import InvalidArgument


class StatementRows(Protocol):
    """The result of a statement."""

    def fetchall(self) -> list[Any]:
        """Returns its rows; none for a statement that has no result."""
        ...


class Connection(Protocol):
    """What changes use of a connection; `sqlite3.Connection` has it."""

    def execute(self, statement: str, values: Sequence[Any] = ..., /) -> StatementRows:
        """Executes a statement in the dialect of SQLite, with `?` for each value.

        Raises:
            OverflowError: An integer does not fit into 64 bits.
        """
        ...


@dataclass(frozen=True)
class Transaction:
    """Access of one change to the database."""

    now: float
    """Wall time, seconds since 1970."""
    connection: Connection

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Executes one statement and returns its rows.

        Raises:
            InvalidArgument: An integer is too large for the database; such a value can only come from a request.
        """
        try:
            return self.connection.execute(statement, values).fetchall()
        except OverflowError:
            largest = max(value for value in values if isinstance(value, int))
            raise InvalidArgument(f"the number {largest} is too large: at most {LARGEST_NUMBER}") from None
