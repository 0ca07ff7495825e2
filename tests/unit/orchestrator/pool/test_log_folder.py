"""The folder of logs: long logs are rotated, logs of exited pods deleted."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from orchestrator.decisions.log_retention import LEAST_FILE_BYTES, LogLimits
from orchestrator.launchers.log_tail import last_line
from orchestrator.pool import log_folder
from orchestrator.pool.log_folder import LogFolder

LONG = b"x" * 99 + b"\n"
LIMITS = LogLimits(file_bytes=LEAST_FILE_BYTES, kept_files=2, pods=1, days=0.0)


def folder_of(folder: Path, clock: Any, living: tuple[str, ...] = (), *, mesh: bool = True) -> LogFolder:
    runtime: Any = SimpleNamespace(cache=SimpleNamespace(pods=dict.fromkeys(living)))
    return LogFolder(folder, LIMITS, runtime, clock, mesh=mesh)


def fill(path: Path) -> None:
    path.write_bytes(LONG * (LEAST_FILE_BYTES // len(LONG) + 1))


async def test_long_logs_of_the_mesh_are_rotated_and_others_are_not(tmp_path: Path, clock: Any) -> None:
    for name in ("orchestrator.log", "t-p0.log", "forkserver.log", "notes.log"):
        fill(tmp_path / name)
    (tmp_path / "leaderboard.log").write_text("short\n")
    await folder_of(tmp_path, clock, ("t-p0",)).check()
    assert {path.name for path in tmp_path.iterdir() if path.stat().st_size} == {
        "orchestrator.log.1",
        "t-p0.log.1",
        "forkserver.log.1",
        "notes.log",
        "leaderboard.log",
    }


async def test_the_output_of_a_standing_service_is_left_alone(tmp_path: Path, clock: Any) -> None:
    fill(tmp_path / "orchestrator.log")
    fill(tmp_path / "forkserver.log")
    await folder_of(tmp_path, clock, mesh=False).check()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "forkserver.log",
        "forkserver.log.1",
        "orchestrator.log",
    ]


async def test_the_logs_of_exited_pods_are_deleted_with_their_rotated_files(tmp_path: Path, clock: Any) -> None:
    for age, name in enumerate(["t-p0.log", "t-p1.log", "t-p1.log.1", "t-p2.log"]):
        (tmp_path / name).write_text("text\n")
        os.utime(tmp_path / name, (clock.wall() - age, clock.wall() - age))
    await folder_of(tmp_path, clock, ("t-p2",)).check()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t-p0.log", "t-p2.log"]


async def test_a_log_that_cannot_be_rotated_is_reported_once(
    tmp_path: Path, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, kept_files: int) -> None:
        raise OSError(28, "No space left on device")

    fill(tmp_path / "t-p0.log")
    logs = folder_of(tmp_path, clock)
    with monkeypatch.context() as patch, capture_logs() as lines:
        patch.setattr(log_folder, "copy_and_truncate", fail)
        await logs.check()
        await logs.check()
    assert [line["log"] for line in lines] == [str(tmp_path / "t-p0.log")]
    await logs.check()
    assert (tmp_path / "t-p0.log.1").exists()


async def test_the_last_line_of_a_pod_is_found_after_a_rotation(tmp_path: Path, clock: Any) -> None:
    path = tmp_path / "t-p0.log"
    fill(path)
    with path.open("ab") as writer:
        writer.write(b"error: the last line\n")
    await folder_of(tmp_path, clock).check()
    assert path.stat().st_size == 0
    assert last_line(path) == "error: the last line"
