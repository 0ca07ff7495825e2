import os
import socket
import stat
from pathlib import Path

import pytest

from podrace.errors import FailedPrecondition
from podrace.mesh.home import Folders
from podrace.mesh.home_lock import LockDecision, Use, claim, decide


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    made = Folders.of(tmp_path / "home", tmp_path)
    made.make_home()
    made.make_runtime()
    return made


@pytest.mark.parametrize(
    ("wanted", "held", "answer"),
    [
        (Use.QUERY, Use.QUERY, LockDecision.JOIN),
        (Use.QUERY, Use.EVALUATE, LockDecision.JOIN),
        (Use.QUERY, Use.TRAIN, LockDecision.JOIN),
        (Use.EVALUATE, Use.QUERY, LockDecision.WAIT),
        (Use.EVALUATE, Use.EVALUATE, LockDecision.JOIN),
        (Use.EVALUATE, Use.TRAIN, LockDecision.JOIN),
        (Use.TRAIN, Use.QUERY, LockDecision.WAIT),
        (Use.TRAIN, Use.EVALUATE, LockDecision.REFUSE),
        (Use.TRAIN, Use.TRAIN, LockDecision.REFUSE),
    ],
)
def test_training_never_joins_a_mesh_and_pods_are_not_expected_from_a_query(
    wanted: Use, held: Use, answer: LockDecision
) -> None:
    assert decide(wanted, held) is answer


async def test_the_lock_can_be_taken_again_after_its_release(folders: Folders) -> None:
    for _ in range(2):
        async with claim(folders, Use.TRAIN, deadline_seconds=1.0) as owned:
            assert owned


async def test_training_on_a_home_with_a_mesh_is_refused_with_its_pid(folders: Folders) -> None:
    async with claim(folders, Use.TRAIN, deadline_seconds=1.0):
        with pytest.raises(FailedPrecondition) as refusal:
            async with claim(folders, Use.TRAIN, deadline_seconds=1.0):
                pytest.fail("two meshes on one home")
    assert refusal.value.message == (
        f"a mesh is running on {folders.home} (pid {os.getpid()}, to train); use another --home, or --orchestrator"
        f" unix:{folders.orchestrator_socket}"
    )


async def test_a_query_joins_a_mesh_that_answers(folders: Folders) -> None:
    async with claim(folders, Use.TRAIN, deadline_seconds=1.0):
        with socket.socket(socket.AF_UNIX) as orchestrator:
            orchestrator.bind(str(folders.orchestrator_socket))
            orchestrator.listen()
            async with claim(folders, Use.QUERY, deadline_seconds=1.0) as owned:
                assert not owned


async def test_waiting_for_a_mesh_that_neither_answers_nor_stops_has_a_deadline(folders: Folders) -> None:
    async with claim(folders, Use.TRAIN, deadline_seconds=1.0):
        with pytest.raises(FailedPrecondition, match=r"does not answer \(waited 0\.01 s\)"):
            async with claim(folders, Use.QUERY, deadline_seconds=0.01):
                pytest.fail("there is no mesh to join")


async def test_an_error_in_the_block_is_not_mistaken_for_the_deadline(folders: Folders) -> None:
    with pytest.raises(TimeoutError, match="mine"):
        async with claim(folders, Use.QUERY, deadline_seconds=1.0):
            raise TimeoutError("mine")


def test_a_home_has_the_same_folders_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "home")
    assert Folders.of(tmp_path / "link") == Folders.of(tmp_path / "home")
    assert Folders.of(tmp_path / "home").runtime != Folders.of(tmp_path / "other").runtime


def test_sockets_are_private_and_short(folders: Folders) -> None:
    assert stat.S_IMODE(folders.runtime.stat().st_mode) == 0o700
    assert len(folders.runtime.name) == len("podrace-") + 8


def test_a_runtime_folder_that_may_belong_to_another_user_is_refused(tmp_path: Path) -> None:
    folders = Folders.of(tmp_path / "home", tmp_path)
    (tmp_path / "elsewhere").mkdir()
    folders.runtime.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FailedPrecondition, match="is a symbolic link; remove it or set TMPDIR"):
        folders.make_runtime()
