"""Texts of PostgreSQL are read as texts, whatever the encoding of the database is."""

import pytest
from postgresql_server import PostgresqlServer as RunningServer

from podrace.database.format import Format
from podrace.database.postgresql import PostgresqlServer

FORMAT = Format("leaderboard", 0x70640001, 1, "CREATE TABLE words (word TEXT)")


@pytest.mark.parametrize("encoding", ["UTF8", "SQL_ASCII"])
def test_a_text_is_no_sequence_of_bytes(postgresql: RunningServer, encoding: str) -> None:
    name = f"encoded_{encoding.lower()}"
    options = f"ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    postgresql.execute(postgresql.url("postgres"), f"CREATE DATABASE {name} {options}")
    connection = PostgresqlServer(postgresql.url(name), "", FORMAT).connect()
    try:
        rows = list(connection.execute("SELECT %s::text", ["größer"]))
    finally:
        connection.close()
    assert [tuple(row) for row in rows] == [("größer",)]
