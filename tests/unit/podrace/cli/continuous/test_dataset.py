import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from podrace.cli.continuous.dataset import INCOMING, DatasetVersion, open_source, take_version
from podrace.cli.continuous.decisions import Signature
from podrace.cli.continuous.source import LocalSource
from podrace.errors import Aborted, Cancelled, FailedPrecondition, InvalidArgument, Unimplemented


def never() -> bool:
    return False


def take(path: Path, folder: Path) -> DatasetVersion:
    return take_version(LocalSource(path), folder, cancelled=never)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "versions"
    made.mkdir()
    return made


def fill(path: Path, **files: str) -> Path:
    for name, text in files.items():
        place = path / name.replace("__", "/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return path


def test_a_version_is_a_copy_that_later_writes_do_not_change(tmp_path: Path, folder: Path) -> None:
    data = fill(tmp_path / "data", a="one", sub__b="two")
    version = take(data, folder)
    assert version.path == folder / version.digest[:12] / "data"
    (data / "a").write_text("changed")
    assert (version.path / "a").read_text() == "one"
    assert (version.path / "sub" / "b").read_text() == "two"
    assert not (version.path / "a").stat().st_mode & 0o222
    assert [place.name for place in folder.iterdir()] == [version.digest[:12]]


def test_a_file_is_a_version_under_its_own_name(tmp_path: Path, folder: Path) -> None:
    data = tmp_path / "prices.npz"
    data.write_bytes(b"prices")
    version = take(data, folder)
    assert version.path.name == "prices.npz"
    assert version.path.read_bytes() == b"prices"


def test_the_digest_depends_only_on_names_and_contents(tmp_path: Path, folder: Path) -> None:
    def digest(name: str, **files: str) -> str:
        return take(fill(tmp_path / name, **files), folder).digest

    same = digest("one", a="x", b="y")
    (tmp_path / "two" / ".hidden").parent.mkdir()
    (tmp_path / "two" / ".hidden").write_text("z")
    assert digest("two", b="y", a="x") == same
    assert len({same, digest("three", a="y", b="x"), digest("four", a="x", c="y"), digest("five", a="x")}) == 4


def test_every_write_changes_the_signature(tmp_path: Path) -> None:
    data = fill(tmp_path / "data", a="one", b="two")
    source, signatures = LocalSource(data), []
    signatures.append(source.signature())
    assert source.signature() == signatures[0]
    os.utime(data / "a", ns=(1, 1))
    signatures.append(source.signature())
    (data / "new").write_text("two")
    (data / "new").replace(data / "b")
    signatures.append(source.signature())
    (data / "b").unlink()
    signatures.append(source.signature())
    assert len(set(signatures)) == 4
    assert LocalSource(tmp_path / "missing").signature() == ()


class Changing(LocalSource):
    """Data that changes while it is read."""

    change: Callable[[], object]

    def read(self, name: str, write: Callable[[bytes], object]) -> None:
        super().read(name, write)
        type(self).change()


@pytest.mark.parametrize("fault", ["written", "removed"])
def test_data_that_changes_while_it_is_copied_is_not_a_version(tmp_path: Path, folder: Path, fault: str) -> None:
    data = fill(tmp_path / "data", a="one", b="two")
    faults = {"written": lambda: (data / "a").write_text("another"), "removed": lambda: (data / "b").unlink(True)}
    Changing.change = staticmethod(faults[fault])
    with pytest.raises(Aborted, match="changed while it was read"):
        take_version(Changing(data), folder, cancelled=never)
    assert not list(folder.iterdir())


def test_a_cancelled_copy_leaves_no_files(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(Cancelled):
        take_version(LocalSource(fill(tmp_path / "data", a="one")), folder, cancelled=lambda: True)
    assert not list(folder.iterdir())


def test_the_remains_of_a_killed_copy_are_removed(tmp_path: Path, folder: Path) -> None:
    fill(folder / INCOMING / "data", a="half", c="more")
    version = take(fill(tmp_path / "data", a="one"), folder)
    assert [path.name for path in version.path.iterdir()] == ["a"]


def test_the_same_data_again_is_the_same_version(tmp_path: Path, folder: Path) -> None:
    data = fill(tmp_path / "data", a="one")
    first = take(data, folder)
    inode = (first.path / "a").stat().st_ino
    assert take(data, folder) == first
    assert (first.path / "a").stat().st_ino == inode


class Foreign:
    """A server with an object name that points outside of the folder."""

    name = "data"

    def signature(self) -> Signature:
        return (("../../evil", 1),)

    def read(self, name: str, write: Callable[[bytes], object]) -> None:
        write(b"evil")


def test_object_names_cannot_point_outside_of_the_version(folder: Path) -> None:
    with pytest.raises(FailedPrecondition, match="evil"):
        take_version(Foreign(), folder, cancelled=never)
    assert not list(folder.parent.rglob("evil"))


@pytest.mark.parametrize(
    ("reference", "line"),
    [
        ("", "name a file, a folder"),
        ("ftp://host/x", "unknown scheme 'ftp'"),
        ("s3://bucket/../x", "^--watch s3://bucket/../x: a key consists of letters"),
        ("s3://", "^--watch s3://: names no bucket; write s3://BUCKET/KEY"),
        ("s3://user:secret@bucket/x", "^--watch s3://bucket/x: names no bucket"),
        ("minio://host", "^--watch 'minio://host': names no host and bucket"),
    ],
)
def test_a_malformed_reference_is_refused(reference: str, line: str) -> None:
    with pytest.raises(InvalidArgument, match=line):
        open_source(reference, {})


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "podrace.cli.continuous.bucket", None)
    with pytest.raises(Unimplemented, match=r"pip install 'minio"):
        open_source("s3://bucket/prices.npz", {})


def test_s3_needs_credentials_and_a_valid_endpoint() -> None:
    with pytest.raises(FailedPrecondition, match="AWS_ACCESS_KEY_ID"):
        open_source("s3://bucket/prices.npz", {})
    with pytest.raises(InvalidArgument, match=r"AWS_ENDPOINT_URL = 'localhost:9000': expected https"):
        open_source("s3://bucket/prices.npz", {"AWS_ENDPOINT_URL": "localhost:9000"})
