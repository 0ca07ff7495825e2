"""Runs the database of a service: changes are functions of a transaction, executed one after the other by one thread.

`database.py` has the thread, `format.py` what identifies a database, `transaction.py` what a change receives.
`sqlite.py` opens a file; `postgresql.py` opens a database of a PostgreSQL server, whose one writer `leadership.py`
determines, and `dialect.py` translates the statements for it. `outage.py` waits while the server cannot be used.
`filtering.py` writes the filters of lists as SQL.
"""

from podrace.database.database import Database
from podrace.database.format import LARGEST_NUMBER, Format
from podrace.database.location import DatabaseLocation, open_database
from podrace.database.transaction import Transaction

__all__ = ["LARGEST_NUMBER", "Database", "DatabaseLocation", "Format", "Transaction", "open_database"]
