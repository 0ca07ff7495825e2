from pathlib import Path
from typing import Any

import pytest

from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.mesh.home import Folders
from podrace.mesh.store_choice import settle


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    folders = Folders.of(tmp_path / "home")
    folders.make_home()
    return folders


def test_a_home_keeps_its_checkpoints_itself(folders: Folders) -> None:
    assert settle(folders, "", writes=True) == f"folder://{folders.home}/store"
    assert not folders.store_note.exists()


def test_a_new_home_remembers_the_store_that_was_named(folders: Folders, tmp_path: Path) -> None:
    uri = f"folder://{tmp_path}/elsewhere"
    assert settle(folders, uri, writes=True) == uri
    folders.leaderboard_database.touch()
    assert settle(folders, "", writes=True) == uri
    assert settle(folders, str(tmp_path / "elsewhere"), writes=True) == uri


def test_a_home_does_not_change_its_store(folders: Folders, tmp_path: Path) -> None:
    folders.leaderboard_database.touch()
    with pytest.raises(FailedPrecondition, match=rf"are in folder://{folders.home}/store, not in folder://.*elsewhere"):
        settle(folders, str(tmp_path / "elsewhere"), writes=True)
    # To look at a home, the variable that is meant for another one is no obstacle.
    assert settle(folders, str(tmp_path / "elsewhere"), writes=False) == f"folder://{folders.home}/store"
    assert not (tmp_path / "elsewhere").exists()


def test_a_store_that_cannot_be_used_is_not_remembered(folders: Folders) -> None:
    with pytest.raises(InvalidArgument, match="unknown scheme"):
        settle(folders, "ftp://x/y", writes=True)
    with pytest.raises(FailedPrecondition, match="/proc/podrace"):
        settle(folders, "/proc/podrace", writes=True)
    assert not folders.store_note.exists()


def test_training_refuses_a_wrong_store_on_one_line(type_: Any, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(
        '[environment]\nid = "CartPole-v1"\n[algorithms.ppo]\n[objective]\ntarget_return = 475\n'
    )
    answer = type_("train", "spec.toml", "--store", "ftp://x/y")
    assert answer.code == 2
    assert "unknown scheme 'ftp'" in answer.err
    assert answer.err.count("\n") == 1
