"""What another user has put instead of a folder, socket, lifeline or region is refused in one line.

Before, the orchestrator and pods used any existing `runtime_folder`, also one of another user who could replace the
sockets in it; commands called a socket whose owner they did not know; and a file of another user in /dev/shm was
mapped, or stopped the clean-up of pods that had exited.
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from podrace import rpc
from podrace.errors import FailedPrecondition
from podrace.mesh import orphan_pods
from podrace.mesh.home import Folders
from podrace.mesh.session import open_mesh
from podrace.ownership import make_own_folder, make_private_folder
from podrace.processes import lifeline
from podrace.tensor.v1.tensor_pb2 import TensorRef
from podrace.tensor_transport.layout import HEADER_BYTES
from podrace.tensor_transport.shared import SharedPlane, remove_regions

ANOTHER_USER = 65534
SECONDS = 60.0
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as name:
        yield Path(name)


def give_away(path: Path) -> Path:
    os.chown(path, ANOTHER_USER, ANOTHER_USER, follow_symlinks=False)
    return path


def as_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that exists now belongs to another user."""
    user = os.geteuid() + 1
    monkeypatch.setattr("os.geteuid", lambda: user)


def test_a_folder_of_another_user_is_refused_and_the_line_says_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = os.geteuid()
    as_another_user(monkeypatch)
    for make in (make_private_folder, make_own_folder):
        with pytest.raises(FailedPrecondition) as refused:
            make(folder, "set TMPDIR to another folder")
        assert refused.value.message == f"{folder} belongs to another user ({owner}); set TMPDIR to another folder"


@pytest.mark.parametrize("mode", [0o755, 0o710])
def test_a_folder_that_others_can_enter_is_refused_for_sockets(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    with pytest.raises(FailedPrecondition, match=rf"mode {mode:04o}\); chmod 700 {folder}, or remove it"):
        make_private_folder(folder, "remove it")


def test_a_home_that_others_can_write_to_is_refused_and_one_that_they_can_read_is_not(folder: Path) -> None:
    home = folder / "home"
    home.mkdir()
    home.chmod(0o755)
    Folders.of(home).make_home()
    home.chmod(0o777)
    with pytest.raises(FailedPrecondition, match=rf"chmod go-w {home}, or choose another folder with --home"):
        Folders.of(home).make_home()


def test_new_folders_pass_their_own_check_whatever_the_umask(folder: Path) -> None:
    previous = os.umask(0)
    try:
        for _ in range(2):
            make_private_folder(folder / "a" / "private", "")
            Folders.of(folder / "home").make_home()
    finally:
        os.umask(previous)


@pytest.mark.parametrize("make", [make_private_folder, make_own_folder])
def test_a_symbolic_link_is_not_followed(folder: Path, make: Callable[[Path, str], None]) -> None:
    (folder / "target").mkdir(mode=0o700)
    for name, target in (("link", folder / "target"), ("dangling", folder / "nothing")):
        (folder / name).symlink_to(target)
        with pytest.raises(FailedPrecondition, match=f"{name} is a symbolic link"):
            make(folder / name, "remove it")
    assert not (folder / "nothing").exists()


@NEEDS_ROOT
def test_a_home_that_is_a_link_of_another_user_is_refused_and_a_link_of_this_user_is_followed(folder: Path) -> None:
    (folder / "real").mkdir()
    link = folder / "podrace-home"
    link.symlink_to(folder / "real")
    assert Folders.of(link).home == folder / "real"
    give_away(link)
    with pytest.raises(FailedPrecondition, match="podrace-home is a symbolic link of another user"):
        Folders.of(link)


@NEEDS_ROOT
async def test_a_command_does_not_start_a_mesh_in_a_runtime_folder_of_another_user(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    folders = Folders.of(folder / "home")
    folders.runtime.mkdir(mode=0o700)
    give_away(folders.runtime)
    with pytest.raises(FailedPrecondition, match=r"belongs to another user \(65534\); remove it or set TMPDIR"):
        async with open_mesh(folder / "home"):
            pytest.fail("a mesh was started")


def refusal(program: str, *settings: str) -> str:
    command = [sys.executable, "-m", program, *(part for setting in settings for part in ("--set", setting))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd="/")
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    return line


@NEEDS_ROOT
@pytest.mark.parametrize("key", ["runtime_folder", "log_folder"])
def test_the_orchestrator_does_not_start_in_a_folder_of_another_user(folder: Path, key: str) -> None:
    foreign = folder / "foreign"
    foreign.mkdir(mode=0o700)
    give_away(foreign)
    settings = {
        "server.listen": f"unix:{folder}/o.sock",
        "database": folder / "o.sqlite",
        "store": f"folder://{folder}/store",
        "leaderboard": f"unix:{folder}/l.sock",
        "runtime_folder": folder / "run",
        "log_folder": folder / "logs",
    } | {key: foreign}
    line = refusal("orchestrator", *(f"{name}={value}" for name, value in settings.items()))
    assert line == f"error: {key} = '{foreign}': belongs to another user (65534); choose another folder"


@NEEDS_ROOT
def test_a_pod_does_not_start_in_a_folder_of_another_user(folder: Path) -> None:
    foreign = folder / "pod"
    foreign.mkdir(mode=0o700)
    give_away(foreign)
    command = [sys.executable, "-m", "agentpod", "learner"]
    for setting in (
        "pod_id=p",
        "orchestrator=unix:/nowhere/o",
        "leaderboard=unix:/nowhere/l",
        f"store=folder://{folder}/store",
        f"folder={foreign}",
        f"plane_folder={folder}",
    ):
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 2
    assert f"error: folder = '{foreign}': belongs to another user (65534); choose another folder" in done.stderr


@NEEDS_ROOT
@pytest.mark.parametrize("what", ["socket", "folder"])
def test_a_socket_of_another_user_is_not_called(folder: Path, what: str) -> None:
    runtime = folder / "podrace-00000000"
    runtime.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(runtime / "orchestrator.sock"))
        listener.listen()
        give_away(runtime / "orchestrator.sock" if what == "socket" else runtime)
        with pytest.raises(FailedPrecondition, match=r"belongs to another user \(65534\), who could answer there"):
            rpc.connect(f"unix:{runtime}/orchestrator.sock")


@NEEDS_ROOT
def test_a_lifeline_of_another_user_is_a_lost_one(folder: Path) -> None:
    path = folder / "mesh.lifeline"
    with lifeline.hold(path):
        held = lifeline.attach(path)
        assert held is not None
        os.close(held)
        give_away(path)
        assert lifeline.attach(path) is None


def test_a_lifeline_is_a_pipe_and_no_link_to_one(folder: Path) -> None:
    (folder / "file").write_text("more than nothing")
    assert lifeline.attach(folder / "file") is None
    with lifeline.hold(folder / "real"):
        (folder / "link").symlink_to(folder / "real")
        assert lifeline.attach(folder / "link") is None


def test_the_pipe_of_a_lifeline_is_not_created_through_a_link(folder: Path) -> None:
    (folder / "leader.lifeline.incoming").symlink_to(folder / "elsewhere")
    with lifeline.hold(folder / "leader.lifeline"):
        assert not (folder / "elsewhere").exists()


def region(path: Path, mode: int = 0o600) -> Path:
    path.write_bytes(bytes(HEADER_BYTES + 64))
    path.chmod(mode)
    return path


def test_a_region_that_others_can_open_is_not_mapped(folder: Path) -> None:
    region(folder / "podrace-p-a", 0o666)
    refs = [TensorRef(plane_uri="shared:podrace-p-a")]
    with pytest.raises(FailedPrecondition, match=r"podrace-p-a is open to other users \(mode 0666\)"):
        SharedPlane("podrace-p-", folder).open(refs)


@NEEDS_ROOT
def test_a_region_of_another_user_is_neither_mapped_nor_written(folder: Path) -> None:
    path = give_away(region(folder / "podrace-p-a"))
    with pytest.raises(FailedPrecondition, match=r"podrace-p-a belongs to another user \(65534\)"):
        SharedPlane("podrace-p-", folder).open([TensorRef(plane_uri="shared:podrace-p-a")])
    assert path.read_bytes() == bytes(HEADER_BYTES + 64)


def test_files_of_others_do_not_stop_the_removal_of_regions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    region(folder / "podrace-p-a")
    region(folder / "podrace-p-b")
    unlink = Path.unlink

    def refusing(path: Path, missing_ok: bool = False) -> None:
        if path.name == "podrace-p-a":
            # As the kernel answers in a folder with the sticky bit.
            raise PermissionError(1, "Operation not permitted")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refusing)
    monkeypatch.setattr(orphan_pods, "SHARED_MEMORY", folder)
    remove_regions("podrace-p-", folder)
    assert {path.name for path in folder.iterdir()} == {"podrace-p-a"}
    pods = folder / "pods"
    (pods / "p").mkdir(parents=True)
    orphan_pods.remove(pods)
    assert not list(pods.iterdir())


def test_no_command_writes_through_a_link_to_the_file_of_a_region(folder: Path) -> None:
    region(folder / "target")
    (folder / "podrace-p-a").symlink_to(folder / "target")
    with suppress(FailedPrecondition):
        SharedPlane("podrace-p-", folder).open([TensorRef(plane_uri="shared:podrace-p-a")])
        pytest.fail("a link was followed")
    assert re.fullmatch(rb"\x00+", (folder / "target").read_bytes())
