"""Logs reach a page in bounded parts, escaped, and only those of the tournament and of the services."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from podrace.dashboard import logs, views
from podrace.dashboard.logs import LogFolder, LogTail
from podrace.errors import FailedPrecondition, NotFound

RUN = "run-abc123"
POD = f"{RUN}-p0"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, bytes], Path]:
    def written(name: str, text: bytes) -> Path:
        path = tmp_path / f"{name}.log"
        with path.open("ab") as file:
            file.write(text)
        return path

    return written


def test_a_tail_has_the_last_lines_and_then_those_that_are_added(write):
    tail = LogTail.open(write(POD, b"one\ntwo\nthree\n"), 2)
    assert tail.read().lines == ["two", "three"]
    assert tail.read().lines == []
    write(POD, b"four\nfi")
    assert tail.read().lines == ["four"]
    write(POD, b"ve\n")
    assert tail.read().lines == ["five"]
    tail.close()


def test_control_characters_are_escaped_and_long_lines_cut(write):
    tail = LogTail.open(write(POD, b"\x1b[2Jred\xe2\x80\xae\x00\n" + 100_000 * b"x" + b"\n"), 2)
    first, second = tail.read().lines
    assert first == r"\x1b[2Jred\u202e\x00"
    assert len(second) == views.LONGEST_TEXT
    tail.close()


def test_of_too_many_lines_the_newest_are_kept_and_none_is_lost_from_the_count(write, monkeypatch):
    monkeypatch.setattr(logs, "MOST_LINES", 3)
    monkeypatch.setattr(logs, "MOST_READ", 5)
    tail = LogTail.open(write(POD, b""), 0)
    write(POD, b"".join(b"%d\n" % number for number in range(12)))
    parts = [tail.read() for _ in range(4)]
    assert [part.lines for part in parts] == [["2", "3", "4"], ["7", "8", "9"], ["10", "11"], []]
    assert [part.left_out for part in parts] == [2, 2, 0, 0]
    tail.close()


def test_the_last_lines_of_a_log_with_an_endless_line_are_found_without_reading_all_of_it(write, monkeypatch):
    monkeypatch.setattr(logs, "MOST_TAIL_BYTES", 100_000)
    path = write(POD, 1_000_000 * b"x")
    tail = LogTail.open(path, 10)
    assert tail._file.tell() >= 800_000
    tail.close()


def test_pods_of_the_tournament_come_first_the_newest_at_the_beginning(write, tmp_path: Path):
    for place, name in enumerate([POD, f"{RUN}-p1", f"{RUN}-more-abc123-p2", "other-abc123-p1", "orchestrator"]):
        os.utime(write(name, b"x\n"), (place, place))
    (tmp_path / f"{RUN}-p7.log.1").write_text("rotated")
    assert LogFolder(tmp_path).names(RUN) == [f"{RUN}-p1", POD, "orchestrator"]
    assert LogFolder(tmp_path / "absent").names(RUN) == []


@pytest.mark.parametrize(
    "name", ["other-abc123-p1", f"{RUN}-more-abc123-p2", "../secret", f"{RUN}-p0/../../x", "token"]
)
def test_other_files_than_logs_of_the_tournament_are_not_known(write, tmp_path: Path, name: str):
    write("other-abc123-p1", b"x\n")
    with pytest.raises(NotFound):
        LogFolder(tmp_path).tail(RUN, name, 10)


def test_a_link_or_a_pipe_is_no_log(write, tmp_path: Path):
    (tmp_path / f"{POD}.log").symlink_to(write("secret", b"x\n"))
    os.mkfifo(tmp_path / f"{RUN}-p1.log")
    for name in (POD, f"{RUN}-p1"):
        with pytest.raises(NotFound):
            LogFolder(tmp_path).tail(RUN, name, 10)


def test_a_mesh_elsewhere_has_no_logs_here():
    for use in (lambda: LogFolder(None).names(RUN), lambda: LogFolder(None).tail(RUN, POD, 1)):
        with pytest.raises(FailedPrecondition, match="kubectl logs"):
            use()
