"""The user ids that the process launcher gives to processes with user code."""

import os
import tempfile
from pathlib import Path

import pytest

from orchestrator.launchers.options import ProcessOptions
from orchestrator.launchers.process.user_ids import CodeUserIds
from podrace.errors import InvalidArgument, Unavailable
from podrace.processes import user_ids
from podrace.tournament.v1.tournament_pb2 import PodSpec

OPTIONS = ProcessOptions(user_code_uid=70_000, user_code_uids=2)


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_ids, "may_change", lambda ids: True)
    monkeypatch.setattr(user_ids, "in_use", lambda: {0, 70_000})


@pytest.mark.usefixtures("as_root")
def test_each_pod_gets_a_user_id_that_no_pod_and_no_process_has(tmp_path: Path) -> None:
    chosen = CodeUserIds(OPTIONS, tmp_path)
    assert chosen.choose({0}) == 70_001
    with pytest.raises(Unavailable, match=r"launchers\.process\.user_code_uids"):
        chosen.choose({0, 70_001})


def test_without_root_or_by_configuration_user_code_has_the_user_id_of_its_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_ids, "may_change", lambda ids: False)
    without = CodeUserIds(OPTIONS, tmp_path)
    assert without.choose(set()) == 0
    assert without.settings(0, "p") == {}
    without.check(PodSpec(plane="grpc"))
    monkeypatch.setattr(user_ids, "may_change", lambda ids: True)
    assert CodeUserIds(ProcessOptions(user_code_uid=0), tmp_path).choose(set()) == 0


@pytest.mark.usefixtures("as_root")
def test_a_pod_whose_roles_could_not_meet_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = CodeUserIds(OPTIONS, tmp_path)
    chosen.check(PodSpec(plane="shared"))
    with pytest.raises(InvalidArgument, match=r"pod\.plane = 'grpc': user code runs as another user"):
        chosen.check(PodSpec(plane="grpc"))
    (tmp_path / "t").mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t"))
    with pytest.raises(InvalidArgument, match=r"who cannot enter .*; set TMPDIR"):
        CodeUserIds(OPTIONS, tmp_path).check(PodSpec(plane="auto"))


@pytest.mark.usefixtures("as_root")
def test_orchestrators_have_different_folders(tmp_path: Path) -> None:
    first, second = (CodeUserIds(OPTIONS, tmp_path / name).settings(70_000, "p") for name in "ab")
    assert first["user_code_uid"] == 70_000
    assert first["user_code_folder"] != second["user_code_folder"]
    assert Path(first["user_code_folder"]).parent.parent == Path(tempfile.gettempdir())


@pytest.mark.usefixtures("as_root")
def test_only_processes_of_its_own_user_ids_are_killed(tmp_path: Path) -> None:
    assert CodeUserIds(OPTIONS, tmp_path).kill(os.geteuid()) == 0
