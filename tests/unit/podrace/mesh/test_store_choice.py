from pathlib import Path
from typing import Any

import pytest

from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.mesh.home import Folders
from podrace.mesh.store_choice import choose_store


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    folders = Folders.of(tmp_path / "home")
    folders.make_home()
    return folders


def test_the_default_store_is_a_folder_in_the_home(folders: Folders) -> None:
    assert choose_store(folders, "", writes=True) == f"folder://{folders.home}/store"
    assert not folders.store_note.exists()


def test_a_new_home_records_the_named_store(folders: Folders, tmp_path: Path) -> None:
    uri = f"folder://{tmp_path}/elsewhere"
    assert choose_store(folders, uri, writes=True) == uri
    folders.leaderboard_database.touch()
    assert choose_store(folders, "", writes=True) == uri
    assert choose_store(folders, str(tmp_path / "elsewhere"), writes=True) == uri


def test_the_store_of_a_home_cannot_be_changed(folders: Folders, tmp_path: Path) -> None:
    folders.leaderboard_database.touch()
    with pytest.raises(FailedPrecondition, match=rf"are in folder://{folders.home}/store, not in folder://.*elsewhere"):
        choose_store(folders, str(tmp_path / "elsewhere"), writes=True)
    # Commands that write no checkpoints ignore a store that is meant for another home.
    assert choose_store(folders, str(tmp_path / "elsewhere"), writes=False) == f"folder://{folders.home}/store"
    assert not (tmp_path / "elsewhere").exists()


def test_a_store_that_cannot_be_used_is_not_recorded(folders: Folders) -> None:
    with pytest.raises(InvalidArgument, match="unknown scheme"):
        choose_store(folders, "ftp://x/y", writes=True)
    with pytest.raises(FailedPrecondition, match="/proc/podrace"):
        choose_store(folders, "/proc/podrace", writes=True)
    assert not folders.store_note.exists()


def test_training_reports_an_invalid_store_in_one_line(type_: Any, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(
        '[environment]\nid = "CartPole-v1"\n[algorithms.ppo]\n[objective]\ntarget_return = 475\n'
    )
    answer = type_("train", "spec.toml", "--store", "ftp://x/y")
    assert answer.code == 2
    assert "unknown scheme 'ftp'" in answer.err
    assert answer.err.count("\n") == 1
