"""Tests that lists of the leaderboard are the same with SQLite and PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from postgresql_server import PostgresqlServer

from leaderboard.checkpoints.archiving import kept_records
from leaderboard.queries import page_of_candidates
from leaderboard.snapshots import page_of_snapshots
from leaderboard.store.schema import DATABASE_FORMAT
from leaderboard.store.snapshot_records import add_snapshot
from podrace.database import Database, DatabaseLocation, Transaction, open_database
from podrace.errors import InvalidArgument
from podrace.leaderboard.v1.leaderboard_pb2 import ListCandidatesRequest, ListSnapshotsRequest, Snapshot


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    if request.param == "sqlite":
        location = DatabaseLocation.of(str(tmp_path / "leaderboard.sqlite"))
    else:
        location = DatabaseLocation.of(request.getfixturevalue("postgresql").new_url())
    opened, _ = await open_database(location, DATABASE_FORMAT, lambda: 1.0)
    yield opened
    opened.close()


def add_three(transaction: Transaction) -> None:
    for number in range(3):
        add_snapshot(transaction, Snapshot(tournament_id="race", agent_id=f"race-a{number}", number=number))


async def test_lists_with_a_filter_or_an_order_are_read(database: Database) -> None:
    await database.transact(add_three)
    request = ListSnapshotsRequest(tournament_id="race", filter="number >= 1", order_by="number desc")
    page = await database.transact(page_of_snapshots, request)
    assert [snapshot.number for snapshot in page.snapshots] == [2, 1]
    submissions = ListCandidatesRequest(tournament_id="race", all_submissions=True, order_by="score")
    assert not (await database.transact(page_of_candidates, submissions)).candidates


async def test_all_records_of_a_tournament_are_archived(database: Database) -> None:
    await database.transact(add_three)
    lines, champion = await database.transact(kept_records, "race")
    assert [line["record"] for line in lines] == ["snapshot"] * 3 + ["board"]
    assert champion == ""


async def test_an_error_about_a_value_does_not_name_the_server(postgresql: PostgresqlServer) -> None:
    location = DatabaseLocation.of(postgresql.new_url())
    database, _ = await open_database(location, DATABASE_FORMAT, lambda: 1.0)
    with pytest.raises(InvalidArgument, match=r"the database refuses a value: .*must not be negative") as refused:
        await database.transact(lambda transaction: transaction.execute("SELECT 1 LIMIT ?", -1))
    database.close()
    assert location.url not in str(refused.value)
