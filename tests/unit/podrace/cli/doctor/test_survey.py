"""Readings of this machine, with folders and ports that the tests make."""

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from podrace.cli.doctor import gpu, survey
from podrace.cli.doctor.diagnosis import Severity
from podrace.client import discovery
from podrace.discovery.v1 import discovery_pb2
from podrace.errors import FailedPrecondition, Unavailable
from podrace.gpus import Gpu, Reading
from podrace.mesh.home import Folders
from podrace.qualification import supervision
from podrace.qualification.findings import Finding, Grade

REQUIREMENTS = [
    "click>=8.2",
    'torch>=2.11; extra == "agentpod"',
    'gymnasium[mujoco]>=1.2; extra == "mujoco"',
    'mujoco>=4.0; extra == "mujoco"',
    "envpool>=1.2.5; python_version >= \"3.12\" and extra == 'envpool'",
    "envpool==1.2.5; python_version < \"3.12\" and extra == 'envpool'",
]


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders.of(tmp_path / "home", tmp_path)


def test_the_machine_is_read_within_the_limits_of_the_process(folders: Folders, tmp_path: Path) -> None:
    found = survey.read_machine(folders, shared_memory=tmp_path)
    assert found.platform == "linux"
    assert found.cores > 0
    assert 0 < found.available_bytes <= found.memory_bytes
    assert found.shared_memory_bytes
    assert found.runtime_folder == str(folders.runtime)
    assert survey.read_machine(folders, shared_memory=tmp_path / "absent").shared_memory_bytes is None


def test_packages_of_extras_are_read_from_the_metadata() -> None:
    assert survey.extras_of(REQUIREMENTS) == {
        "agentpod": ["torch"],
        "mujoco": ["gymnasium", "mujoco"],
        "envpool": ["envpool"],
    }
    found = survey.read_packages(["click", "no-such-package"])
    assert set(found) == {"podrace", "python", "click"}


def test_a_home_that_does_not_exist_is_not_created(folders: Folders) -> None:
    found = survey.read_home(folders)
    assert (found.problem, found.exists) == ("", False)
    assert found.free_bytes > 0
    assert not folders.home.exists()


def test_a_home_that_others_may_write_to_is_a_problem(folders: Folders) -> None:
    folders.home.mkdir()
    assert survey.read_home(folders).problem == ""
    folders.home.chmod(0o777)
    assert "open to other users" in survey.read_home(folders).problem


def test_a_home_below_a_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be written to" in survey.read_home(Folders.of(tmp_path / "file" / "home")).problem


def test_a_store_that_exists_is_opened_and_one_that_does_not_is_not_created(folders: Folders, tmp_path: Path) -> None:
    found = survey.read_store(folders, "")
    assert (found.problem, found.exists) == ("", False)
    assert not folders.store.exists()
    (tmp_path / "store").mkdir()
    found = survey.read_store(folders, str(tmp_path / "store"))
    assert (found.problem, found.exists) == ("", True)


def test_the_recorded_store_of_a_home_is_opened(folders: Folders, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    folders.home.mkdir()
    folders.store_note.write_text(f"folder://{tmp_path}/elsewhere\n")
    assert survey.read_store(folders, "").uri == f"folder://{tmp_path}/elsewhere"


def test_a_store_of_an_unknown_scheme_is_a_problem(folders: Folders) -> None:
    assert "unknown scheme" in survey.read_store(folders, "s3://bucket").problem


def test_a_port_with_a_listener_is_not_free() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not survey.read_port("orchestrator", port).free
    assert survey.read_port("orchestrator", port).free


async def test_a_server_is_asked_for_version_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podrace.cli.doctor.survey.time", SimpleNamespace(time=lambda: 1000.0))
    answer = discovery_pb2.GetServerResponse(version="0.9.0", launcher="docker", starts_pods=True)

    async def get_server(address: str) -> Any:
        return answer

    monkeypatch.setattr(discovery, "get_server", get_server)
    assert (await survey.read_server("h:1")).skew_seconds is None
    answer.time.FromSeconds(1042)
    found = await survey.read_server("h:1")
    assert (found.version, found.launcher, found.skew_seconds) == ("0.9.0", "docker", 42.0)


async def test_a_server_that_does_not_answer_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    async def get_server(address: str) -> Any:
        raise Unavailable(f"{address} does not answer")

    monkeypatch.setattr(discovery, "get_server", get_server)
    assert (await survey.read_server("h:1")).problem == "h:1 does not answer"


GPU = Gpu("GPU-1", "H100", 0, 80 << 30, 79 << 30)


async def test_gpus_are_examined_by_the_part_machine_of_a_qualification(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[supervision.Request] = []

    async def run(request: supervision.Request, report: Any) -> list[Finding]:
        asked.append(request)
        return [Finding("machine", "NCCL", Grade.PASS, "2.28.9")]

    monkeypatch.setattr(supervision, "check_installed", lambda command: None)
    monkeypatch.setattr(supervision, "run", run)
    (found,) = await gpu.examine(debug=False, read=Reading((GPU,)))
    assert (found.name, found.found, found.severity) == ("NCCL", "2.28.9", Severity.OK)
    assert asked[0].parts == ["machine"]


async def test_gpus_are_listed_where_pytorch_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(command: str) -> None:
        raise FailedPrecondition("torch is not installed")

    monkeypatch.setattr(supervision, "check_installed", check)
    (found,) = await gpu.examine(debug=False, read=Reading((GPU,)))
    assert (found.name, found.severity) == ("GPU-1", Severity.OK)
