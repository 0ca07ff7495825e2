"""The command `podrace archive` on a folder."""

from pathlib import Path
from typing import Any

import pytest

from podrace.backup.archives import Archives, json_lines
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.store import check_store
from podrace.client.calls import tournaments
from podrace.discovery.v1.discovery_pb2 import GetServerResponse
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

NAME = "cartpole-abc123"
FILES = {"leaderboard.jsonl.gz": json_lines([{"record": "agent"}]), "champion-policy": b"policy"}


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    store = FolderStore(tmp_path / "store")
    check_store(store)
    Archives(store).write(NAME, FILES, 1.7e9)
    return store


def test_archives_are_listed(type_: Any, store: FolderStore) -> None:
    (listed,) = type_("archive", "--store", store.uri, "--json").json
    assert (listed["tournament_id"], listed["time"], set(listed["files"])) == (NAME, 1.7e9, set(FILES))
    assert NAME in type_("archive", "--store", store.uri).out


def test_an_archive_is_written_to_a_folder_and_nothing_is_overwritten(
    type_: Any, store: FolderStore, tmp_path: Path
) -> None:
    command = ("archive", NAME, "--store", store.uri, "--folder", str(tmp_path / "out"))
    assert type_(*command).code == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == FILES
    answer = type_(*command)
    assert answer.code != 0
    assert "choose another --folder" in answer.err


def test_an_archive_is_deleted_by_its_id_only(type_: Any, store: FolderStore) -> None:
    assert type_("archive", "--delete", "--store", store.uri).code == 2
    assert type_("archive", "other", "--delete", "--store", store.uri).code != 0
    assert type_("archive", NAME, "--delete", "--store", store.uri).code == 0
    assert type_("archive", "--store", store.uri, "--json").json == []


COMMANDS = (("delete", "latest"), ("prune", "--all"))


def answering(monkeypatch: pytest.MonkeyPatch, *features: str) -> None:
    async def get_server(address: str, token: Any) -> GetServerResponse:
        return GetServerResponse(features=features)

    monkeypatch.setattr(tournaments, "get_server", get_server)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_deletion_asks_for_an_archive(
    type_: Any, mesh: Any, known: Any, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    answering(monkeypatch, "archive")
    assert type_(*command, "--archive", "--yes", "--orchestrator", mesh.address).code == 0
    assert {request.archive for request in known.asked(pb.DeleteTournamentRequest)} == {True}


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_deleted_by_a_server_that_cannot_archive(
    type_: Any, mesh: Any, known: Any, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    answering(monkeypatch)
    answer = type_(*command, "--archive", "--yes", "--orchestrator", mesh.address)
    assert answer.code != 0
    assert "this server does not support archives" in answer.err
    assert known.asked(pb.DeleteTournamentRequest) == []
