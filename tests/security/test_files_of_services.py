"""No other user of the machine can read the databases, the copies and the checkpoints of a service.

Before, a database and its write-ahead log had the mode 0644: every user of a login node could read the tournaments,
scores and hyperparameters of all owners there, and so could user code in pods, which has another user id for that.
"""

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.state.database import DATABASE_FORMAT
from podrace.backup.copies import Backups
from podrace.checkpoint_store.folder import FolderStore
from podrace.database.database import Database
from podrace.errors import FailedPrecondition
from podrace.mesh.service_process import ServiceCommand, ServiceProcess
from podrace.processes.log_rotation import open_log


@pytest.fixture(autouse=True)
def usual_umask() -> object:
    previous = os.umask(0o022)
    yield
    os.umask(previous)


def open_to_others(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file() and stat.S_IMODE(path.stat().st_mode) & 0o077}


async def test_a_new_database_its_log_and_its_copies_are_private(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "state.sqlite", DATABASE_FORMAT, lambda: 1.0)
    try:
        await database.copy_to(tmp_path / "copy.sqlite")
        assert {"state.sqlite", "state.sqlite-wal", "copy.sqlite"} <= {path.name for path in tmp_path.iterdir()}
        assert not open_to_others(tmp_path)
    finally:
        database.close()


def test_an_existing_database_is_closed_to_others_and_the_group_keeps_its_rights(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    Database.open(path, DATABASE_FORMAT, lambda: 1.0).close()
    path.chmod(0o644)
    Database.open(path, DATABASE_FORMAT, lambda: 1.0).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


async def test_a_restored_database_is_private(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "state.sqlite", DATABASE_FORMAT, lambda: 1.0)
    copies = Backups(FolderStore(tmp_path / "store"), "mesh", "orchestrator")
    try:
        await database.copy_to(tmp_path / "copy.sqlite")
        with closing(sqlite3.connect(tmp_path / "copy.sqlite")) as copy:
            database_id = copy.execute("SELECT database_id FROM identity").fetchone()[0]
        copies.claim(1)
        copies.write(tmp_path / "copy.sqlite", 1, database_id, 1.0, hours=0)
    finally:
        database.close()
    copies.restore(tmp_path / "restored.sqlite")
    assert stat.S_IMODE((tmp_path / "restored.sqlite").stat().st_mode) == 0o600


def test_a_log_is_private_also_if_an_earlier_version_made_it(tmp_path: Path) -> None:
    """Before, the logs of services, of the fork server and of continuous training had the mode 0644."""
    (tmp_path / "old.log").write_text("old\n")
    (tmp_path / "old.log").chmod(0o644)
    for name, mode, content in (("new.log", 0o600, "line\n"), ("old.log", 0o640, "old\nline\n")):
        with open_log(tmp_path / name) as log:
            assert log.tell() == len(content) - len("line\n"), "the beginning of what this process writes"
            log.write(b"line\n")
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode
        assert (tmp_path / name).read_text() == content


async def test_the_log_of_a_service_of_a_mesh_is_private(tmp_path: Path) -> None:
    log = tmp_path / "orchestrator.log"
    service = ServiceProcess(ServiceCommand("orchestrator", ("false",), tmp_path / "o.sock", log), notify=print)
    with pytest.raises(FailedPrecondition):
        await service.start()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_others_cannot_enter_a_new_store_and_an_existing_folder_keeps_its_mode(tmp_path: Path) -> None:
    FolderStore(tmp_path / "new")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    (tmp_path / "given").mkdir(mode=0o750)
    FolderStore(tmp_path / "given")
    assert stat.S_IMODE((tmp_path / "given").stat().st_mode) == 0o750
