"""The commands of the documents back up and restore databases of PostgreSQL; no lease epoch is given twice."""

import os
import re
import subprocess
from pathlib import Path

from postgresql_server import PostgresqlServer, programs

from leaderboard.store import schema as board
from orchestrator.decisions.restoration import keeps_lease, next_epoch
from orchestrator.state import database as state
from orchestrator.state.saved_state import restored_epoch
from podrace.database import DatabaseLocation, Transaction, open_database

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"


def commands() -> list[str]:
    """The two blocks of the section: back up, and restore."""
    section = PAGE.read_text().partition("#### Backups of PostgreSQL")[2].partition("\n##")[0]
    found = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    assert len(found) == 2
    return found


def run(block: str, url: str, folder: Path) -> None:
    environ = {**os.environ, "DATABASE": url, "PATH": f"{programs()}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-ec", block], cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def insert(transaction: Transaction, name: str) -> None:
    transaction.execute("INSERT INTO tournaments (tournament_id, spec) VALUES (?, ?)", name, b"\0\xff")


def names(transaction: Transaction) -> list[str]:
    return [row[0] for row in transaction.execute("SELECT tournament_id FROM tournaments ORDER BY tournament_id")]


async def test_a_dump_is_restored_and_marked(postgresql: PostgresqlServer, tmp_path: Path) -> None:
    url, (back_up, restore) = postgresql.new_url(), commands()
    location, formats = DatabaseLocation.of(url), (state.DATABASE_FORMAT, board.DATABASE_FORMAT)
    for format in formats:
        database, _ = await open_database(location, format, lambda: 1.0)
        await database.transact(insert, "kept")
        if format is state.DATABASE_FORMAT:
            run(back_up, url, tmp_path)  # while a service runs
        await database.transact(insert, "later")
        database.close()
        if format is board.DATABASE_FORMAT:
            run(back_up, url, tmp_path)
    database, _ = await open_database(location, state.DATABASE_FORMAT, lambda: 1.0)
    await database.transact(insert, "lost")
    database.close()
    for _ in range(2):
        run(restore, url, tmp_path)
        database, _ = await open_database(location, state.DATABASE_FORMAT, lambda: 1.0)
        assert await database.transact(names) == ["kept", "later"]
        epoch = await database.transact(restored_epoch)
        database.close()
        assert keeps_lease(1, 7, epoch), "a pod keeps a lease that was granted after the dump"
        assert 7 < next_epoch(1, epoch) < 2**62
    database, _ = await open_database(location, board.DATABASE_FORMAT, lambda: 1.0)
    assert await database.transact(names) == ["kept", "later"]
    database.close()
