"""`podrace backup`, `podrace restore` and `podrace migrate --undo` on the database files of a home."""

import asyncio
import contextlib
import fcntl
import shutil
import signal
import socket
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_databases import APPLICATION_IDS, insert, make_databases, numbers

from podrace import tasks
from podrace.checkpoint.v1.checkpoint_pb2 import Pointer
from podrace.checkpoint_store import open_store
from podrace.cli import session
from podrace.cli.commands import backup
from podrace.database.format import moved
from podrace.mesh.home import Folders


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with the databases of both services."""
    return make_databases(tmp_path / "home")


def test_a_home_without_backups_lists_none(type_: Any, home: Path) -> None:
    assert type_("backup", "--list", "--home", str(home), "--json").json == []


def test_a_restored_database_is_that_of_its_backup(type_: Any, home: Path) -> None:
    insert(home / "orchestrator.sqlite", 1)
    made = type_("backup", "--home", str(home), "--json").json
    assert {one["service"] for one in made} == set(APPLICATION_IDS)
    insert(home / "orchestrator.sqlite", 2)
    assert type_("restore", "--home", str(home), "--json").code != 0, "it needs --replace"
    assert type_("restore", "--home", str(home), "--replace", "--json").json == made
    assert numbers(home / "orchestrator.sqlite") == [1]
    listed = type_("backup", "--list", "--home", str(home), "--json").json
    assert [one["manifest_digest"] for one in listed] == [one["manifest_digest"] for one in made]


def test_a_home_whose_successor_was_restored_elsewhere_makes_no_more_backups(
    type_: Any, home: Path, tmp_path: Path
) -> None:
    store = ("--store", f"folder://{Folders.of(home).store}")
    insert(home / "orchestrator.sqlite", 1)
    assert type_("backup", "--home", str(home), *store).code == 0
    assert type_("backup", "--home", str(home), *store).code == 0, "the same home continues to make backups"
    successor = tmp_path / "successor"
    assert type_("restore", "--home", str(successor), *store).code == 0
    insert(home / "orchestrator.sqlite", 2)
    refused = type_("backup", "--home", str(home), *store)
    assert refused.code != 0
    assert f"database {home / 'orchestrator.sqlite'}: is out of date" in refused.err
    assert "podrace restore --replace" in refused.err
    newest = type_("backup", "--home", str(successor), *store, "--json").json
    assert type_("restore", "--home", str(home), *store, "--replace", "--json").json == newest
    assert numbers(home / "orchestrator.sqlite") == [1]


def test_backups_may_be_in_another_store_than_the_checkpoints_and_alternate_between_both(
    type_: Any, home: Path, tmp_path: Path
) -> None:
    elsewhere = ("--store", f"folder://{tmp_path}/backups")
    given: tuple[str, ...]
    for number, given in enumerate([(), (), elsewhere, (), elsewhere]):
        insert(home / "orchestrator.sqlite", number)
        assert type_("backup", "--home", str(home), *given).code == 0
    assert len(type_("backup", "--list", "--home", str(home), "--json").json) == 6
    assert len(type_("backup", "--list", "--home", str(home), *elsewhere, "--json").json) == 4
    insert(home / "orchestrator.sqlite", 5)
    assert type_("restore", "--home", str(home), "--replace", *elsewhere).code == 0
    assert numbers(home / "orchestrator.sqlite") == [0, 1, 2, 3, 4]
    assert not Folders.of(home).store_note.exists()


def test_a_new_home_records_the_store_of_its_backups_only_if_the_checkpoints_are_there(
    type_: Any, home: Path, tmp_path: Path
) -> None:
    uri = f"folder://{tmp_path}/elsewhere"
    assert type_("backup", "--home", str(home), "--store", uri).code == 0
    first, second = tmp_path / "first", tmp_path / "second"
    assert type_("restore", "--home", str(first), "--store", uri).code == 0
    assert not Folders.of(first).store_note.exists()
    open_store(uri).swap_pointer("t-a1", Pointer(agent_id="t-a1"), None)
    assert type_("restore", "--home", str(second), "--store", uri).code == 0
    assert Folders.of(second).store_note.read_text().strip() == uri


@pytest.fixture
def running_home(home: Path) -> Iterator[Path]:
    """A home whose orchestrator accepts connections and answers nothing."""
    socket_path = Folders.of(home).orchestrator_socket
    socket_path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(socket_path))
        listening.listen()
        yield home
    shutil.rmtree(socket_path.parent)


def test_options_that_the_services_of_a_running_mesh_decide_are_refused(
    type_: Any, running_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "REMOTE_SECONDS", 0.0)
    answer = type_("backup", "--home", str(running_home), "--store", "folder:///b", "--name", "other")
    assert answer.code == 2
    assert "use their own store and backup.name; leave out --store and --name" in answer.err
    remote = ("--orchestrator", "127.0.0.1:1")
    assert "leave out --list and --name" in type_("backup", *remote, "--list", "--name", "other").err
    monkeypatch.setenv("PODRACE_STORE", "folder:///b")
    unreachable = type_("backup", *remote)
    assert unreachable.code == 1
    assert "nothing serves at 127.0.0.1:1" in unreachable.err, "the variable is for homes; the connection is checked"


def test_an_interrupted_restore_keeps_the_lock_of_the_home_until_its_thread_has_finished(
    type_: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked: list[bool] = []

    def restore_all(*arguments: Any, replace: bool) -> list[Any]:
        loop.call_soon_threadsafe(signal.raise_signal, signal.SIGINT)
        # The loop has handled the interrupt, and the cancellation that follows from it.
        for _ in range(10):
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()
        with Folders.of(home).lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                locked.append(True)
        return []

    loop: asyncio.AbstractEventLoop

    async def finish_in_thread(*arguments: Any, **keywords: Any) -> Any:
        nonlocal loop
        loop = asyncio.get_running_loop()
        return await tasks.finish_in_thread(*arguments, **keywords)

    monkeypatch.setattr(backup, "finish_in_thread", finish_in_thread)
    monkeypatch.setattr(backup, "_restore_all", restore_all)
    assert type_("restore", "--home", str(home)).code == 130
    assert locked == [True]


def test_the_backups_of_a_missing_home_can_be_listed_only_in_a_named_store(type_: Any, tmp_path: Path) -> None:
    given = ("--list", "--home", str(tmp_path / "missing"))
    answer = type_("backup", *given)
    assert (answer.code, "there is no such home" in answer.err) == (2, True)
    assert type_("backup", *given, "--store", f"folder://{tmp_path}/backups", "--json").json == []
    assert not (tmp_path / "missing").exists()


def kill_a_service_after(path: Path, number: int) -> None:
    """Leaves the files of a database as a killed service does: the last change is only in the log."""
    with contextlib.closing(sqlite3.connect(path)) as opened:
        opened.execute("PRAGMA journal_mode = WAL")
        opened.execute("INSERT INTO numbers VALUES (?)", (number,))
        opened.commit()
        for file in (path, Path(f"{path}-wal")):
            shutil.copy(file, path.parent / f"{file.name}.copy")
    for file in (path, Path(f"{path}-wal")):
        (path.parent / f"{file.name}.copy").rename(file)


def test_replaced_databases_keep_every_change_and_are_never_overwritten(type_: Any, home: Path) -> None:
    file = home / "orchestrator.sqlite"
    type_("backup", "--home", str(home))
    for number in (1, 2):
        kill_a_service_after(file, number)
        assert type_("restore", "--home", str(home), "--replace").code == 0
        assert numbers(file) == []
    assert numbers(home / "orchestrator.sqlite.replaced-1") == [1]
    assert numbers(home / "orchestrator.sqlite.replaced-2") == [2]


def test_a_log_that_was_left_behind_is_not_applied_to_the_restored_database(type_: Any, home: Path) -> None:
    file = home / "orchestrator.sqlite"
    type_("backup", "--home", str(home))
    kill_a_service_after(file, 1)
    file.unlink()
    (home / "leaderboard.sqlite").unlink()
    assert type_("restore", "--home", str(home)).code == 0
    assert numbers(file) == []
    assert (home / "orchestrator.sqlite.replaced-1-wal").exists()


def test_a_restore_that_fails_leaves_the_databases_where_they_are(type_: Any, home: Path) -> None:
    insert(home / "orchestrator.sqlite", 1)
    made = type_("backup", "--home", str(home), "--json").json[0]["manifest_digest"]
    (manifest,) = home.rglob(f"objects/*/{made}")
    manifest.write_bytes(b"damaged")
    assert type_("restore", "--home", str(home), "--replace").code != 0
    assert numbers(home / "orchestrator.sqlite") == [1]
    assert not list(home.glob("*.replaced*"))


def test_the_backup_before_an_upgrade_can_be_restored_after_later_ones(type_: Any, home: Path) -> None:
    """As docs/cluster.md describes the way back: `podrace restore --at`, once for each service."""
    before = type_("backup", "--home", str(home), "--json").json
    for number in range(3):
        for service in APPLICATION_IDS:
            insert(home / f"{service}.sqlite", number)
        type_("backup", "--home", str(home))
    for one in before:
        short = one["manifest_digest"][:12]
        assert type_("restore", "--home", str(home), "--replace", "--at", short, "--json").json == [one]
    assert [numbers(home / f"{service}.sqlite") for service in APPLICATION_IDS] == [[], []]


@pytest.mark.parametrize("service", APPLICATION_IDS)
def test_one_database_is_restored_in_a_folder_of_root_that_names_no_store(
    type_: Any, home: Path, tmp_path: Path, service: str
) -> None:
    """As in a volume of a cluster, whose folder belongs to root and to the group of the process."""
    made = {one["service"]: one for one in type_("backup", "--home", str(home), "--json").json}
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o2775)
    file = volume / f"{service}.sqlite"
    shutil.copyfile(home / file.name, file)
    insert(file, 1)
    given = ("--store", f"folder://{Folders.of(home).store}", "--database", str(file))
    assert type_("restore", *given).code != 0, "it needs --replace"
    at = made[service]["manifest_digest"][:12]
    assert type_("restore", *given, "--replace", "--at", at, "--json").json == [made[service]]
    assert numbers(file) == []
    assert {each.name for each in volume.iterdir()} == {file.name, f"{file.name}.replaced-1"}
    (other,) = made.keys() - {service}
    assert type_("restore", *given, "--replace", "--at", made[other]["manifest_digest"]).code == 2


def test_a_database_that_its_service_has_open_is_not_replaced_and_a_damaged_one_is(
    type_: Any, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "LOCK_SECONDS", 0.0)
    type_("backup", "--home", str(home))
    file = tmp_path / "leaderboard.sqlite"
    shutil.copyfile(home / file.name, file)
    given = ("--store", f"folder://{Folders.of(home).store}", "--database", str(file), "--replace")
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as service:
        service.execute("BEGIN EXCLUSIVE")
        assert "its service has it open; stop it first" in type_("restore", *given).err
    with contextlib.closing(sqlite3.connect(home / file.name, isolation_level=None)) as service:
        service.execute("BEGIN EXCLUSIVE")
        assert "its service has it open; stop it first" in type_("restore", "--home", str(home), "--replace").err
    file.write_bytes(b"damaged" * 1000)
    assert type_("restore", *given).code == 0
    assert numbers(file) == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ("--database", "/data/other.sqlite", "--store", "/s"),
            "name a file orchestrator.sqlite or leaderboard.sqlite",
        ),
        (("--database", "/data/leaderboard.sqlite"), "also name the store of the backups by --store"),
    ],
)
def test_a_database_that_cannot_be_restored_alone_is_refused(type_: Any, given: tuple[str, ...], message: str) -> None:
    answer = type_("restore", *given)
    assert answer.code == 2
    assert message in answer.err


def test_a_beginning_that_several_backups_have_restores_none_of_them(type_: Any, home: Path) -> None:
    file = home / "orchestrator.sqlite"
    beginnings: Counter[str] = Counter()
    while max(beginnings.values(), default=0) < 2:
        insert(file, beginnings.total())
        made = type_("backup", "--home", str(home), "--json").json
        beginnings.update(one["manifest_digest"][0] for one in made)
    before = numbers(file)
    ((shared, count),) = beginnings.most_common(1)
    answer = type_("restore", "--home", str(home), "--replace", "--at", shared)
    assert answer.code == 2
    assert f"backup '{shared}' is ambiguous, it matches {count}:" in answer.err
    assert numbers(file) == before
    assert not list(home.glob("*.replaced*"))


def test_a_beginning_that_no_backup_has_is_refused(type_: Any, home: Path) -> None:
    type_("backup", "--home", str(home))
    answer = type_("restore", "--home", str(home), "--replace", "--at", "x")
    assert answer.code == 2
    assert "--at: unknown backup 'x'" in answer.err


def test_a_damaged_newest_backup_is_replaced_by_the_one_before_it_or_by_a_named_one(type_: Any, home: Path) -> None:
    file = home / "leaderboard.sqlite"
    made = []
    for number in range(2):
        insert(file, number)
        made.append(type_("backup", "--home", str(home), "--json").json[1]["manifest_digest"])
    (manifest,) = home.rglob(f"objects/*/{made[1]}")
    manifest.write_bytes(b"damaged")
    assert type_("restore", "--home", str(home), "--replace", "--json").json[1]["manifest_digest"] == made[0]
    assert numbers(file) == [0]
    (restored,) = type_("restore", "--home", str(home), "--replace", "--at", made[0], "--json").json
    assert restored["manifest_digest"] == made[0]


def test_a_file_that_was_moved_can_be_opened_again_after_undo(type_: Any, home: Path) -> None:
    pytest.importorskip("psycopg")
    file = home / "leaderboard.sqlite"
    with contextlib.closing(sqlite3.connect(file)) as opened:
        opened.execute(f"PRAGMA application_id = {moved(APPLICATION_IDS['leaderboard'])}")
    answer = type_("migrate", str(file), "--undo", "--json")
    assert answer.json == {"service": "leaderboard", "file": str(file)}
    assert type_("migrate", str(file), "--undo").code != 0, "it is not marked any more"
