"""Makes the disk of the orchestrator's database full: seemingly, or really if this user may mount file systems."""

import contextlib
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from podrace.database.sqlite import SqliteEngine

FULL = "database or disk is full"


class FullDisk:
    """While `full` is true, no transaction that changed something can be committed; reading works. `error` names why.

    disk = FullDisk(monkeypatch)
    disk.full = True
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full, self.error, changes = False, "SQLITE_FULL", 0
        begin, commit = SqliteEngine.begin, SqliteEngine.commit

        def begin_counting(engine: SqliteEngine) -> None:
            nonlocal changes
            begin(engine)
            changes = engine.connection.total_changes

        def commit_if_there_is_space(engine: SqliteEngine) -> None:
            if self.full and engine.connection.total_changes > changes:
                error = sqlite3.OperationalError(FULL)
                error.sqlite_errorname = self.error
                raise error
            commit(engine)

        monkeypatch.setattr(SqliteEngine, "begin", begin_counting)
        monkeypatch.setattr(SqliteEngine, "commit", commit_if_there_is_space)


@contextlib.contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[None]:
    """Mounts a small file system at a folder while the block runs; skips the test if this user may not."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("file systems can only be mounted by root")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Leaves no space on the disk of a folder while the block runs."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    try:
        yield
    finally:
        ballast.unlink()
