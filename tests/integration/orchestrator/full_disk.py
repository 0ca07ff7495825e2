"""Makes the disk of the orchestrator's database full, without a file system that is."""

import sqlite3

import pytest

from podrace.database.sqlite import SqliteEngine

FULL = "database or disk is full"


class FullDisk:
    """While `full` is true, no transaction that changed something can be committed; reading works.

    disk = FullDisk(monkeypatch)
    disk.full = True
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full, changes = False, 0
        begin, commit = SqliteEngine.begin, SqliteEngine.commit

        def begin_counting(engine: SqliteEngine) -> None:
            nonlocal changes
            begin(engine)
            changes = engine.connection.total_changes

        def commit_if_there_is_space(engine: SqliteEngine) -> None:
            if self.full and engine.connection.total_changes > changes:
                error = sqlite3.OperationalError(FULL)
                error.sqlite_errorname = "SQLITE_FULL"
                raise error
            commit(engine)

        monkeypatch.setattr(SqliteEngine, "begin", begin_counting)
        monkeypatch.setattr(SqliteEngine, "commit", commit_if_there_is_space)
