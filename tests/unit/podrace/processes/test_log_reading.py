"""Log files: which lines are their last ones, and lines that are written meanwhile."""

from pathlib import Path

import pytest

from podrace.processes import log_reading
from podrace.processes.log_reading import GrowingLines, last_lines, seek_last_lines
from podrace.processes.log_rotation import copy_and_truncate


@pytest.mark.parametrize("block_bytes", [1, 2, 7, 1 << 16])
@pytest.mark.parametrize("text", [b"", b"\n", b"a", b"a\n", b"a\nbc", b"a\n\nbc\n", b"a\nb\nc\nd\n"])
def test_the_last_lines_are_those_of_the_whole_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, block_bytes: int
) -> None:
    monkeypatch.setattr(log_reading, "BLOCK_BYTES", block_bytes)
    path = tmp_path / "log"
    path.write_bytes(text)
    whole = text.decode().splitlines()
    for lines in range(6):
        assert last_lines(path, lines) == whole[len(whole) - min(lines, len(whole)) :]


def test_a_line_is_read_once_when_it_is_complete_and_a_shorter_file_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old\nhalf")
    with path.open("rb") as file:
        seek_last_lines(file, 1)
        reader = GrowingLines(file)
        assert list(reader.read()) == []
        with path.open("a") as writer:
            writer.write(" whole\nnext\n")
        assert list(reader.read()) == ["half whole", "next"]
        path.write_text("new\n")
        assert list(reader.read()) == ["new"]


def test_following_continues_over_rotations_without_losing_or_repeating_a_line(tmp_path: Path) -> None:
    path = tmp_path / "t-p0.log"
    with path.open("ab", buffering=0) as writer, path.open("rb") as file:
        reader = GrowingLines(file, path)
        writer.write(b"one\ntwo\nhal")
        assert list(reader.read()) == ["one", "two"]
        writer.write(b"f\nthree\n")
        copy_and_truncate(path, 3)
        writer.write(b"four\n")
        assert list(reader.read()) == ["half", "three", "four"]
        copy_and_truncate(path, 3)
        assert list(reader.read()) == []
        writer.write(b"five\n")
        assert list(reader.read()) == ["five"]


def test_a_line_without_an_end_is_returned_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reading, "LONGEST_LINE_BYTES", 10)
    monkeypatch.setattr(log_reading, "BLOCK_BYTES", 8)
    path = tmp_path / "log"
    path.write_text(30 * "x" + "\n")
    with path.open("rb") as file:
        pieces = list(GrowingLines(file).read())
    assert "".join(pieces) == 30 * "x"
    assert max(map(len, pieces)) <= 18


def test_no_more_of_a_file_is_read_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reading, "BLOCK_BYTES", 10)
    path = tmp_path / "log"
    path.write_text("first\n" + 100 * "x" + "\nlast\n")
    with path.open("rb") as file:
        seek_last_lines(file, 3, most_bytes=20)
        assert file.tell() == path.stat().st_size - 20
        seek_last_lines(file, 1, most_bytes=20)
        assert file.read() == b"last\n"
