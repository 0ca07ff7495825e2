import os
from pathlib import Path

import pytest

from podrace.cli.terminal.atomic_file import whole_file
from podrace.errors import FailedPrecondition


def test_readers_see_the_old_file_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "curve.csv"
    path.write_text("before")
    with whole_file(path, "--csv") as place:
        place.write_text("after")
        assert path.read_text() == "before"
        assert place.suffix == path.suffix
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_no_files(tmp_path: Path) -> None:
    path = tmp_path / "curve.csv"
    path.write_text("before")
    with (
        pytest.raises(UnicodeEncodeError),
        whole_file(path, "--csv") as place,
        place.open("w", encoding="ascii") as file,
    ):
        file.writelines(["half", "é"])
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_is_written_directly(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with whole_file(pipe, "--csv") as place:
            place.write_text("numbers")
        assert os.read(reader, 100) == b"numbers"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_link_is_written_through(tmp_path: Path) -> None:
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    target.write_text("before")
    link.symlink_to(target)
    with whole_file(link, "--csv") as place:
        place.write_text("after")
    assert link.is_symlink()
    assert target.read_text() == "after"


@pytest.mark.parametrize(("option", "begin"), [("--csv", "--csv /"), ("", "/")])
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, option: str, begin: str) -> None:
    path = tmp_path / "missing" / "curve.csv"
    refused = pytest.raises(FailedPrecondition, match=f"^{begin}.*/missing/curve.csv: cannot be written: No such file")
    with refused, whole_file(path, option) as place:
        place.write_text("numbers")
