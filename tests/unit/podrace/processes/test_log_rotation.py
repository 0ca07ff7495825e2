"""Rotation of logs whose descriptors several processes have inherited."""

import os
from pathlib import Path

import pytest

from podrace.processes import log_rotation
from podrace.processes.log_rotation import copy_and_truncate, rotated


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_writer_that_keeps_its_descriptor_continues_at_the_beginning_of_the_emptied_log(tmp_path: Path) -> None:
    path = tmp_path / "p0.log"
    with path.open("ab", buffering=0) as writer:
        writer.write(b"one\n")
        copy_and_truncate(path, 3)
        writer.write(b"two\n")
    assert (rotated(path).read_bytes(), path.read_bytes()) == (b"one\n", b"two\n")
    assert rotated(path).stat().st_mode & 0o777 == 0o600


def test_rotated_files_move_up_and_those_beyond_the_limit_are_deleted(tmp_path: Path) -> None:
    path = tmp_path / "p0.log"
    for number in range(5):
        path.write_text(f"{number}\n")
        copy_and_truncate(path, 3)
    assert names(tmp_path) == ["p0.log", "p0.log.1", "p0.log.2", "p0.log.3"]
    assert [rotated(path, number).read_text() for number in (1, 2, 3)] == ["4\n", "3\n", "2\n"]
    path.write_text("5\n")
    copy_and_truncate(path, 1)
    assert names(tmp_path) == ["p0.log", "p0.log.1"]


def test_what_is_written_while_a_log_is_copied_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p0.log"
    path.write_text("early\n")

    def write_late(log: Path, kept_files: int) -> None:
        with log.open("a") as writer:
            writer.write("late\n")

    monkeypatch.setattr(log_rotation, "shift", write_late)
    copy_and_truncate(path, 3)
    assert rotated(path).read_text() == "early\nlate\n"
    assert path.read_text() == ""


def test_a_log_that_cannot_be_copied_is_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p0.log"
    path.write_text("text\n")

    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(OSError, match="No space"):
        copy_and_truncate(path, 3)
    assert names(tmp_path) == ["p0.log"]
    assert path.read_text() == "text\n"


def test_a_link_in_place_of_a_log_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("text\n")
    (tmp_path / "p0.log").symlink_to(other)
    with pytest.raises(OSError, match="symbolic"):
        copy_and_truncate(tmp_path / "p0.log", 3)
    assert other.read_text() == "text\n"
