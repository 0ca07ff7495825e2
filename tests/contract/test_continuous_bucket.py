"""Tests the data sets that continuous training watches on a real S3 server."""

import io
import os
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
import weed

from podrace.cli import main
from podrace.cli.continuous import bucket
from podrace.cli.continuous.dataset import Source, open_source, take_version
from podrace.errors import Aborted, FailedPrecondition, PermissionDenied


@pytest.fixture
def put(s3_server: weed.S3Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, bytes], None]:
    """Returns a function that puts an object; `s3://` refers to the server of the tests."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{s3_server.endpoint}")
    monkeypatch.setattr(bucket, "DEADLINE_SECONDS", 5.0)
    monkeypatch.setattr(bucket, "PIECE_BYTES", 100)
    return lambda key, data: s3_server.client().put_object(weed.BUCKET, key, io.BytesIO(data), len(data)) and None


@pytest.fixture
def root() -> str:
    return f"data-{uuid.uuid4().hex[:12]}"


def source_of(key: str) -> Source:
    return open_source(f"s3://{weed.BUCKET}/{key}", os.environ)


def test_an_object_is_a_version_and_is_read_in_pieces(
    put: Callable[[str, bytes], None], root: str, tmp_path: Path
) -> None:
    data = bytes(range(256)) * 3
    put(f"{root}/prices.npz", data)
    source = source_of(f"{root}/prices.npz")
    first = take_version(source, tmp_path, cancelled=lambda: False)
    assert first.path.name == "prices.npz"
    assert first.path.read_bytes() == data
    signature = source.signature()
    assert source.signature() == signature
    put(f"{root}/prices.npz", data[::-1])
    assert source.signature() != signature
    second = take_version(source, tmp_path, cancelled=lambda: False)
    assert second.path.read_bytes() == data[::-1]
    assert first.path.read_bytes() == data


def test_a_prefix_is_all_objects_below_it_and_no_others(
    put: Callable[[str, bytes], None], root: str, tmp_path: Path
) -> None:
    for name in ("prices/a", "prices/sub/b", "prices-old/c"):
        put(f"{root}/{name}", name.encode())
    for written in (f"{root}/prices", f"{root}/prices/"):
        version = take_version(source_of(written), tmp_path, cancelled=lambda: False)
        found = {path.relative_to(version.path).as_posix() for path in version.path.rglob("*") if path.is_file()}
        assert found == {"a", "sub/b"}
        assert version.path.name == "prices"


def test_the_same_data_is_the_same_version_in_a_folder_and_on_a_server(
    put: Callable[[str, bytes], None], root: str, tmp_path: Path
) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "a").write_bytes(b"one")
    put(f"{root}/a", b"one")
    folder = tmp_path / "versions"
    folder.mkdir()
    there = take_version(source_of(root), folder, cancelled=lambda: False)
    assert (
        take_version(open_source(str(tmp_path / "local"), {}), folder, cancelled=lambda: False).digest == there.digest
    )


def test_an_object_replaced_while_it_is_read_is_not_a_version(
    put: Callable[[str, bytes], None], root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(f"{root}/a", b"x" * 500)
    source = source_of(root)
    assert isinstance(source, bucket.BucketSource)
    piece = source.bucket.get_piece

    def change(*arguments: object) -> bytes:
        data = piece(*arguments)  # type: ignore[arg-type]
        put(f"{root}/a", b"y" * 500)
        return data

    monkeypatch.setattr(source.bucket, "get_piece", change)
    with pytest.raises(Aborted):
        take_version(source, tmp_path, cancelled=lambda: False)
    assert not list(tmp_path.iterdir())


def test_a_source_that_cannot_be_read_is_reported_on_one_line(
    put: Callable[[str, bytes], None], root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert source_of(root).signature() == ()
    with pytest.raises(FailedPrecondition, match="no-such-bucket"):
        open_source("s3://no-such-bucket/x", os.environ).signature()
    monkeypatch.setenv("PODRACE_STORE_SECRET_KEY", "wrong")
    with pytest.raises(PermissionDenied):
        source_of(root).signature()


SPEC = """
[environment]
id = "stocks"
[environment.options]
path = "%s"
[algorithms.ppo]
[objective]
environment_steps = 1000
"""


@pytest.mark.parametrize(
    ("reference", "variables", "message"),
    [
        ("s3://no-such-bucket/x", {}, "there is no bucket 'no-such-bucket'"),
        (f"s3://{weed.BUCKET}/no-such-key", {}, "there is no such object, and none below it"),
        (f"s3://{weed.BUCKET}/x", {"PODRACE_STORE_SECRET_KEY": "wrong"}, "credentials in PODRACE_STORE_ACCESS_KEY"),
        (f"s3://{weed.BUCKET}/x", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "127.0.0.1:1 cannot be reached: Conn"),
    ],
)
@pytest.mark.usefixtures("put")
def test_a_start_whose_source_cannot_be_read_reports_why_on_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    reference: str,
    variables: dict[str, str],
    message: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "race.toml").write_text(SPEC % reference)
    home = tmp_path / "home"
    assert main(["continuous", "start", f"{tmp_path}/race.toml", "--watch", reference, "--home", str(home)]) in (1, 2)
    out, err = capfd.readouterr()
    assert err.startswith(f"error: --watch {reference}")
    assert message in err
    assert (err.count("\n"), out) == (1, "")
    assert not home.exists()
