"""`podrace backup`, `podrace restore` and `podrace migrate --undo` on the database files of a home."""

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from podrace.database import Database, Format
from podrace.database.format import moved

APPLICATION_IDS = {"orchestrator": 0x706F7263, "leaderboard": 0x706F6C62}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with the databases of both services."""
    folder = tmp_path / "home"
    folder.mkdir()
    for service, number in APPLICATION_IDS.items():
        kept = Format(service, number, 1, "CREATE TABLE numbers (number INTEGER)")
        Database.open(folder / f"{service}.sqlite", kept, lambda: 1.0).close()
    return folder


def numbers(path: Path) -> list[int]:
    with contextlib.closing(sqlite3.connect(path)) as opened:
        return [number for (number,) in opened.execute("SELECT number FROM numbers")]


def insert(path: Path, number: int) -> None:
    with contextlib.closing(sqlite3.connect(path)) as opened:
        opened.execute("INSERT INTO numbers VALUES (?)", (number,))
        opened.commit()


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
